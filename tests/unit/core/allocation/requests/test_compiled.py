"""Devices that a request selects, against all subsets of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceAllocation
from ai.backend.common.errors import InsufficientResource, InvalidInput, UnsupportedResource
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices
from ai.backend.core.allocation.requests.compiled import MAX_SETS, RequestCompiler
from tests.unit.core.allocation.builders import device, slot

SLOT = SlotName("x.device")
compile_request = RequestCompiler().compile


@dataclass(frozen=True)
class Case:
    devices: tuple[ComputeDevice, ...]
    taken: frozenset[int]
    least_memory: int
    same: bool
    distinct: bool
    bandwidth: int | None
    wanted: int

    @property
    def text(self) -> str:
        parts = [f"memory >= {self.least_memory}"] if self.least_memory else []
        parts += ["same(numa_node)"] * self.same + ["distinct(rack)"] * self.distinct
        parts += [f"link_bandwidth >= {self.bandwidth}"] * (self.bandwidth is not None)
        return " && ".join(parts) or "has(id)"

    def allows(self, chosen: Sequence[ComputeDevice]) -> bool:
        if any(one.memory_size < max(self.least_memory, 1 if self.least_memory else 0) for one in chosen):
            return False
        if self.same and (len({one.numa_node for one in chosen}) > 1 or any(one.numa_node is None for one in chosen)):
            return False
        racks = [_rack(one) for one in chosen]
        if self.distinct and (None in racks or len(set(racks)) < len(racks)):
            return False
        return self.bandwidth is None or all(
            max(_between(one, other), _between(other, one)) >= self.bandwidth for one, other in combinations(chosen, 2)
        )


def _rack(one: ComputeDevice) -> str | None:
    return next((prop.value for prop in one.variant_properties if prop.feature == "rack"), None)


def _between(one: ComputeDevice, other: ComputeDevice) -> float:
    return max([link.bandwidth_gib_s or 0 for link in one.links if link.peer == other.device_id], default=-1)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 7))
    made = []
    for number in range(count):
        peers = draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from([50, 100, 200]), max_size=count))
        rack = draw(st.sampled_from([None, "0", "1", "2"]))
        one = device(
            str(number),
            slot("x.device"),
            numa=draw(st.sampled_from([None, 0, 1])),
            links={str(peer): ("direct", bandwidth) for peer, bandwidth in peers.items() if peer != number},
            variants=[f"site::rack::{rack}"] if rack else [],
        )
        made.append(replace(one, memory_size=draw(st.sampled_from([0, 10, 20]))))
    return Case(
        devices=tuple(made),
        taken=frozenset(draw(st.sets(st.integers(0, count - 1)))),
        least_memory=draw(st.sampled_from([0, 10, 20])),
        same=draw(st.booleans()),
        distinct=draw(st.booleans()),
        bandwidth=draw(st.sampled_from([None, 100, 200])),
        wanted=draw(st.integers(1, 4)),
    )


def allocator_of(devices: Sequence[ComputeDevice]) -> NodeAllocator:
    plugin = PluginDevices(name=DeviceName("x"), devices=tuple(devices), alloc_map=AllocMapSpec(kind="discrete"))
    return NodeAllocator.from_devices([plugin])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_devices_are_given_exactly_where_some_set_of_free_ones_qualifies(case: Case) -> None:
    allocator = allocator_of(case.devices)
    taken = {case.devices[number].device_id: Decimal(1) for number in case.taken}
    if taken:
        allocator.apply(DeviceAllocation(slots={SLOT: taken}))
    free = [one for number, one in enumerate(case.devices) if number not in case.taken]
    possible = any(case.allows(chosen) for chosen in combinations(free, case.wanted))
    before = allocator.snapshot()
    request = ResourceSlot({SLOT: Decimal(case.wanted)})
    try:
        given_devices = allocator.allocate(request, device_request=compile_request(case.text))
    except (InsufficientResource, UnsupportedResource):
        assert not possible
        assert allocator.snapshot() == before
        return
    ids = given_devices.slots[SLOT].keys()
    assert case.allows([one for one in case.devices if one.device_id in ids])
    assert len(ids) == case.wanted
    assert not ids & taken.keys()
    allocator.free(given_devices)
    assert allocator.snapshot() == before


def numa_devices(*nodes: int) -> list[ComputeDevice]:
    return [device(str(number), slot("x.device"), numa=node) for number, node in enumerate(nodes)]


def test_a_small_set_is_used_before_a_large_one() -> None:
    allocator = allocator_of(numa_devices(0, 0, 0, 1, 1))
    given_devices = allocator.allocate(
        ResourceSlot({SLOT: Decimal(2)}), device_request=compile_request("same(numa_node)")
    )
    assert given_devices.slots[SLOT].keys() == {"3", "4"}


def test_the_refusal_names_the_constraint() -> None:
    allocator = allocator_of(numa_devices(0, 1))
    with pytest.raises(InsufficientResource, match=r"needs 2 x.device.*same\(numa_node\)"):
        allocator.allocate(ResourceSlot({SLOT: Decimal(2)}), device_request=compile_request("same(numa_node)"))


def test_the_refusal_tells_the_set_with_the_most_free() -> None:
    allocator = allocator_of(numa_devices(*[0] * 9, *[1] * 10))
    with pytest.raises(InsufficientResource, match=r"needs 12 x.device; 10 free"):
        allocator.allocate(ResourceSlot({SLOT: Decimal(12)}), device_request=compile_request("same(numa_node)"))


def test_a_plan_is_bound_if_it_meets_any_alternative_and_else_the_first_that_fits() -> None:
    allocator = allocator_of(numa_devices(0, 0, 1, 1))
    request = ResourceSlot({SLOT: Decimal(2)})
    alternatives = [compile_request("same(numa_node) && numa_node == 0"), compile_request("distinct(numa_node)")]

    def planned(*ids: str) -> DeviceAllocation:
        return DeviceAllocation(slots={SLOT: {DeviceId(name): Decimal(1) for name in ids}})

    bound = allocator.verify_or_rebind(request, planned("1", "2"), device_requests=alternatives)
    assert bound == planned("1", "2")
    allocator.free(bound)
    bound = allocator.verify_or_rebind(request, planned("2", "3"), device_requests=alternatives)
    assert bound == planned("0", "1")
    with pytest.raises(InsufficientResource):
        allocator.verify_or_rebind(request, DeviceAllocation(), device_requests=alternatives)


def test_cores_and_memory_are_not_concerned() -> None:
    cores = PluginDevices(
        name=DeviceName("cpu"), devices=(device("c", slot("cpu", 4)),), alloc_map=AllocMapSpec(kind="discrete")
    )
    gpus = PluginDevices(name=DeviceName("x"), devices=tuple(numa_devices(0)), alloc_map=AllocMapSpec(kind="discrete"))
    allocator = NodeAllocator.from_devices([cores, gpus])
    allocator.allocate(
        ResourceSlot({SLOT: Decimal(1), SlotName("cpu"): Decimal(1)}), device_request=compile_request("numa_node == 0")
    )


def test_many_ways_to_be_linked_are_bounded() -> None:
    count = 24  # of 8 groups of 3 whose members are apart: 6,561 maximal sets
    linked = [
        device(
            str(one),
            slot("x.device"),
            links={str(other): ("direct", 100.0) for other in range(count) if other // 3 != one // 3},
        )
        for one in range(count)
    ]
    request = compile_request("link_bandwidth >= 100")
    sets = request.select(linked, [{} for _ in linked]).sets
    assert sets is not None
    assert len(sets) == MAX_SETS
    allocated = allocator_of(linked).allocate(ResourceSlot({SLOT: Decimal(8)}), device_request=request)
    assert len({int(one) // 3 for one in allocated.slots[SLOT]}) == 8


def test_one_distinct_attribute_is_enough() -> None:
    with pytest.raises(InvalidInput, match="at most one distinct"):
        compile_request("distinct(a) && distinct(b)")


def test_equal_requests_are_equal_however_they_are_written() -> None:
    assert compile_request("40g<=memory&&same(rack)") == compile_request("memory >= 40g && same(rack)")
    assert compile_request('(model == "a" || model == "b") && same(rack)') != compile_request(
        'model == "a" || model == "b"'
    )
