from __future__ import annotations

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.query.language import MAX_CONDITIONS, MAX_DEPTH, parse_filter, parse_order
from ai.backend.manager.query.model import Condition, Junction, OrderBy


def _c(field: str, op: str, value: object) -> Condition:
    return Condition(field=field, op=op, value=value)  # type: ignore[arg-type]  # words of the tests


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('a == "x"', "x"),
        ("a == 'it''s'", None),
        (r'a == "q\"uote\n"', 'q"uote\n'),
        (r"a == 'q\'uote'", "q'uote"),
        ("a == 5", 5),
        ("a == -5.25", -5.25),
        ("a == true", True),
        ("a == False", False),
        ("a is null", None),
        ('a == "\u540d"', "\u540d"),
        ('a == ""', ""),
    ],
)
def test_values(text: str, value: object) -> None:
    if text == "a == 'it''s'":
        with pytest.raises(InvalidInput):
            parse_filter(text)
        return
    parsed = parse_filter(text)
    assert isinstance(parsed, Condition)
    assert (parsed.value, type(parsed.value)) == (value, type(value))


@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">=", "is", "isnot", "like", "ilike", "contains"])
def test_operators(op: str) -> None:
    assert parse_filter(f'name {op} "%a%"') == _c("name", op, "%a%")


def test_lists() -> None:
    assert parse_filter('s in ["A", "B"]') == _c("s", "in", ("A", "B"))
    assert parse_filter("s in []") == _c("s", "in", ())


def test_and_binds_tighter_than_or() -> None:
    a, b, c = _c("a", "==", 1), _c("b", "==", 2), _c("c", "==", 3)
    assert parse_filter("a == 1 | b == 2 & c == 3") == Junction(kind="|", terms=(a, Junction(kind="&", terms=(b, c))))
    assert parse_filter("(a == 1 | b == 2) & c == 3") == Junction(kind="&", terms=(Junction(kind="|", terms=(a, b)), c))
    assert parse_filter("a==1&b==2&c==3") == Junction(kind="&", terms=(a, b, c))


@pytest.mark.parametrize("text", [None, "", "  "])
def test_nothing(text: str | None) -> None:
    assert parse_filter(text) is None
    assert parse_order(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a ==",
        '== "x"',
        "a = 1",
        "a == b",
        "a == 1 &",
        "(a == 1",
        "a == 1)",
        "a == 1 b == 2",
        'a == "x',
        "a in 1",
        "a == [1]",
        "a in [1,",
        "a in [1 2]",
        "a like 5",
        "a; drop table x",
        "a == 1 -- x",
        "a == 1x",
        "a.b == 1",
        "\x00",
        "(" * (MAX_DEPTH + 1) + "a == 1" + ")" * (MAX_DEPTH + 1),
        " & ".join(["a == 1"] * (MAX_CONDITIONS + 1)),
        "a == " + '"' + "x" * 5000 + '"',
    ],
)
def test_malformed(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_filter(text)
    assert list(caught.value.data) == ["filter"]


def test_orders() -> None:
    assert parse_order("a, +b ,- c") == (
        OrderBy(field="a"),
        OrderBy(field="b"),
        OrderBy(field="c", descending=True),
    )
    for text in ("a b", "-", "a;", "a,,b", "1"):
        with pytest.raises(InvalidInput) as caught:
            parse_order(text)
        assert list(caught.value.data) == ["order"]


def test_a_value_is_text_that_a_database_can_hold() -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        parse_filter(r'a == "\ud800"')
    assert parse_filter(r'a == "\ud83d\ude00"') == _c("a", "==", "\U0001f600")
