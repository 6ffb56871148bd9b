import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.cli.run.ranges import MAX_CASES, Range, RangeError, combinations, parse_range, substitute


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("X=case:1,2,3,4", ("1", "2", "3", "4")),
        ("X=case:a b,c=d,", ("a b", "c=d", "")),
        ("X=linspace:1,2,3", ("1", "1.5", "2")),
        ("X=linspace:0,1,1", ("0",)),
        ("X=linspace:0,1,4", ("0", "0.333333333333", "0.666666666667", "1")),
        ("X=linspace:2,-2,5", ("2", "1", "0", "-1", "-2")),
        ("X=range:1,6,2", ("1", "3", "5")),
        ("X=range:1,7,2", ("1", "3", "5")),
        ("X=range:5,0,-2", ("5", "3", "1")),
        ("X=range:0,1,0.25", ("0", "0.25", "0.5", "0.75")),
    ],
)
def test_expressions_of_the_specification(expression: str, values: tuple[str, ...]) -> None:
    assert parse_range(expression) == Range("X", values)


@pytest.mark.parametrize(
    "expression",
    [
        "X", "X=", "X=1,2", "=case:1", "1X=case:1", "X=case:", "X=list:1,2", "X=linspace:1,2", "X=linspace:1,2,0",
        "X=linspace:1,2,1.5", "X=linspace:1,2,100000", "X=range:1,2", "X=range:1,2,0", "X=range:a,2,1",
        "X=range:1,2,-1", "X=range:0,1e9,1", "X=linspace:NaN,2,3", "X=range:0,Infinity,1",
    ],
)  # fmt: skip
def test_malformed_expressions_are_refused(expression: str) -> None:
    with pytest.raises(RangeError):
        parse_range(expression)


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7).filter(bool))
def test_a_range_is_that_of_python(start: int, stop: int, step: int) -> None:
    expected = tuple(str(number) for number in range(start, stop, step))
    expression = f"X=range:{start},{stop},{step}"
    if expected:
        assert parse_range(expression).values == expected
    else:
        with pytest.raises(RangeError, match="no values"):
            parse_range(expression)


def test_every_combination_comes_once() -> None:
    found = list(combinations([Range("A", ("1", "2")), Range("B", ("x", "y", "z"))]))
    assert len(found) == 6
    assert found[:4] == [{"A": "1", "B": "x"}, {"A": "1", "B": "y"}, {"A": "1", "B": "z"}, {"A": "2", "B": "x"}]
    assert list(combinations([])) == [{}]


def test_too_many_combinations_and_doubled_names_are_refused() -> None:
    wide = tuple(str(number) for number in range(101))
    with pytest.raises(RangeError, match=f"{MAX_CASES} is the most"):
        list(combinations([Range("A", wide), Range("B", wide)]))
    with pytest.raises(RangeError, match="twice"):
        list(combinations([Range("A", ("1",)), Range("A", ("2",))]))


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("$X", "1"), ("${X}y", "1y"), ("$XY", "$XY"), ("a$X-$Y", "a1-$Y"), ("$$X", "$1"), ("$HOME/$X", "$HOME/1"),
        ("100%$", "100%$"), ("", ""),
    ],
)  # fmt: skip
def test_only_range_variables_are_replaced(text: str, made: str) -> None:
    assert substitute(text, {"X": "1"}) == made
