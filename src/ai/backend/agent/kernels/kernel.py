"""Represents a kernel in the running agent, with its record, its channel, and its operation under way."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from ai.backend.agent.channel.channel import KernelChannel, WorkloadEnded
from ai.backend.agent.channel.programs import Programs
from ai.backend.agent.channel.runs import RunQueue
from ai.backend.agent.channel.terminals import Terminals
from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.agent.kernels.store import KernelRecords, Leftovers
from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.common.states import MAIN_PROGRAM_TYPES, KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import RegistryAccess
from ai.backend.common.wire.reports import UnhealthyDevice
from ai.backend.core.lifecycle.kernel_phase import TRANSITIONS, Operation, Phase, PhaseTrigger, step
from ai.backend.core.lifecycle.transition import Transitions, append_transitions
from ai.backend.plugin.accelerator import AttachedDevice, WorkloadConfig
from ai.backend.plugin.runtime import NetworkView, WorkloadExit, WorkloadKey

_NOTHING: Mapping[str, float] = MappingProxyType({})
_decode = msgspec.msgpack.Decoder(KernelRecord).decode


@dataclass(slots=True, eq=False)
class Kernel:
    """Holds the record of one kernel and its live objects. ``task`` is the operation under way, at most one.

    The record of a running kernel is kept compressed, because there are many and most fields are rarely read
    (docs/decisions/0016); not that of a batch job, which is soon read for its end. ``deferral_ends`` and
    ``hooks_owed_since`` are the record's times on the loop's clock. ``registries`` holds credentials and ``secrets``
    the secret variables of the next workload; neither is ever stored.
    """

    _record: KernelRecord | bytes
    _records: KernelRecords | Leftovers
    id: str = field(init=False)
    key: WorkloadKey = field(init=False)
    created_at: float = field(init=False)
    phase: Phase = field(init=False)
    status: KernelStatus = field(init=False)
    task: asyncio.Task[None] | None = None
    configs: list[tuple[str, WorkloadConfig]] = field(default_factory=list)
    attached: dict[str, list[AttachedDevice]] = field(default_factory=dict)
    network: NetworkView | None = None
    registries: Sequence[RegistryAccess] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    exit: WorkloadExit | None = None
    channel: KernelChannel | None = None
    runs: RunQueue | None = None
    terminals: Terminals | None = None
    programs: Programs | None = None
    is_hurried: asyncio.Event = field(default_factory=asyncio.Event)
    deferral_ends: float | None = None
    hooks_owed_since: float | None = None
    last_stat: dict[str, Any] | None = None
    log_tail: bytes | None = None
    recent_transitions: Transitions = ()
    carried: Mapping[str, float] = field(init=False)
    unhealthy: Sequence[UnhealthyDevice] = field(init=False)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        record = self.record
        self.id, self.key, self.created_at = record.spec.kernel_id, record.key, record.created_at
        self.record = record

    @property
    def record(self) -> KernelRecord:
        stored_record = self._record
        return stored_record if isinstance(stored_record, KernelRecord) else _decode(zlib.decompress(stored_record))

    @record.setter
    def record(self, record: KernelRecord) -> None:
        self.phase, self.status = record.phase, record.status
        self.carried, self.unhealthy = record.carried or _NOTHING, record.unhealthy or ()
        if self.key.attempt != record.spec.attempt:
            self.key = record.key
        is_compressed = record.phase is Phase.RUNNING and record.spec.session_type not in MAIN_PROGRAM_TYPES
        self._record = zlib.compress(msgspec.msgpack.encode(record), 1) if is_compressed else record

    @property
    def attempt(self) -> int:
        """The number of the kernel's present attempt."""
        return self.key.attempt

    @property
    def is_live(self) -> bool:
        return self.phase is not Phase.ENDED

    def save(self, **changes: Any) -> None:
        """Changes fields of the record other than its phase, and stores it. After an OSError nothing has changed."""
        if "phase" in changes:
            raise ValueError("the phase changes by a transition alone")
        record = replace(self.record, **changes)
        self._records.put(record)
        self.replace_record(record)

    def admits(self, trigger: PhaseTrigger) -> bool:
        """Returns True if the kernel's present phase has a transition for this trigger."""
        return trigger in TRANSITIONS[self.phase]

    def move(
        self, trigger: PhaseTrigger, *, cause: str, base_record: KernelRecord | None = None, **changes: Any
    ) -> tuple[Operation, ...]:
        """Makes a transition of the kernel's phase, stores the record, and returns the operations to start.

        Args:
            trigger: the event. An outdated one stores nothing.
            cause: its name in the recent transitions.
            base_record: replaces the present record.
            changes: fields that change with the phase.

        Raises InvalidTransition or OSError; nothing has changed then.
        """
        phase, phase_path, operations = step(
            self.phase,
            trigger,
            subject=f"kernel {self.id}",
            stimulus_id=cause,
            recent_transitions=self.recent_transitions,
            data={"attempt": self.attempt, "status": self.status.value},
        )
        if phase_path or (changes and operations):
            record = replace(base_record or self.record, phase=phase, **changes)
            self._records.put(record)
            self.replace_record(record)
        self.recent_transitions = append_transitions(self.recent_transitions, phase_path)
        return operations

    def replace_record(self, record: KernelRecord) -> None:
        """Replaces the kernel's record in memory by a record that is already stored on disk."""
        self.record = record
        self.changed.set()

    async def disconnect(self) -> None:
        """Closes the channel, the runs and the terminals; the workload keeps running."""
        if self.runs is not None:
            self.runs.close()
        if self.terminals is not None:
            self.terminals.close()
        if self.programs is not None:
            self.programs.close()
        if self.channel is not None:
            await self.channel.close()
        self.channel = self.runs = self.terminals = self.programs = None

    async def wait_adopted(self, timeout_s: float) -> tuple[KernelChannel, RunQueue, Terminals]:
        """Waits until a kernel from before an agent restart is connected, and returns its channel, runs and terminals.

        Raises Unavailable if the kernel is not connected within the time; the errors of :meth:`running`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self.phase is Phase.RUNNING and self.terminals is None:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise Unavailable(f"the kernel {self.id} runs, but its runner cannot be reached yet") from None
        return self.running()

    def running(self) -> tuple[KernelChannel, RunQueue, Terminals]:
        """Returns the channel, the runs and the terminals of the kernel if it runs.

        Raises Conflict unless the kernel runs, WorkloadEnded if it just ended.
        """
        is_running = self.phase is Phase.RUNNING
        if not is_running or self.channel is None or self.runs is None or self.terminals is None:
            raise Conflict(f"the kernel {self.id} is {self.status}", data={"status": self.status.value})
        if self.channel.ended:
            raise WorkloadEnded(f"the workload of the kernel {self.id} has ended")
        return self.channel, self.runs, self.terminals
