import pytest
from tools.sizes import FILE_LIMIT, FUNCTION_LIMIT, allowances, measure, offenders


def function(lines: int) -> str:
    return "def long() -> None:\n" + "    pass\n" * (lines - 1)


def test_a_file_at_the_limit_passes_and_one_line_more_fails() -> None:
    at_limit = list(measure("src/a.py", "x = 1\n" * FILE_LIMIT))
    assert offenders(at_limit, {}) == []
    over = list(measure("src/a.py", "x = 1\n" * (FILE_LIMIT + 1)))
    assert offenders(over, {}) == [f"src/a.py: {FILE_LIMIT + 1} lines, limit {FILE_LIMIT}"]


def test_a_function_at_the_limit_passes_and_one_line_more_fails() -> None:
    assert offenders(list(measure("src/a.py", function(FUNCTION_LIMIT))), {}) == []
    assert offenders(list(measure("src/a.py", function(FUNCTION_LIMIT + 1))), {}) != []


def test_an_allowance_raises_the_limit_and_goes_stale() -> None:
    allowed = allowances("# head\nsrc/a.py::long 120  # a table\n")
    assert allowed == {"src/a.py::long": 120}
    assert offenders(list(measure("src/a.py", function(120))), allowed) == []
    assert offenders(list(measure("src/a.py", function(121))), allowed) != []
    assert offenders(list(measure("src/a.py", function(10))), allowed) == [
        "tools/sizes.allow: src/a.py::long needs no allowance"
    ]


def test_an_allowance_without_a_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="reason"):
        allowances("src/a.py 900\n")
