"""An agent as the control plane sees one: durable records, commands by (kernel, attempt), observations until acked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import Conflict, CreationDenied, Unavailable
from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices
from ai.backend.core.lifecycle.effects import KernelTarget
from ai.backend.core.lifecycle.events import KernelObserved
from ai.backend.simulator.network import World

S = KernelStatus
R = KernelEventReason
_STAGES = (S.PREPARING, S.PULLING, S.CREATING, S.RUNNING)


@dataclass(slots=True)
class _Record:
    attempt: int
    status: KernelStatus
    allocation: DeviceAllocation


class SimAgent:
    """One agent. ``report`` takes an observation to a manager, with what to call once it is stored; it may raise
    Unavailable. Whatever is not acknowledged is told again."""

    def __init__(
        self,
        world: World,
        agent_id: AgentId,
        plugins: tuple[PluginDevices, ...],
        report: Callable[[KernelObserved, Callable[[], None]], None],
        location: tuple[str, ...] = (),
    ) -> None:
        self.agent_id = agent_id
        self.location = location
        self.plugins = plugins
        self.is_up = True
        self.records: dict[KernelId, _Record] = {}
        self._world = world
        self._report = report
        self._allocator = NodeAllocator.from_devices(plugins)
        self._ended: dict[KernelId, int] = {}
        self._outbox: list[KernelObserved] = []
        self._is_changed = True
        self._amounts = {
            (str(s.slot_name), str(d.device_id)): s.amount for p in plugins for d in p.devices for s in d.slots
        }
        world.after(0.0, self._tick)

    # ---- commands

    def _check_up(self) -> None:
        if not self.is_up:
            raise Unavailable(f"{self.agent_id} is down")

    def create(self, target: KernelTarget, slots: ResourceSlot, plan: DeviceAllocation) -> None:
        """Raises Conflict for an attempt that is over, CreationDenied, or what the allocator raises."""
        self._check_up()
        if target.attempt <= self._ended.get(target.kernel_id, 0):
            raise Conflict("this attempt was ended already")
        record = self.records.get(target.kernel_id)
        if record is not None:
            if record.attempt == target.attempt:
                return
            if record.attempt > target.attempt:
                raise Conflict("a newer attempt is here")
            self._forget(target.kernel_id)
        if self._world.chance(self._world.faults.misbehave / 4):
            raise CreationDenied("the image is broken")
        allocation = self._allocator.verify_or_rebind(slots, plan)
        self.records[target.kernel_id] = _Record(target.attempt, S.SCHEDULED, allocation)
        self._is_changed = True

    def restart(self, target: KernelTarget) -> None:
        self._check_up()
        record = self.records.get(target.kernel_id)
        if record is None or target.attempt <= self._ended.get(target.kernel_id, 0):
            self._observe(target.kernel_id, target.attempt, S.ERROR, R.WORKLOAD_NOT_FOUND)
        elif record.attempt < target.attempt:
            record.attempt, record.status = target.attempt, S.CREATING

    def destroy(self, target: KernelTarget, reason: KernelEventReason) -> None:
        """Ends this attempt and any older one; unknown ones are told to be gone."""
        self._check_up()
        self._ended[target.kernel_id] = max(target.attempt, self._ended.get(target.kernel_id, 0))
        record = self.records.get(target.kernel_id)
        if record is None:
            self._observe(target.kernel_id, target.attempt, S.TERMINATED, reason)
        elif record.attempt <= target.attempt:
            record.attempt, record.status = target.attempt, S.TERMINATING

    def presence(self) -> list[tuple[KernelId, int]]:
        self._check_up()
        return [(kernel_id, r.attempt) for kernel_id, r in self.records.items()]

    # ---- its own life

    def crash(self) -> None:
        """The process is killed. Records and workloads stay; it comes back later."""
        self.is_up = False
        self._world.after(self._world.rng.uniform(1.0, 30.0), self._come_back)

    def _come_back(self) -> None:
        """Found again: the allocations of the records, and every record is told anew."""
        self.is_up = self._is_changed = True
        self._allocator = NodeAllocator.from_devices(self.plugins)
        for kernel_id, record in self.records.items():
            self._allocator.apply(record.allocation)
            self._observe(kernel_id, record.attempt, record.status, R.RESUMING_AGENT_OPERATION)

    def _tick(self) -> None:
        world = self._world
        world.after(world.rng.uniform(0.2, 2.0), self._tick)
        if not self.is_up:
            return
        if world.chance(world.faults.crash):
            self.crash()
            return
        for kernel_id in list(self.records):
            if world.chance(0.5):
                self._advance(kernel_id, self.records[kernel_id])
        self._flush()

    def _advance(self, kernel_id: KernelId, record: _Record) -> None:
        world = self._world
        bad = world.chance(world.faults.misbehave / 4)
        if record.status is S.TERMINATING:
            self._end(kernel_id, S.TERMINATED, R.USER_REQUESTED)
        elif record.status is S.RUNNING:
            if bad:
                self._end(kernel_id, S.TERMINATED, R.SELF_TERMINATED)
        elif bad and record.status is not S.CREATING:
            self._end(kernel_id, S.PENDING, R.CREATION_DEFERRED)
        elif bad:
            self._end(kernel_id, S.ERROR, R.FAILED_TO_CREATE)
        else:
            index = _STAGES.index(record.status) + 1 if record.status in _STAGES else 0
            record.status = _STAGES[index]
            self._observe(kernel_id, record.attempt, record.status, R.UNKNOWN)

    def _forget(self, kernel_id: KernelId) -> _Record:
        record = self.records.pop(kernel_id)
        self._is_changed = True
        self._allocator.free(record.allocation)
        return record

    def _end(self, kernel_id: KernelId, status: KernelStatus, reason: KernelEventReason) -> None:
        record = self._forget(kernel_id)
        self._ended[kernel_id] = max(record.attempt, self._ended.get(kernel_id, 0))
        self._observe(kernel_id, record.attempt, status, reason)

    def _observe(self, kernel_id: KernelId, attempt: int, status: KernelStatus, reason: KernelEventReason) -> None:
        self._outbox.append(KernelObserved(kernel_id=kernel_id, attempt=attempt, status=status, reason=reason))

    def _flush(self) -> None:
        """Send what is not acknowledged; under faults in any order."""
        pending = list(self._outbox)
        if self._world.chance(self._world.faults.misbehave):
            self._world.rng.shuffle(pending)
        for observation in pending:
            with suppress(Unavailable):
                self._world.rpc(lambda o=observation: self._report(o, lambda: self._acknowledged(o)))  # type: ignore[misc]  # bound now

    def _acknowledged(self, observation: KernelObserved) -> None:
        """A manager has stored it; if that is not lost."""
        if self.is_up and observation in self._outbox and not self._world.chance(self._world.faults.lose):
            self._outbox.remove(observation)

    @property
    def has_told_all(self) -> bool:
        """Whether everything that it has seen is stored with a manager."""
        return self.is_up and not self._outbox

    @property
    def is_idle(self) -> bool:
        return self.has_told_all and not self.records

    def check(self) -> list[str]:
        """The books of the allocator are exactly those of the records, and no device gives more than it has; looked at
        when the records have changed."""
        if not self.is_up or not self._is_changed:
            return []
        self._is_changed = False
        held = sum((_sum(r.allocation) for r in self.records.values()), ResourceSlot())
        taken = self._allocator.totals - self._allocator.available()
        broken = [] if held == taken else [f"{self.agent_id} holds {held} but counts {taken}"]
        given: dict[tuple[str, str], Decimal] = {}
        for record in self.records.values():
            for slot, devices in record.allocation.slots.items():
                for device, quantity in devices.items():
                    given[slot, device] = given.get((slot, device), Decimal(0)) + quantity
        return broken + [f"{key} of {self.agent_id} gives {q}" for key, q in given.items() if q > self._amounts[key]]


def _sum(allocation: DeviceAllocation) -> ResourceSlot:
    return ResourceSlot({slot: allocation.total(slot) for slot in allocation.slots})
