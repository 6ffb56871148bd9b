"""Defines the durable record of a kernel, from which the agent resumes it after a crash."""

from __future__ import annotations

from sys import intern
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.agent.channel.model import RECORD_VERSION, Record
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.common.slots import format_quantity, parse_quantity
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.reports import UnhealthyDevice
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.plugin.runtime import WorkloadKey

# Computed once: ``structs.fields`` evaluates every annotation, which takes milliseconds.
_REQUIRED_FIELDS = tuple(
    field.name for field in msgspec.structs.fields(KernelSpec) if field.required and field.name != "slots"
)


class Termination(Record, frozen=True, kw_only=True):
    """Holds the final status of a kernel and its reason.

    ``status`` is TERMINATED, ERROR, or PENDING for a kernel that goes back to the scheduler, which then waits for at
    least ``retry_after_s``. ``attempt`` is the reported attempt, if it is newer than the record's.
    """

    status: KernelStatus = KernelStatus.TERMINATED
    reason: KernelEventReason
    message: str | None = None
    exit_code: int | None = None
    forced: bool = False
    attempt: int | None = None
    retry_after_s: float | None = None


class PluginState(Record, frozen=True, kw_only=True):
    """Holds a plugin's managed state of one workload."""

    version: int = 1
    data: dict[str, Any] = {}


class KernelRecord(Record, frozen=True, kw_only=True):
    """Stores the state of a kernel before each step.

    ``status`` is the last one reported, ``allocation`` slot -> device -> quantity. Of the present workload: ``hooked``
    are the plugins whose ``pre_create`` may have been called, in order; ``begun`` is plugin -> hook method -> the
    agent's epoch of its first call; ``hook_slots`` is plugin -> its slots; ``diagnosed`` is plugin -> devices that it
    sees and does not hold; ``owed`` are the plugins whose ``post_create`` has failed since ``owed_since``;
    ``deferred_until`` ends the deferrals of its termination. ``restarted_from`` is the attempt whose workload a restart
    is ending, ``restarted`` marks attempts that are restarts. ``unhealthy`` are the failed devices that were reported
    last, ``services`` the declared services (:meth:`~ai.backend.common.service_ports.ServicePort.to_wire`),
    ``features`` those of the image's label. ``carried`` is what the attempts until ``carried_until`` used: counters by
    key, and the largest values of gauges that name their maximum. ``has_secrets``: the workload is created with secret
    variables, which are in memory alone (decision 0685).
    """

    version: int = RECORD_VERSION
    spec: KernelSpec
    phase: Phase
    status: KernelStatus
    allocation: dict[str, dict[str, str]] = {}
    hooked: list[str] = []
    begun: dict[str, dict[str, int]] = {}
    hook_slots: dict[str, list[str]] = {}
    diagnosed: dict[str, dict[str, dict[str, str]]] = {}
    owed: list[str] = []
    owed_since: float = 0.0
    deferred_until: float | None = None
    states: dict[str, PluginState] = {}
    attached_devices: dict[str, list[dict[str, Any]]] = {}
    unhealthy: list[UnhealthyDevice] = []
    workload_id: str = ""
    services: list[dict[str, Any]] = []
    features: list[str] = []
    restarted_from: int | None = None
    restarted: bool = False
    carried: dict[str, float] = {}
    carried_until: int = 0
    ending: Termination | None = None
    resumes: int = 0
    ready: bool = False
    bootstrapped: bool = False
    note: str | None = None
    batch_since: float | None = None
    created_at: float = 0.0
    ended_at: float = 0.0
    has_secrets: bool = False

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
    def standing_attempt(self) -> int:
        """The number of the attempt that the present workload and its hooks belong to.

        It is the older attempt until a restart has ended the old workload.
        """
        return self.spec.attempt if self.restarted_from is None else self.restarted_from

    def tombstone(self) -> KernelRecord:
        """Returns a record of the ended kernel with only the fields that late commands need."""
        kept_fields = ("status", "workload_id", "ending", "created_at", "ended_at")
        return KernelRecord(
            spec=KernelSpec(
                **{field_name: getattr(self.spec, field_name) for field_name in _REQUIRED_FIELDS}, slots={}
            ),
            phase=Phase.ENDED,
            **{field_name: getattr(self, field_name) for field_name in kept_fields},
        )

    @property
    def device_allocation(self) -> DeviceAllocation:
        return read_allocation(self.allocation)


def with_shared_texts(spec: KernelSpec) -> KernelSpec:
    """Returns an equal kernel spec with interned texts, which kernels share to save memory."""
    text_of_field: dict[str, Any] = {
        name: intern(text) for name in spec.__struct_fields__ if type(text := getattr(spec, name)) is str
    }
    environ = {intern(name): intern(value) for name, value in spec.environ.items()}
    return replace(spec, **text_of_field, environ=environ)


def read_allocation(data: dict[str, dict[str, str]]) -> DeviceAllocation:
    """Decodes the wire form of an allocation."""
    return DeviceAllocation(
        slots={
            SlotName(slot): {DeviceId(device): parse_quantity(amount) for device, amount in devices.items()}
            for slot, devices in data.items()
        }
    )


def write_allocation(allocation: DeviceAllocation) -> dict[str, dict[str, str]]:
    """Returns the wire form of an allocation."""
    return {
        str(slot): {str(device): format_quantity(amount) for device, amount in devices.items()}
        for slot, devices in allocation.slots.items()
    }
