"""Partitions that are cut when they are given: their devices' counters bound what is given together."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from ai.backend.common.devices import AllocationStrategy, AllocMapSpec, ComputeDevice, DeviceAllocation, DeviceSlot
from ai.backend.common.errors import InsufficientResource, InvalidAllocation
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices

COSTS = {"1g": (1, 5), "2g": (2, 10), "3g": (3, 20), "7g": (7, 40)}
"""Compute and memory of the profiles of a GPU with seven compute slices and 40 GiB."""


def partition_slot(profile: str, amount: int, *, costs: tuple[int, int] | None = None) -> DeviceSlot:
    counters = () if costs is None else (("compute", costs[0]), ("memory", costs[1]))
    return DeviceSlot(
        slot_name=SlotName(f"gpu.{profile}"),
        slot_type=SlotType.UNIQUE,
        amount=Decimal(amount),
        exclusive_group="cut" if counters else None,
        counters=counters,
    )


def gpu(name: str, *, whole: bool = True, compute: int = 7, memory: int = 40) -> ComputeDevice:
    slots = [partition_slot(profile, 7, costs=costs) for profile, costs in COSTS.items()]
    if whole:
        slots.append(
            DeviceSlot(
                slot_name=SlotName("gpu.device"), slot_type=SlotType.COUNT, amount=Decimal(1), exclusive_group="cut"
            )
        )
    return ComputeDevice(
        device_name=DeviceName("gpu"),
        device_id=DeviceId(name),
        hw_location="",
        slots=tuple(slots),
        counters=(("compute", compute), ("memory", memory)),
    )


def existing(name: str, profile: str) -> ComputeDevice:
    return ComputeDevice(
        device_name=DeviceName("gpu"),
        device_id=DeviceId(name),
        hw_location="",
        slots=(partition_slot(profile, 1),),
        parent_id=DeviceId(name.partition("/")[0]),
    )


def allocator(*devices: ComputeDevice, kind: str = "discrete", strategy: str = "evenly") -> NodeAllocator:
    spec = AllocMapSpec(kind=kind, strategy=AllocationStrategy(strategy))
    return NodeAllocator.from_devices((PluginDevices(name=DeviceName("gpu"), devices=devices, alloc_map=spec),))


def take(node: NodeAllocator, profile: str) -> str:
    (device_id,) = node.allocate(ResourceSlot({f"gpu.{profile}": Decimal(1)})).device_ids()
    return device_id


def test_counters_bound_what_is_cut_of_one_device() -> None:
    node = allocator(gpu("a"))
    assert node.available()["gpu.1g"] == 7
    assert node.available()["gpu.3g"] == 2
    take(node, "3g")
    assert [int(node.available()[f"gpu.{profile}"]) for profile in ("1g", "2g", "3g")] == [4, 2, 1]
    take(node, "3g")
    with pytest.raises(InsufficientResource):
        take(node, "1g")  # one compute slice is left, and no memory


def test_a_whole_device_and_its_partitions_exclude_each_other() -> None:
    node = allocator(gpu("a"))
    held = node.allocate(ResourceSlot({"gpu.device": Decimal(1)}))
    with pytest.raises(InsufficientResource):
        take(node, "1g")
    node.free(held)
    take(node, "1g")
    with pytest.raises(InsufficientResource):
        take(node, "device")
    take(node, "2g")


@pytest.mark.parametrize("kind", ["discrete", "fractional"])
@pytest.mark.parametrize("strategy", ["evenly", "fill", "least-fragmentation"])
def test_what_is_cut_comes_from_the_fullest_device(kind: str, strategy: str) -> None:
    """So that whole devices and large partitions stay possible, whatever the strategy of the plugin."""
    node = allocator(gpu("a"), gpu("b"), kind=kind, strategy=strategy)
    assert {take(node, "1g") for _ in range(3)} == {"a"}
    assert take(node, "7g") == "b"


@pytest.mark.parametrize("strategy", ["evenly", "fill", "least-fragmentation"])
def test_a_partition_that_exists_is_given_before_one_is_cut(strategy: str) -> None:
    node = allocator(gpu("a", compute=6, memory=35), existing("b/1", "1g"), strategy=strategy)
    assert [take(node, "1g"), take(node, "1g")] == ["b/1", "a"]


def cut_gpu(name: str, *partition_ids: str) -> ComputeDevice:
    return replace(
        gpu(name), numa_node=0, partition_ids=tuple(DeviceId(partition_id) for partition_id in partition_ids)
    )


def test_what_is_held_of_a_partition_is_held_of_its_device() -> None:
    node = allocator(gpu("a"), cut_gpu("b", "b/0", "b/1", "b/2"))
    held = DeviceAllocation(slots={SlotName("gpu.3g"): {DeviceId("b/0"): Decimal(1), DeviceId("b/1"): Decimal(1)}})
    assert node.adopt(ResourceSlot({"gpu.3g": Decimal(2)}), held) == held
    assert node.numa_nodes(held) == {0}
    assert [int(node.available()[f"gpu.{profile}"]) for profile in ("1g", "3g", "device")] == [7, 2, 1]
    with pytest.raises(InvalidAllocation):  # one compute slice is left of b, and no memory
        node.apply(DeviceAllocation(slots={SlotName("gpu.1g"): {DeviceId("b/2"): Decimal(1)}}))
    node.free(held)
    assert node.available() == allocator(gpu("a"), gpu("b")).available()


def test_what_nobody_holds_of_a_partition_leaves_the_device_whole() -> None:
    node = allocator(cut_gpu("b", "b/0"))
    assert take(node, "device") == "b"
    with pytest.raises(InvalidAllocation):
        node.apply(DeviceAllocation(slots={SlotName("gpu.1g"): {DeviceId("b/0"): Decimal(1)}}))


def test_a_plan_that_counters_do_not_allow_is_refused_whole() -> None:
    node = allocator(gpu("a"))
    plan = DeviceAllocation(
        slots={SlotName(f"gpu.{p}"): {DeviceId("a"): Decimal(n)} for p, n in (("3g", 1), ("2g", 2), ("1g", 1))}
    )
    with pytest.raises(InvalidAllocation):
        node.apply(plan)
    assert node.available() == allocator(gpu("a")).available()


def test_counters_that_a_device_lacks_are_refused() -> None:
    broken = ComputeDevice(
        device_name=DeviceName("gpu"),
        device_id=DeviceId("a"),
        hw_location="",
        slots=(partition_slot("1g", 7, costs=(1, 5)),),
    )
    with pytest.raises(InvalidAllocation, match="counters"):
        allocator(broken)


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_taking_and_freeing_exceeds_a_counter(seed: int) -> None:
    rng = random.Random(seed)
    devices = [gpu(name) for name in "abc"]
    node = allocator(*devices, strategy=rng.choice(["evenly", "fill"]))
    empty = node.available()
    held: list[DeviceAllocation] = []
    for _ in range(400):
        if held and rng.random() < 0.45:
            node.free(held.pop(rng.randrange(len(held))))
        else:
            request = ResourceSlot({f"gpu.{rng.choice([*COSTS, 'device'])}": Decimal(1)})
            before = node.available()
            try:
                held.append(node.allocate(request))
            except InsufficientResource:
                assert node.available() == before
        used: dict[str, list[int]] = {}
        for allocation in held:
            for slot, per_device in allocation.slots.items():
                for device_id, amount in per_device.items():
                    cost = COSTS.get(slot.removeprefix("gpu."), (7, 40))
                    total = used.setdefault(device_id, [0, 0])
                    total[0] += cost[0] * int(amount)
                    total[1] += cost[1] * int(amount)
        assert all(compute <= 7 and memory <= 40 for compute, memory in used.values())
        copy = node.clone()
        assert copy.available() == node.available()
    for allocation in held:
        node.free(allocation)
    assert node.available() == empty
