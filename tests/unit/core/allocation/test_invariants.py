"""What holds of every alloc map after every sequence of calls, against a model that only adds and subtracts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ai.backend.common.devices import (
    AffinityPolicy,
    AllocationStrategy,
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    LinkKind,
)
from ai.backend.common.errors import InvalidAllocation, InvalidQuantity, ResourceError
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.stock_maps import build_alloc_map
from tests.unit.core.allocation.builders import device, slot

Place = tuple[SlotName, DeviceId]
A, B, M = SlotName("x.a"), SlotName("x.b"), SlotName("x.10g-mig")
"""Two countable slots and a unique one."""
SLOTS = (A, B, M)
IDS = [f"d{i}" for i in range(5)]
KINDS = [k.value for k in LinkKind]
NEAR = st.frozensets(st.sampled_from([0, 1]))
ELIGIBLE = st.none() | st.none() | st.frozensets(st.sampled_from([*map(DeviceId, IDS), DeviceId("no-such")]))


@st.composite
def devices_of(draw: st.DrawFn, quantum: Decimal) -> list[ComputeDevice]:
    """Of different sizes, on several nodes, some linked, some unhealthy, with or without slots that hide each other."""
    group = draw(st.sampled_from([None, "mode"]))
    found = []
    for name in IDS[: draw(st.integers(1, len(IDS)))]:
        a, b, m = draw(st.integers(0, 9)), draw(st.integers(0, 9)), draw(st.integers(0, 2))
        slots = [slot(A, str(a * quantum), str(quantum), group), slot(B, str(b * quantum), str(quantum), group)]
        if m:
            slots.append(slot(M, m, 1, group, SlotType.UNIQUE))
        links = draw(st.dictionaries(st.sampled_from(IDS), st.tuples(st.sampled_from(KINDS), st.none()), max_size=3))
        numa = draw(st.sampled_from([None, 0, 1]))
        found.append(device(name, *slots, numa=numa, healthy=draw(st.integers(0, 2)) > 0, links=links))
    return found


class MapMachine(RuleBasedStateMachine):
    """One map, and beside it what is used of each slot of each device."""

    @initialize(
        data=st.data(),
        kind=st.sampled_from(["discrete", "fractional"]),
        strategy=st.sampled_from(AllocationStrategy),
        policy=st.sampled_from(AffinityPolicy),
    )
    def build(self, data: st.DataObject, kind: str, strategy: AllocationStrategy, policy: AffinityPolicy) -> None:
        self.quantum = Decimal("0.05") if kind == "fractional" else Decimal(1)
        self.devices = data.draw(devices_of(self.quantum))
        self.kind = kind
        self.spec = AllocMapSpec(kind=kind, strategy=strategy, affinity_policy=policy)
        self.map = build_alloc_map(self.spec, self.devices)
        self.fresh = self.map.snapshot()
        self.amounts: dict[Place, Decimal] = {
            (s.slot_name, d.device_id): s.amount for d in self.devices for s in d.slots
        }
        self.healthy = {d.device_id for d in self.devices if d.health is DeviceHealth.HEALTHY}
        self.exclusive = self.devices[0].slots[0].exclusive_group is not None
        self.held: list[DeviceAllocation] = []
        self.saved: tuple[Any, list[DeviceAllocation]] | None = None
        for place, amount in self.amounts.items():
            # Most devices begin in use: what is interesting happens where they are nearly full.
            self.apply(*place, data.draw(st.integers(0, int(amount / self.step(place[0])))))

    def step(self, name: SlotName) -> Decimal:
        return Decimal(1) if name == M else self.quantum

    # ---- the model

    def used(self) -> dict[Place, Decimal]:
        found: dict[Place, Decimal] = {}
        for allocation in self.held:
            for name, per_device in allocation.slots.items():
                for device_id, quantity in per_device.items():
                    found[name, device_id] = found.get((name, device_id), Decimal(0)) + quantity
        return found

    def room(self, name: SlotName, device_id: DeviceId) -> Decimal:
        """What a device has left of a slot, whatever its health."""
        used = self.used()
        hidden = self.exclusive and any((other, device_id) in used for other in SLOTS if other != name)
        return (
            Decimal(0) if hidden else self.amounts.get((name, device_id), Decimal(0)) - used.get((name, device_id), 0)
        )

    def free(self, name: SlotName, eligible: frozenset[DeviceId] | None) -> list[Decimal]:
        given = self.healthy if eligible is None else self.healthy & eligible
        return sorted((self.room(name, d) for d in given), reverse=True)

    def largest(self, name: SlotName, eligible: frozenset[DeviceId] | None) -> Decimal:
        """The size of the largest device that may be given, free or not."""
        sizes = (self.amounts.get((name, d), Decimal(0)) for d in self.healthy if eligible is None or d in eligible)
        return max(sizes, default=Decimal(0))

    def can_be_had(self, name: SlotName, quantity: Decimal, eligible: frozenset[DeviceId] | None) -> bool:
        free = self.free(name, eligible)
        if self.kind == "discrete":
            return sum(free) >= quantity
        if quantity <= self.largest(name, eligible):
            return free[0] >= quantity
        quanta, room = int(quantity / self.quantum), [int(f / self.quantum) for f in free]
        for count in range(1, len(room) + 1):
            share, extra = divmod(quanta, count)
            if share and room[count - 1] >= share and (not extra or room[extra - 1] > share):
                return True
        return False

    # ---- calls

    @rule(
        counts=st.fixed_dictionaries({}, optional={A: st.integers(0, 14), B: st.integers(0, 14), M: st.integers(0, 2)}),
        near=NEAR,
        eligible=ELIGIBLE,
    )
    def allocate(self, counts: dict[SlotName, int], near: frozenset[int], eligible: frozenset[DeviceId] | None) -> None:
        known = {s.slot_name for d in self.devices for s in d.slots}
        request = {s: n * self.step(s) for s, n in counts.items() if s in known}
        asked = {s: q for s, q in request.items() if q}
        before = self.map.snapshot()
        try:
            given = self.map.allocate(request, hint=AffinityHint(numa_nodes=near), eligible=eligible)
        except InvalidQuantity:
            assert asked.get(M, 0) > 1, "a unique slot is given one at a time"
            return
        except ResourceError:
            assert self.map.snapshot() == before, "a refusal changes nothing"
            possible = all(self.can_be_had(s, q, eligible) for s, q in asked.items())
            assert len(asked) > 1 or not possible, "what can be had is given"
            return
        assert {s: given.total(s) for s in asked} == asked, "sums match"
        assert set(given.slots) == set(asked)
        assert given.device_ids() <= self.healthy, "unhealthy devices are never given"
        assert eligible is None or given.device_ids() <= eligible, "only eligible devices are given"
        assert all(q > 0 for per_device in given.slots.values() for q in per_device.values())
        for name, per_device in given.slots.items():
            if name == M or (self.kind == "fractional" and asked[name] <= self.largest(name, eligible)):
                assert len(per_device) == 1, "what one device could hold is never split"
            if self.kind == "fractional":
                assert max(per_device.values()) - min(per_device.values()) <= self.quantum, "shares are equal"
        self.map.free(given)
        assert self.map.snapshot() == before, "free restores exactly"
        self.map.apply(given)
        self.held.append(given)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 100))
    def free_one(self, number: int) -> None:
        self.map.free(self.held.pop(number % len(self.held)))

    @rule(name=st.sampled_from(SLOTS), device_id=st.sampled_from(IDS), count=st.integers(-1, 10))
    def apply(self, name: SlotName, device_id: str, count: int) -> None:
        """Whatever fits is taken, of unhealthy devices too; whatever does not is refused whole."""
        quantity = count * self.step(name)
        wanted = DeviceAllocation(slots={name: {DeviceId(device_id): quantity}})
        fits = 0 < quantity <= self.room(name, DeviceId(device_id))
        before = self.map.snapshot()
        try:
            self.map.apply(wanted)
        except InvalidAllocation:
            assert not fits
            assert self.map.snapshot() == before
        else:
            assert fits
            self.held.append(wanted)

    @rule(name=st.sampled_from(SLOTS), device_id=st.sampled_from(IDS))
    def free_too_much(self, name: SlotName, device_id: str) -> None:
        held = self.used().get((name, DeviceId(device_id)), Decimal(0))
        before = self.map.snapshot()
        try:
            self.map.free(DeviceAllocation(slots={name: {DeviceId(device_id): held + self.step(name)}}))
        except InvalidAllocation:
            assert self.map.snapshot() == before
        else:
            raise AssertionError("more was given back than was taken")

    @rule()
    def save(self) -> None:
        self.saved = self.map.snapshot(), self.held.copy()

    @precondition(lambda self: self.saved)
    @rule()
    def restore(self) -> None:
        assert self.saved is not None
        snapshot, held = self.saved
        self.map.restore(snapshot)
        self.held = held.copy()

    @rule(count=st.integers(1, 14))
    def history_does_not_matter(self, count: int) -> None:
        """The choice follows from what is taken, not from the order in which it was."""
        twin = build_alloc_map(self.spec, self.devices)
        for allocation in reversed(self.held):
            twin.apply(allocation)
        assert twin.snapshot() == self.map.snapshot()
        answers = []
        for alloc_map in (twin, self.map):
            before = alloc_map.snapshot()
            try:
                answers.append(alloc_map.allocate({A: count * self.quantum}))
            except ResourceError as e:
                answers.append(DeviceAllocation(slots={SlotName(e.message): {}}))
            alloc_map.restore(before)
        assert answers[0] == answers[1]

    # ---- always

    @invariant()
    def the_books_match(self) -> None:
        used = self.used()
        assert all(quantity <= self.amounts[place] for place, quantity in used.items()), "never over the amount"
        if self.exclusive:
            taken = [device_id for _, device_id in used]
            assert len(taken) == len(set(taken)), "exclusive slots never overlap"
        known = {s.slot_name for d in self.devices for s in d.slots}
        assert self.map.available() == {s: sum(self.free(s, None), Decimal(0)) for s in known}
        assert self.map.totals == {
            s: sum((self.amounts.get((s, d), Decimal(0)) for d in self.healthy), Decimal(0)) for s in known
        }

    def teardown(self) -> None:
        if hasattr(self, "map"):
            for allocation in self.held:
                self.map.free(allocation)
            assert self.map.snapshot() == self.fresh


TestMap = MapMachine.TestCase
TestMap.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    kind=st.sampled_from(["discrete", "fractional"]),
    strategy=st.sampled_from(AllocationStrategy),
    policy=st.sampled_from(AffinityPolicy),
    count=st.integers(1, 14),
    near=NEAR,
    eligible=ELIGIBLE,
)
def test_one_request_in_any_state(
    data: st.DataObject,
    kind: str,
    strategy: AllocationStrategy,
    policy: AffinityPolicy,
    count: int,
    near: frozenset[int],
    eligible: frozenset[DeviceId] | None,
) -> None:
    machine = MapMachine()
    machine.build(data, kind, strategy, policy)
    machine.allocate({A: count}, near, eligible)
    machine.the_books_match()
    machine.teardown()
