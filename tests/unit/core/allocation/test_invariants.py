"""What holds of every alloc map after every sequence of calls."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.devices import AllocationStrategy, AllocMapSpec, ComputeDevice, DeviceAllocation
from ai.backend.common.errors import ResourceError
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.core.allocation.build import build_alloc_map
from tests.unit.core.allocation.builders import device, slot

Amounts = dict[tuple[SlotName, DeviceId], Decimal]
A, B = SlotName("x.a"), SlotName("x.b")


@st.composite
def machines(draw: st.DrawFn) -> tuple[str, Decimal, list[ComputeDevice]]:
    kind = draw(st.sampled_from(["discrete", "fractional"]))
    quantum = Decimal("0.05") if kind == "fractional" else Decimal(1)
    group = draw(st.sampled_from([None, "g"]))
    devices = []
    for i in range(draw(st.integers(1, 5))):
        amounts = [draw(st.integers(0, 40)) * quantum for _ in range(2)]
        slots = [slot(A, str(amounts[0]), str(quantum), group), slot(B, str(amounts[1]), str(quantum), group)]
        numa = draw(st.sampled_from([None, 0, 1]))
        devices.append(device(f"d{i}", *slots, numa=numa, healthy=draw(st.integers(0, 5)) > 0))
    return kind, quantum, devices


@given(
    machines(),
    st.sampled_from(AllocationStrategy),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.booleans()), max_size=12),
)
def test_every_sequence_keeps_the_books(
    machine: tuple[str, Decimal, list[ComputeDevice]],
    strategy: AllocationStrategy,
    numa: bool,
    calls: list[tuple[int, int, bool]],
) -> None:
    kind, quantum, devices = machine
    spec = AllocMapSpec(kind=kind, strategy=strategy, prefer_single_numa_node=numa)
    alloc_map = build_alloc_map(spec, devices)
    fresh = alloc_map.snapshot()
    amounts = {(s.slot_name, d.device_id): s.amount for d in devices for s in d.slots}
    healthy = {d.device_id for d in devices if d.health == "healthy"}
    held: list[DeviceAllocation] = []
    for a, b, free_one in calls:
        before = alloc_map.snapshot()
        request = {A: a * quantum, B: b * quantum}
        try:
            given_ = alloc_map.allocate(request)
        except ResourceError:
            assert alloc_map.snapshot() == before, "a refusal changes nothing"
        else:
            assert {s: given_.total(s) for s in (A, B)} == request, "sums match"
            assert given_.device_ids() <= healthy
            assert all(q > 0 for per in given_.slots.values() for q in per.values())
            if kind == "fractional":
                check_shares(given_, amounts, healthy, quantum)
            alloc_map.free(given_)
            assert alloc_map.snapshot() == before, "free restores exactly"
            alloc_map.apply(given_)
            held.append(given_)
        if free_one and held:
            alloc_map.free(held.pop(0))
        check_books(held, amounts, exclusive=devices[0].slots[0].exclusive_group is not None)
        left = {s: alloc_map.totals[s] - alloc_map.available()[s] for s in (A, B)}
        if devices[0].slots[0].exclusive_group is None:
            assert left == {s: sum((h.total(s) for h in held), Decimal(0)) for s in (A, B)}
    for allocation in held:
        alloc_map.free(allocation)
    assert alloc_map.snapshot() == fresh


def check_books(held: list[DeviceAllocation], amounts: Amounts, *, exclusive: bool) -> None:
    used: Amounts = {}
    for allocation in held:
        for name, per in allocation.slots.items():
            for device_id, quantity in per.items():
                used[name, device_id] = used.get((name, device_id), Decimal(0)) + quantity
    assert all(quantity <= amounts[key] for key, quantity in used.items()), "never over the amount"
    if exclusive:
        taken = [device_id for _, device_id in used]
        assert len(taken) == len(set(taken)), "exclusive slots never overlap"


def check_shares(allocation: DeviceAllocation, amounts: Amounts, healthy: set[DeviceId], quantum: Decimal) -> None:
    for name, per in allocation.slots.items():
        largest = max(amount for (s, d), amount in amounts.items() if s == name and d in healthy)
        if sum(per.values()) <= largest:
            assert len(per) == 1, "what one device can hold is never split"
        assert max(per.values()) - min(per.values()) <= quantum, "shares are equal"
