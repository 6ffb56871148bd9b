"""The durable record of a kernel: all that the agent must know of it after it was killed."""

from __future__ import annotations

from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.common.slots import format_quantity, parse_quantity
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.plugin.runtime import WorkloadKey

RECORD_VERSION = 1


class Phase(StrEnum):
    """What the agent is doing with a kernel, and what a recovery therefore does with it."""

    CREATING = "creating"
    """Resume the creation, or roll it back once it was resumed too often."""
    RUNNING = "running"
    """Adopt the workload again."""
    RESTARTING = "restarting"
    """Go on with the restart."""
    TERMINATING = "terminating"
    """Finish the termination."""
    ENDED = "ended"
    """Nothing is left; remembered for a while, so that late commands are answered alike."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of durable records."""


class Ending(Record, frozen=True, kw_only=True):
    """Why and as what a kernel ends.

    ``status`` is TERMINATED, ERROR, or PENDING for one that goes back to the scheduler. ``attempt`` is what the end is
    reported under, where that is newer than the record's.
    """

    status: KernelStatus
    reason: KernelEventReason
    message: str | None = None
    exit_code: int | None = None
    forced: bool = False
    attempt: int | None = None


class PluginState(Record, frozen=True, kw_only=True):
    """A plugin's managed state of one workload."""

    version: int = 1
    data: dict[str, Any] = {}


class KernelRecord(Record, frozen=True, kw_only=True):
    """Written before each step.

    ``status`` is the last one reported. ``step`` is the one under way. ``allocation`` is slot -> device -> quantity.
    ``hooked`` names plugins whose ``pre_create`` may have happened. ``ready``: the runner of this attempt said
    so. ``restarted_from`` is the attempt whose workload a restart replaces.
    """

    version: int = RECORD_VERSION
    spec: KernelSpec
    phase: Phase
    status: KernelStatus
    step: str = ""
    allocation: dict[str, dict[str, str]] = {}
    hooked: list[str] = []
    states: dict[str, PluginState] = {}
    attached_devices: dict[str, list[dict[str, Any]]] = {}
    workload_id: str = ""
    restarted_from: int | None = None
    ending: Ending | None = None
    resumes: int = 0
    ready: bool = False
    bootstrapped: bool = False
    note: str | None = None
    batch_since: float | None = None
    created_at: float = 0.0
    ended_at: float = 0.0

    @property
    def kernel_id(self) -> KernelId:
        return KernelId(UUID(self.spec.kernel_id))

    @property
    def session_id(self) -> SessionId:
        return SessionId(UUID(self.spec.session_id))

    @property
    def key(self) -> WorkloadKey:
        return WorkloadKey(kernel_id=self.kernel_id, attempt=self.spec.attempt)

    @property
    def device_allocation(self) -> DeviceAllocation:
        return read_allocation(self.allocation)


def read_allocation(data: dict[str, dict[str, str]]) -> DeviceAllocation:
    """From the wire form to exact quantities."""
    return DeviceAllocation(
        slots={
            SlotName(slot): {DeviceId(device): parse_quantity(amount) for device, amount in devices.items()}
            for slot, devices in data.items()
        }
    )


def write_allocation(allocation: DeviceAllocation) -> dict[str, dict[str, str]]:
    """The wire form of an allocation."""
    return {
        str(slot): {str(device): format_quantity(amount) for device, amount in devices.items()}
        for slot, devices in allocation.slots.items()
    }


class RunRecord(Record, frozen=True, kw_only=True):
    """A run that nobody has fetched to its end.

    ``started``: the runner has confirmed it. ``consumed``: its frames up to there were given out. ``waiting``: it waits
    for input, with these options. ``deadline_at``: when it is cancelled, in seconds of the epoch.
    """

    run_id: str
    frame: dict[str, Any]
    started: bool = False
    consumed: int = 0
    waiting: dict[str, Any] | None = None
    deadline_at: float | None = None


class RunsRecord(Record, frozen=True, kw_only=True):
    """The runs of a kernel in order; everything up to ``acked`` was given out and is forgotten in the shim."""

    version: int = RECORD_VERSION
    attempt: int
    acked: int = 0
    runs: list[RunRecord] = []
