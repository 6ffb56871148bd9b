"""Exact quantities: laws by hypothesis, texts by table."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.errors import InvalidQuantity
from ai.backend.common.slots import INFINITY, BinarySize, ResourceSlot, format_quantity, parse_quantity

NAMES = ["cpu", "mem", "cuda.device", "cuda.shares"]
QUANTITIES = st.integers(0, 10**26 - 1).map(lambda n: Decimal(n).scaleb(-6)) | st.integers(0, 2**63).map(Decimal)
SLOTS = st.dictionaries(st.sampled_from(NAMES), QUANTITIES).map(ResourceSlot)


def dense(slot: ResourceSlot) -> ResourceSlot:
    """The same value with every key written out."""
    return ResourceSlot({name: slot[name] for name in NAMES})


@given(SLOTS, SLOTS)
def test_a_missing_key_is_zero(a: ResourceSlot, b: ResourceSlot) -> None:
    assert dense(a) == a
    assert hash(dense(a)) == hash(a)
    assert (dense(a) <= b) == (a <= dense(b)) == (a <= b)
    assert dense(a) + b == a + dense(b)
    assert a["no.such"] == 0
    assert "no.such" not in a


@given(SLOTS, SLOTS, SLOTS)
def test_arithmetic_is_exact(a: ResourceSlot, b: ResourceSlot, c: ResourceSlot) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert (a + b) - b == a
    assert a - a == ResourceSlot()
    assert a * 3 == a + a + a
    assert a + ResourceSlot() == a


@given(SLOTS, SLOTS, SLOTS)
def test_comparison_is_a_partial_order(a: ResourceSlot, b: ResourceSlot, c: ResourceSlot) -> None:
    assert a <= a
    assert (a <= b and b <= a) == (a == b)
    if a <= b and b <= c:
        assert a <= c
    assert (a < b) is (a <= b and a != b)
    assert (a >= b, a > b) == (b <= a, b < a)
    assert a <= a + b


def test_some_values_are_incomparable() -> None:
    a, b = ResourceSlot.parse({"cpu": 1}), ResourceSlot.parse({"mem": 1})
    assert not any((a <= b, a >= b, a < b, a > b, a == b))


@given(SLOTS, SLOTS)
def test_a_shortage_is_empty_exactly_where_it_fits(request: ResourceSlot, available: ResourceSlot) -> None:
    lack = request.shortage(available)
    assert (not lack) == (request <= available)
    assert request <= available + lack


@given(SLOTS)
def test_json_keeps_every_digit(a: ResourceSlot) -> None:
    whole = ResourceSlot({name: value // 1 if name == "mem" else value for name, value in a.items()})
    assert ResourceSlot.parse(whole.to_json()) == whole
    assert all(isinstance(v, str) for v in whole.to_json().values())


@given(st.lists(QUANTITIES, max_size=100))
def test_no_digit_of_a_long_sum_is_lost(quantities: list[Decimal]) -> None:
    total = sum((ResourceSlot({"cpu": q}) for q in quantities), ResourceSlot())
    assert int(total["cpu"] * 10**6) == sum(int(q * 10**6) for q in quantities)


def test_it_is_a_mapping_of_its_own_keys() -> None:
    a = ResourceSlot.parse({"cpu": 1, "mem": 0})
    assert dict(a) == {"cpu": 1, "mem": 0}
    assert dict(a.nonzero()) == {"cpu": 1}
    assert len(a) == 2
    assert a != {"cpu": Decimal(1)}
    assert repr(a) == "ResourceSlot(cpu=1, mem=0)"


def test_negative_differences_are_seen() -> None:
    assert ResourceSlot.parse({"cpu": 1}) - ResourceSlot.parse({"mem": 1}) == ResourceSlot(
        {"cpu": Decimal(1), "mem": Decimal(-1)}
    )


def test_infinity_is_a_quantity() -> None:
    a = ResourceSlot.parse({"cpu": "Infinity"})
    assert a["cpu"] == INFINITY
    assert a.to_json() == {"cpu": "Infinity"}
    assert ResourceSlot.parse({"cpu": 10**9}) <= a


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" 2 ", 2),
        ("0.5", Decimal("0.5")),
        (0.1, Decimal("0.1")),
        (3, 3),
        ("1e3", 1000),
        ("1g", 2**30),
        ("1.5g", 3 * 2**29),
        ("512MiB", 2**29),
        ("512mb", 2**29),
        ("1k", 1024),
        ("100 bytes", 100),
        (BinarySize(2**30), 2**30),
        ("inf", INFINITY),
    ],
)
def test_quantities_are_read(text: str | float, value: Decimal | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-1",
        "nan",
        "NaN",
        "one",
        "1.2.3",
        "-inf",
        "-Infinity",
        "1x",
        "0x10",
        "1" * 65,
        True,
        "1e20",
        "1e-7",
        "200e",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        parse_quantity(text)


def test_a_size_is_a_whole_number_of_bytes() -> None:
    with pytest.raises(InvalidQuantity):
        parse_quantity("1.5", is_bytes=True)
    with pytest.raises(InvalidQuantity):
        parse_quantity("0.0001k")
    with pytest.raises(InvalidQuantity, match="mem: "):
        ResourceSlot.parse({"cpu": "0.5", "mem": "0.5"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1.500", "1.5"),
        ("100", "100"),
        ("0", "0"),
        ("1E+3", "1000"),
        ("Infinity", "Infinity"),
        ("-Infinity", "-Infinity"),
    ],
)
def test_quantities_are_written_plainly(value: str, text: str) -> None:
    assert format_quantity(Decimal(value)) == text


@given(st.integers(0, 2**80))
def test_sizes_are_read_as_they_are_written(value: int) -> None:
    assert BinarySize.parse(str(BinarySize(value))) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1023, "1023"), (1024, "1k"), (1025, "1025"), (2**30, "1g"), (3 * 2**29, "1.5g"), (2**80, "1y")],
)
def test_sizes_are_written_short_but_exact(value: int, text: str) -> None:
    assert str(BinarySize(value)) == text
    assert repr(BinarySize(value)) == f"BinarySize('{text}')"


@pytest.mark.parametrize("text", ["", "-1", "m", "1.0001k", "1z1", True, -1, "9" * 70])
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(InvalidQuantity):
        BinarySize.parse(text)
