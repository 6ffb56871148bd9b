"""Determines the health of GPUs from their present state and from critical errors since the last reset."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from ai.backend.accelerator.cuda.gpus import Gpu, Node
from ai.backend.accelerator.cuda.nvml import (
    DEVICE_FAILURES,
    LIBRARY_FAILURES,
    XID_CRITICAL,
    Nvml,
    NvmlEvent,
    NvmlFailure,
    ask_optional,
)
from ai.backend.accelerator.cuda.tables import XIDS, Blame

UNCORRECTABLE, VOLATILE = 1, 0


def ecc_errors(nvml: Nvml, uuid: str) -> int | None:
    """Returns the number of uncorrectable errors since the last reset; None without ECC."""
    count = ask_optional(nvml, "nvmlDeviceGetTotalEccErrors", uuid, UNCORRECTABLE, VOLATILE)
    return None if count is None else int(count)


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the present state of a GPU. ``fault`` is empty if nothing is wrong; ``energy`` is in millijoules since the
    reset; ``is_lost`` is set if the GPU is lost, not if it only fails to answer."""

    fault: str = ""
    is_lost: bool = False
    energy: int | None = None


def read_gpu_state(nvml: Nvml, gpu: Gpu, tolerated_ecc_errors: int) -> GpuState:
    """Reads the present state of a GPU. Raises NvmlFailure if the library fails."""
    try:
        nvml.ask("nvmlDeviceGetMemoryInfo", gpu.uuid)
        energy = ask_optional(nvml, "nvmlDeviceGetTotalEnergyConsumption", gpu.uuid)
        errors = ecc_errors(nvml, gpu.uuid)
        remapped = ask_optional(nvml, "nvmlDeviceGetRemappedRows", gpu.uuid)
        retiring = ask_optional(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", gpu.uuid)
    except NvmlFailure as e:
        if e.code in LIBRARY_FAILURES:
            raise
        return GpuState(fault=str(e), is_lost=e.code in DEVICE_FAILURES)
    fault = ""
    if errors is not None and errors > tolerated_ecc_errors:
        fault = f"{errors} uncorrectable memory errors since the last reset"
    elif remapped and remapped[3]:
        fault = "a failed row of memory could not be remapped; the GPU must be replaced"
    elif retiring:
        fault = "pages of memory wait to be retired; the GPU needs a reset"
    return GpuState(fault=fault, energy=energy)


def xid_text(xid: int) -> str:
    _, text = XIDS.get(xid, (Blame.DEVICE, "unknown to this version"))
    return f"Xid {xid}: {text}"


@dataclass(slots=True)
class CriticalErrors:
    """Stores the critical errors of each GPU since this process has started, until the GPU is reset.

    A GPU counts as reset if it was lost and answers again, or if its energy counter went back. The errors of an
    instance are removed when the instance is gone.
    """

    ignored: Collection[int] = ()
    last_xid: dict[str, int] = field(default_factory=dict)
    _faults: dict[str, dict[int | None, str]] = field(default_factory=dict)
    _energy: dict[str, int] = field(default_factory=dict)
    _lost_uuids: set[str] = field(default_factory=set)

    def on_event(self, event: NvmlEvent) -> str:
        """Records an event, and returns the fault that it causes. Returns an empty text if the device can go on."""
        if event.kind != XID_CRITICAL:
            return "uncorrectable memory errors"  # which the device counts itself
        self.last_xid[event.uuid] = event.value
        blame, _ = XIDS.get(event.value, (Blame.DEVICE, ""))
        if blame is not Blame.DEVICE or event.value in self.ignored:
            return ""
        reason = xid_text(event.value)
        self._faults.setdefault(event.uuid, {}).setdefault(event.gpu_instance, reason)
        return reason

    def record_state(self, uuid: str, state: GpuState, gpu_instances: Collection[int]) -> None:
        """Records the present state of a GPU, and forgets the faults of a GPU that was reset."""
        if state.is_lost:
            self._lost_uuids.add(uuid)
            return
        if state.fault and state.energy is None:
            return  # it did not answer: that tells nothing of a reset
        energy = state.energy
        previous_energy = self._energy.get(uuid)
        if uuid in self._lost_uuids or (
            previous_energy is not None and energy is not None and energy < previous_energy
        ):
            self._faults.pop(uuid, None)
        self._lost_uuids.discard(uuid)
        for instance in self._faults.get(uuid, {}).keys() - {None, *gpu_instances}:
            del self._faults[uuid][instance]
        if energy is not None:
            self._energy[uuid] = energy

    def fault(self, uuid: str, gpu_instance: int | None = None) -> str:
        """Returns the recorded fault of a GPU, or else of its instance ``gpu_instance``; empty without a fault."""
        faults = self._faults.get(uuid, {})
        return faults.get(None) or (faults.get(gpu_instance, "") if gpu_instance is not None else "")


def faults_of(nvml: Nvml, node: Node, critical_errors: CriticalErrors, tolerated_ecc_errors: int) -> dict[str, str]:
    """Returns the fault of each faulty GPU and MIG instance, by UUID.

    A fault of a GPU is also a fault of each of its instances. A fault of an instance is no fault of its GPU.
    """
    by_device: dict[str, str] = {}
    for gpu in node.gpus:
        reading_fault = node.faults.get(gpu.uuid)
        if reading_fault is None:
            state = read_gpu_state(nvml, gpu, tolerated_ecc_errors)
        else:
            state = GpuState(fault=reading_fault, is_lost=gpu.uuid in node.lost_gpus)
        critical_errors.record_state(
            gpu.uuid, state, {part.gpu_instance for part in node.instances if part.parent.uuid == gpu.uuid}
        )
        reason = state.fault or critical_errors.fault(gpu.uuid)
        if reason:
            by_device[gpu.uuid] = reason
    for instance in node.instances:
        reason = by_device.get(instance.parent.uuid) or critical_errors.fault(
            instance.parent.uuid, instance.gpu_instance
        )
        if reason:
            by_device[instance.uuid] = reason
    return by_device
