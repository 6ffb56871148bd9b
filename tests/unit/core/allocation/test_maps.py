"""The stock alloc maps: golden cases that a reader can check by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ai.backend.common.devices import AllocationStrategy, AllocMapSpec
from ai.backend.common.errors import (
    InsufficientResource,
    InvalidAllocation,
    InvalidInput,
    InvalidQuantity,
    NotMultipleOfQuantum,
    ResourceError,
    UnsupportedResource,
)
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.stock_maps import DiscreteAllocMap, FractionalAllocMap, build_alloc_map
from tests.unit.core.allocation.builders import alloc, device, plain, slot, want

FILL, EVENLY, TIGHT = AllocationStrategy.FILL, AllocationStrategy.EVENLY, AllocationStrategy.LEAST_FRAGMENTATION


# amounts of devices a, b, c ... | already used | request | strategy | expected parts
DISCRETE = [
    ([4, 4, 4], [0, 0, 0], 3, EVENLY, {"a": 1, "b": 1, "c": 1}),
    ([4, 4, 4], [0, 0, 0], 4, EVENLY, {"a": 2, "b": 1, "c": 1}),
    ([4, 4, 4], [0, 0, 0], 1, EVENLY, {"a": 1}),
    ([4, 4, 4], [3, 0, 0], 9, EVENLY, {"a": 1, "b": 4, "c": 4}),
    ([4, 4, 4], [1, 0, 2], 1, EVENLY, {"b": 1}),
    ([1, 1, 1, 1], [1, 0, 0, 1], 2, EVENLY, {"b": 1, "c": 1}),
    ([4, 4, 4], [0, 0, 0], 3, FILL, {"a": 3}),
    ([4, 4, 4], [1, 0, 0], 5, FILL, {"b": 4, "c": 1}),
    ([4, 4, 4], [1, 0, 2], 2, TIGHT, {"c": 2}),
    ([4, 4, 4], [1, 0, 2], 6, TIGHT, {"b": 4, "c": 2}),
    ([4, 4, 4], [1, 0, 2], 9, TIGHT, {"a": 3, "b": 4, "c": 2}),
]


@pytest.mark.parametrize(("amounts", "used", "request_", "strategy", "expected"), DISCRETE)
def test_discrete(
    amounts: list[int], used: list[int], request_: int, strategy: AllocationStrategy, expected: dict[str, int]
) -> None:
    devices = [device(chr(97 + i), slot("x", amount)) for i, amount in enumerate(amounts)]
    alloc_map = DiscreteAllocMap(devices, strategy=strategy)
    for i, quantity in enumerate(used):
        if quantity:
            alloc_map.apply(alloc({"x": {chr(97 + i): quantity}}))
    assert plain(alloc_map.allocate(want(x=request_))) == {"x": {d: str(n) for d, n in expected.items()}}


# amounts | used | request | strategy | expected parts, or None if it does not fit
FRACTIONAL: list[tuple[list[str], list[str], str, AllocationStrategy, dict[str, str] | None]] = [
    (["1", "1"], ["0", "0"], "0.3", EVENLY, {"a": "0.3"}),
    (["1", "1"], ["0.3", "0"], "0.3", EVENLY, {"b": "0.3"}),
    (["1", "1"], ["0.3", "0"], "0.3", FILL, {"a": "0.3"}),
    (["1", "1"], ["0.3", "0.5"], "0.5", TIGHT, {"b": "0.5"}),
    (["1", "1"], ["0.5", "0.5"], "1", EVENLY, None),
    (["1", "1"], ["0", "0"], "1.5", EVENLY, {"a": "0.8", "b": "0.7"}),
    (["1", "1", "1"], ["0.5", "0", "0"], "2", EVENLY, {"b": "1.0", "c": "1.0"}),
    (["1", "1", "1"], ["0.5", "0.2", "0"], "1.5", EVENLY, {"c": "0.8", "b": "0.7"}),
    (["1", "1", "1"], ["0.5", "0.5", "0.5"], "1.5", EVENLY, {"a": "0.5", "b": "0.5", "c": "0.5"}),
    (["1", "1", "1"], ["0.7", "0.5", "0.5"], "1.3", EVENLY, None),
    (["2", "1", "1"], ["1", "0", "0"], "2", EVENLY, None),
    (["2", "1", "1"], ["1", "0", "0"], "3", EVENLY, {"a": "1.0", "b": "1.0", "c": "1.0"}),
]


@pytest.mark.parametrize(("amounts", "used", "request_", "strategy", "expected"), FRACTIONAL)
def test_fractional(
    amounts: list[str], used: list[str], request_: str, strategy: AllocationStrategy, expected: dict[str, str] | None
) -> None:
    devices = [device(chr(97 + i), slot("x.shares", amount, "0.1")) for i, amount in enumerate(amounts)]
    alloc_map = FractionalAllocMap(devices, strategy=strategy)
    for i, quantity in enumerate(used):
        if Decimal(quantity):
            alloc_map.apply(alloc({"x.shares": {chr(97 + i): quantity}}))
    if expected is None:
        before = alloc_map.snapshot()
        with pytest.raises(InsufficientResource) as e:
            alloc_map.allocate(want(x_shares=request_))
        assert e.value.data["slot"] == "x.shares"
        assert alloc_map.snapshot() == before
    else:
        assert plain(alloc_map.allocate(want(x_shares=request_))) == {"x.shares": expected}


def test_a_quantity_off_the_grid_is_refused() -> None:
    alloc_map = FractionalAllocMap([device("a", slot("x", 1, "0.1"))])
    with pytest.raises(NotMultipleOfQuantum):
        alloc_map.allocate(want(x="0.25"))
    with pytest.raises(NotMultipleOfQuantum):
        DiscreteAllocMap([device("a", slot("x", 4))]).allocate(want(x="1.5"))


@pytest.mark.parametrize("quantity", ["-1", "Infinity", "NaN"])
def test_nonsense_quantities_are_refused(quantity: str) -> None:
    with pytest.raises(InvalidQuantity):
        DiscreteAllocMap([device("a", slot("x", 4))]).allocate(want(x=quantity))


def test_an_unknown_slot_is_refused_unless_nothing_of_it_is_asked() -> None:
    alloc_map = DiscreteAllocMap([device("a", slot("x", 4))])
    with pytest.raises(UnsupportedResource) as e:
        alloc_map.allocate(want(y=1))
    assert e.value.data["slot"] == "y"
    assert plain(alloc_map.allocate(want(y=0))) == {}


def test_an_amount_is_rounded_down_to_the_quantum() -> None:
    assert DiscreteAllocMap([device("a", slot("x", "2.9"))]).totals == want(x=2)


def test_a_unique_slot_is_given_one_at_a_time_from_one_device() -> None:
    devices = [device(d, slot("x:10g", 2, kind=SlotType.UNIQUE)) for d in "ab"]
    for kind in ("discrete", "fractional"):
        alloc_map = build_alloc_map(AllocMapSpec(kind=kind), devices)
        with pytest.raises(InvalidQuantity):
            alloc_map.allocate({**want(), devices[0].slots[0].slot_name: Decimal(2)})
        for _ in range(4):
            given = alloc_map.allocate({devices[0].slots[0].slot_name: Decimal(1)})
            assert [len(per) for per in given.slots.values()] == [1]
        with pytest.raises(InsufficientResource):
            alloc_map.allocate({devices[0].slots[0].slot_name: Decimal(1)})


def test_exclusive_slots_hide_each_other_on_one_device_only() -> None:
    devices = [device(d, slot("x.device", 1, group="mode"), slot("x.shares", 10, group="mode")) for d in "ab"]
    alloc_map = DiscreteAllocMap(devices, strategy=FILL)
    shares = alloc_map.allocate(want(x_shares=3))
    assert plain(shares) == {"x.shares": {"a": "3"}}
    assert alloc_map.available() == want(x_device=1, x_shares=17)
    assert plain(alloc_map.allocate(want(x_device=1))) == {"x.device": {"b": "1"}}
    with pytest.raises(InsufficientResource):
        alloc_map.allocate(want(x_device=1))
    with pytest.raises(InvalidAllocation):
        alloc_map.apply(alloc({"x.device": {"a": 1}}))
    alloc_map.free(shares)
    assert plain(alloc_map.allocate(want(x_device=1))) == {"x.device": {"a": "1"}}


def test_one_request_for_two_exclusive_slots_uses_two_devices_or_fails_whole() -> None:
    devices = [device(d, slot("x.device", 1, group="mode"), slot("x.shares", 10, group="mode")) for d in "ab"]
    both = plain(DiscreteAllocMap(devices).allocate(want(x_device=1, x_shares=10)))
    assert both["x.device"].keys().isdisjoint(both["x.shares"])
    lonely = DiscreteAllocMap(devices[:1])
    with pytest.raises(InsufficientResource):
        lonely.allocate(want(x_device=1, x_shares=1))
    assert lonely.available() == lonely.totals


def test_an_unhealthy_device_gives_nothing_but_keeps_what_it_gave() -> None:
    alloc_map = DiscreteAllocMap([device("a", slot("x"), healthy=False), device("b", slot("x"))])
    assert alloc_map.totals == want(x=1)
    held = alloc({"x": {"a": 1}})
    alloc_map.apply(held)
    assert plain(alloc_map.allocate(want(x=1))) == {"x": {"b": "1"}}
    alloc_map.free(held)
    with pytest.raises(InsufficientResource):
        alloc_map.allocate(want(x=1))


NUMA = [device(f"{node}{i}", slot("x"), numa=node) for node in (0, 1) for i in range(3)]


@pytest.mark.parametrize("strategy", AllocationStrategy)
def test_one_numa_node_is_preferred(strategy: AllocationStrategy) -> None:
    alloc_map = DiscreteAllocMap(NUMA, strategy=strategy)
    alloc_map.apply(alloc({"x": {"00": 1}}))
    assert plain(alloc_map.allocate(want(x=3))) == {"x": {"10": "1", "11": "1", "12": "1"}}


def test_a_hint_is_followed_where_it_fits_and_never_fails() -> None:
    hint = AffinityHint(numa_nodes=frozenset({1}))
    alloc_map = DiscreteAllocMap(NUMA)
    assert set(plain(alloc_map.allocate(want(x=2), hint=hint))["x"]) == {"10", "11"}
    assert set(plain(alloc_map.allocate(want(x=2), hint=hint))["x"]) == {"00", "01"}
    fractional = FractionalAllocMap(NUMA)
    assert set(plain(fractional.allocate(want(x=1), hint=hint))["x"]) == {"10"}
    assert set(plain(fractional.allocate(want(x=3), hint=hint))["x"]) == {"00", "01", "02"}


def test_fill_leaves_whole_nodes_free() -> None:
    alloc_map = DiscreteAllocMap(NUMA, strategy=FILL)
    alloc_map.apply(alloc({"x": {"00": 1}}))
    assert set(plain(alloc_map.allocate(want(x=2)))["x"]) == {"01", "02"}


def test_a_request_larger_than_a_node_takes_as_few_nodes_as_possible() -> None:
    devices = [device(f"n{n}", slot("x", amount), numa=n) for n, amount in enumerate([1, 4, 2, 1])]
    assert set(plain(DiscreteAllocMap(devices).allocate(want(x=6)))["x"]) == {"n1", "n2"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"y": {"a": 1}},
        {"x": {"z": 1}},
        {"x": {"a": 5}},
        {"x": {"a": "0.5"}},
        {"x": {"a": -1}},
        {"x": {"a": 1, "z": 1}},
    ],
)
def test_a_wrong_allocation_changes_nothing(wrong: dict[str, dict[str, str | int]]) -> None:
    alloc_map = DiscreteAllocMap([device("a", slot("x", 4)), device("b", slot("x", 4))])
    held = alloc({"x": {"a": 1}})
    alloc_map.apply(held)
    before = alloc_map.snapshot()
    for action in (alloc_map.apply, alloc_map.free):
        with pytest.raises(InvalidAllocation):
            action(alloc(wrong))
        assert alloc_map.snapshot() == before


def test_contradicting_devices_are_refused() -> None:
    with pytest.raises(InvalidAllocation):
        DiscreteAllocMap([device("a", slot("x")), device("a", slot("x"))])
    with pytest.raises(InvalidAllocation):
        DiscreteAllocMap([device("a", slot("x")), device("b", slot("x", 1, "0.1"))])
    with pytest.raises(InvalidAllocation):
        DiscreteAllocMap([device("a", slot("x", "-1"))])


def test_an_unknown_kind_of_map_is_refused() -> None:
    with pytest.raises(InvalidInput):
        build_alloc_map(AllocMapSpec(kind="magic"), [])


def test_bytes_beyond_float_precision_are_exact() -> None:
    amount = 2**70 + 1
    alloc_map = DiscreteAllocMap([device("a", slot("mem", amount, kind=SlotType.BYTES))], strategy=FILL)
    alloc_map.allocate(want(mem=amount - 1))
    assert alloc_map.available() == want(mem=1)


def test_errors_are_resource_errors_that_name_the_slot() -> None:
    alloc_map = DiscreteAllocMap([device("a", slot("x", 4))])
    with pytest.raises(ResourceError, match="needs 5 x; 4 free") as e:
        alloc_map.allocate(want(x=5))
    assert e.value.data == {"slot": "x", "requested": "5", "available": "4"}


def test_a_refusal_says_what_was_looked_for() -> None:
    alloc_map = FractionalAllocMap([device(d, slot("x", 1, "0.1")) for d in "abc"])
    alloc_map.apply(alloc({"x": {"a": "0.7", "b": "0.5", "c": "0.5"}}))
    with pytest.raises(
        InsufficientResource, match=r"needs 0\.6 x on one device; 1\.3 free, at most 0\.5 on one device"
    ):
        alloc_map.allocate(want(x="0.6"))
    with pytest.raises(InsufficientResource, match=r"needs 1\.3 x in equal shares; 1\.3 free, at most 0\.5 on one"):
        alloc_map.allocate(want(x="1.3"))


@pytest.mark.parametrize(
    ("amount", "quantum"),
    [
        ("NaN", 1),
        ("sNaN", 1),
        ("Infinity", 1),
        ("-1", 1),
        ("1E+999999", 1),
        ("1E+30", 1),
        (1, "NaN"),
        (1, 0),
        (1, "-1"),
        (1, "Infinity"),
        (1, "1E-999999"),
    ],
)
def test_what_a_device_cannot_offer_is_refused(amount: str | int, quantum: str | int) -> None:
    with pytest.raises(InvalidAllocation, match="malformed"):
        DiscreteAllocMap([device("a", slot("x", amount, quantum))])


@pytest.mark.parametrize("quantity", ["sNaN", "1E+999999", "1E-999999", "1E+30"])
def test_what_no_device_can_give_is_refused(quantity: str) -> None:
    alloc_map = DiscreteAllocMap([device("a", slot("x", 4))])
    with pytest.raises((InvalidQuantity, NotMultipleOfQuantum)):
        alloc_map.allocate(want(x=quantity))
    for call in (alloc_map.apply, alloc_map.free):
        with pytest.raises(InvalidAllocation):
            call(alloc({"x": {"a": quantity}}))
