"""All plugins of a node at once."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceAllocation
from ai.backend.common.errors import InsufficientResource, InvalidAllocation, ResourceError, UnsupportedResource
from ai.backend.common.ids import DeviceName
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices, order_plugins, without_placeholders
from ai.backend.core.allocation.stock_maps import ANY_DEVICE, DiscreteAllocMap
from tests.unit.core.allocation.builders import alloc, device, plain, slot

DISCRETE = AllocMapSpec(kind="discrete")


def plugin(name: str, *devices: ComputeDevice, spec: AllocMapSpec | None = DISCRETE) -> PluginDevices:
    return PluginDevices(name=DeviceName(name), devices=devices, alloc_map=spec)


def node() -> NodeAllocator:
    """Two NUMA nodes with 4 cores, 2 accelerators and 100 bytes each."""
    return NodeAllocator.from_devices(
        [
            plugin("mem", *(device(f"m{n}", slot("mem", 100), numa=n) for n in (0, 1))),
            plugin("cpu", *(device(f"{n * 4 + i}", slot("cpu"), numa=n) for n in (0, 1) for i in range(4))),
            plugin("cuda", *(device(f"{n * 2 + i}", slot("cuda.device"), numa=n) for n in (0, 1) for i in range(2))),
            plugin("zoo", device("z", slot("zoo.device", 5)), spec=None),
        ]
    )


def req(**slots: int) -> ResourceSlot:
    return ResourceSlot.parse({name.replace("_", "."): q for name, q in slots.items()})


def test_the_order_of_plugins_is_total() -> None:
    assert order_plugins(["mem", "cpu", "zoo", "atom", "cuda"], ["cuda", "rocm"]) == [
        "cuda",
        "atom",
        "zoo",
        "cpu",
        "mem",
    ]
    assert order_plugins(["mem", "atom", "cpu"], ["mem"]) == ["mem", "atom", "cpu"]


@given(st.lists(st.text(max_size=3), unique=True), st.lists(st.text(max_size=3)), st.randoms())
def test_the_order_of_any_plugins_is_total(names: list[str], order: list[str], random: Random) -> None:
    ordered = order_plugins(names, order)
    assert sorted(ordered) == sorted(names)
    random.shuffle(names)
    assert order_plugins(names, order) == ordered
    named = [name for name in ordered if name in order]
    assert ordered[: len(named)] == named == sorted(named, key=order.index)


@given(
    st.dictionaries(st.sampled_from(["cpu", "mem", "cuda.device"]), st.integers(1, 4), min_size=1),
    st.lists(st.integers(0, 7), max_size=6, unique=True),
    st.lists(st.integers(0, 3), max_size=3, unique=True),
    st.integers(0, 100),
)
def test_one_node_serves_all_of_a_request_if_one_can(
    request: dict[str, int], cores: list[int], cards: list[int], memory: int
) -> None:
    allocator = node()
    allocator.apply(alloc({"cpu": {str(i): 1 for i in cores}, "cuda.device": {str(i): 1 for i in cards}}))
    if memory:
        allocator.apply(alloc({"mem": {"m0": memory}}))
    free = [
        {
            "cpu": 4 - sum(i // 4 == n for i in cores),
            "cuda.device": 2 - sum(i // 2 == n for i in cards),
            "mem": 100 - memory * (n == 0),
        }
        for n in (0, 1)
    ]
    possible = any(all(room[slot] >= quantity for slot, quantity in request.items()) for room in free)
    before = allocator.snapshot()
    try:
        given_ = allocator.allocate(ResourceSlot.parse(request))
    except InsufficientResource:
        assert not possible
        assert allocator.snapshot() == before
    else:
        assert (len(allocator.numa_nodes(given_)) == 1) == possible
        allocator.free(given_)
        assert allocator.snapshot() == before


def test_a_whole_request_lands_on_one_numa_node() -> None:
    allocator = node()
    allocator.apply(alloc({"cuda.device": {"0": 1}}))
    given_ = allocator.allocate(req(cpu=3, mem=50, cuda_device=2))
    assert plain(given_) == {
        "cuda.device": {"2": "1", "3": "1"},
        "cpu": {"4": "1", "5": "1", "6": "1"},
        "mem": {"m1": "50"},
    }
    assert allocator.numa_nodes(given_) == {1}


def test_the_first_plugin_yields_when_the_others_fit_better_elsewhere() -> None:
    allocator = node()
    allocator.apply(alloc({"cpu": {"0": 1, "1": 1}}))
    given_ = allocator.allocate(req(cpu=4, cuda_device=1))
    assert allocator.numa_nodes(given_) == {1}


def test_affinity_never_makes_a_request_fail() -> None:
    allocator = node()
    given_ = allocator.allocate(req(cpu=6, mem=150, cuda_device=3))
    assert allocator.numa_nodes(given_) == {0, 1}
    assert given_.total(next(s for s in given_.slots if s == "mem")) == 150


def test_a_failure_takes_nothing() -> None:
    allocator = node()
    before = allocator.available()
    with pytest.raises(InsufficientResource):
        allocator.allocate(req(cpu=1, mem=50, cuda_device=5))
    with pytest.raises(UnsupportedResource, match=r"tpu\.device") as e:
        allocator.allocate(req(cpu=1, tpu_device=1))
    assert e.value.data["slot"] == "tpu.device"
    assert allocator.available() == before


def test_an_unknown_slot_of_zero_is_no_error() -> None:
    assert plain(node().allocate(req(cpu=1, tpu_device=0))) == {"cpu": {"0": "1"}}


def test_a_plugin_with_a_map_of_its_own_is_counted_and_left_out_of_the_plan() -> None:
    allocator = node()
    given_ = allocator.allocate(req(cpu=1, zoo_device=5))
    assert plain(given_)["zoo.device"] == {ANY_DEVICE: "5"}
    assert plain(without_placeholders(given_)) == {"cpu": {"0": "1"}}
    with pytest.raises(InsufficientResource):
        allocator.allocate(req(zoo_device=1))


def test_two_plugins_may_not_offer_one_slot() -> None:
    with pytest.raises(InvalidAllocation):
        NodeAllocator(
            {"a": DiscreteAllocMap([device("0", slot("x"))]), "b": DiscreteAllocMap([device("0", slot("x"))])}
        )


def test_a_plan_is_bound_as_it_is_while_it_can_be() -> None:
    allocator = node()
    plan = alloc({"cuda.device": {"3": 1}, "cpu": {"7": 1}})
    bound = allocator.verify_or_rebind(req(cuda_device=1, cpu=1, mem=10, zoo_device=2), plan)
    assert plain(bound) == {
        "cuda.device": {"3": "1"},
        "cpu": {"7": "1"},
        "mem": {"m1": "10"},
        "zoo.device": {ANY_DEVICE: "2"},
    }


def test_a_plan_that_the_devices_outran_is_bound_to_equivalent_ones() -> None:
    allocator = node()
    allocator.apply(alloc({"cuda.device": {"3": 1}}))
    bound = allocator.verify_or_rebind(req(cuda_device=1), alloc({"cuda.device": {"3": 1}}))
    assert plain(bound)["cuda.device"].keys().isdisjoint({"3"})
    gone = allocator.verify_or_rebind(req(cuda_device=1), alloc({"cuda.device": {"no-such": 1}}))
    assert gone.total(next(iter(gone.slots))) == 1


def test_a_plan_on_a_device_that_failed_is_bound_elsewhere() -> None:
    devices = [device("a", slot("x"), healthy=False), device("b", slot("x"))]
    allocator = NodeAllocator.from_devices([plugin("x", *devices)])
    bound = allocator.verify_or_rebind(req(x=1), alloc({"x": {"a": 1}}))
    assert plain(bound) == {"x": {"b": "1"}}
    allocator.free(bound)
    assert allocator.available() == allocator.totals


def test_a_plan_with_two_slots_that_hide_each_other_is_kept() -> None:
    devices = [device(d, slot("x.device", group="g"), slot("x.shares", 10, group="g")) for d in "abc"]
    plan = alloc({"x.device": {"c": 1}, "x.shares": {"b": 10}})
    bound = NodeAllocator.from_devices([plugin("x", *devices)]).verify_or_rebind(req(x_device=1, x_shares=10), plan)
    assert bound == plan


def test_a_plan_that_cannot_be_bound_takes_nothing() -> None:
    allocator = node()
    allocator.apply(alloc({"cuda.device": {"0": 1, "1": 1, "2": 1, "3": 1}}))
    before = allocator.snapshot()
    with pytest.raises(InsufficientResource):
        allocator.verify_or_rebind(req(cuda_device=1), alloc({"cuda.device": {"0": 1}}))
    assert allocator.snapshot() == before


def test_a_plan_of_another_request_is_refused() -> None:
    with pytest.raises(InvalidAllocation):
        node().verify_or_rebind(req(cuda_device=2), alloc({"cuda.device": {"0": 1}}))
    with pytest.raises(InvalidAllocation):
        node().verify_or_rebind(req(cpu=1), alloc({"cuda.device": {"0": 1}}))


def test_what_was_there_before_is_adopted_as_well_as_possible() -> None:
    allocator = node()
    held = req(cuda_device=2, zoo_device=1, ghost_device=4)
    taken = allocator.adopt(held, alloc({"cuda.device": {"3": 1, "gone": 1}, "ghost.device": {"g": 4}}))
    assert taken.slots.keys() == {"cuda.device", "zoo.device"}
    assert plain(taken)["cuda.device"]["3"] == "1"
    assert allocator.available()["cuda.device"] == 2
    allocator.free(taken)
    assert allocator.available() == allocator.totals


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "cpu": st.integers(0, 9),
                "mem": st.integers(0, 210),
                "cuda.device": st.integers(0, 5),
                "zoo.device": st.integers(0, 6),
            },
        ),
        max_size=8,
    )
)
def test_sums_match_and_free_restores(requests: list[dict[str, int]]) -> None:
    allocator = node()
    fresh = allocator.snapshot()
    held: list[DeviceAllocation] = []
    for request in requests:
        want = ResourceSlot.parse(request)
        before = allocator.available()
        try:
            given_ = allocator.allocate(want)
        except ResourceError:
            assert not want <= before, "on discrete slots whatever is free can be had"
            assert allocator.available() == before
        else:
            assert allocator.available() == before - want
            held.append(given_)
    for given_ in held:
        allocator.free(given_)
    assert allocator.snapshot() == fresh
