"""Reads metrics of GPUs, workloads and processes from NVML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ai.backend.accelerator.cuda.gpus import Gpu, MigInstance, Node
from ai.backend.accelerator.cuda.health import UNCORRECTABLE, VOLATILE
from ai.backend.accelerator.cuda.nvml import LIBRARY_FAILURES, Code, Nvml, NvmlFailure, ask_unless_lost
from ai.backend.accelerator.cuda.tables import METRICS
from ai.backend.accelerator.cuda.workload import HeldDevice
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement

_SM_CLOCK, _TEMPERATURE = 1, 0
_SAMPLES_S = 10.0
"""The age in seconds up to which samples of processes count. NVML keeps the samples of the last seconds."""


def measurement(
    key: str, value: float, capacity: float | None, device_id: str | None = None, *, limit: float | None = None
) -> Measurement:
    """Returns the measurement of a metric in ``METRICS``. A capacity that is less than the value is raised to it."""
    metric = METRICS[key]
    return Measurement(
        key=key,
        value=max(0.0, value),
        unit_hint=metric.unit,
        capacity=None if capacity is None else max(capacity, value, 1e-9),
        kind=metric.kind,
        stats=metric.stats,
        device_id=None if device_id is None else DeviceId(device_id),
        limit=limit,
        exported=metric.exported if device_id is not None else None,
    )


@dataclass(slots=True)
class ProcessUsage:
    """Holds what each process uses of a device, by process id: bytes of memory, and percent of the device's time if
    available.
    """

    memory: dict[int, int]
    time: dict[int, float] | None


class Meter(msgspec.Struct, frozen=True):
    """Reads metrics from NVML at the Unix time ``at``."""

    nvml: Nvml
    at: float

    def _number_or_none(self, function: str, *arguments: str | int) -> float | None:
        answer = ask_unless_lost(self.nvml, function, *arguments)
        return float(answer) if isinstance(answer, int | float) else None

    def memory(self, uuid: str) -> tuple[float, float] | None:
        """Returns the used and total bytes of a GPU's or MIG instance's memory."""
        answer = ask_unless_lost(self.nvml, "nvmlDeviceGetMemoryInfo", uuid)
        return (float(answer["used"]), float(answer["total"])) if isinstance(answer, dict) else None

    def utilization(self, uuid: str) -> tuple[float, float] | None:
        """Returns percent of the time that any kernel ran, and that memory was accessed; None for MIG instances."""
        answer = ask_unless_lost(self.nvml, "nvmlDeviceGetUtilizationRates", uuid)
        return (float(answer["gpu"]), float(answer["memory"])) if isinstance(answer, dict) else None

    def gpu(self, gpu: Gpu, last_xid: int) -> list[Measurement]:
        uuid = gpu.uuid
        read_number = self._number_or_none
        power, power_limit = (
            read_number("nvmlDeviceGetPowerUsage", uuid),
            read_number("nvmlDeviceGetEnforcedPowerLimit", uuid),
        )
        clock, energy = (
            read_number("nvmlDeviceGetClockInfo", uuid, _SM_CLOCK),
            read_number("nvmlDeviceGetTotalEnergyConsumption", uuid),
        )
        readings = (
            ("cuda_power", power and power / 1e3, power_limit / 1e3 if power_limit else None),
            ("cuda_temperature", read_number("nvmlDeviceGetTemperature", uuid, _TEMPERATURE), None),
            ("cuda_sm_clock", clock and clock * 1e6, gpu.max_sm_clock),
            ("cuda_energy", energy and energy / 1e3, None),
            ("cuda_ecc_errors", read_number("nvmlDeviceGetTotalEccErrors", uuid, UNCORRECTABLE, VOLATILE), None),
            ("cuda_xid", last_xid, None),
        )
        return self._memory_and_utilization(uuid) + [
            measurement(key, value, capacity, uuid) for key, value, capacity in readings if value is not None
        ]

    def _memory_and_utilization(self, uuid: str) -> list[Measurement]:
        measurements: list[Measurement] = []
        memory, utilization = self.memory(uuid), self.utilization(uuid)
        if memory is not None:
            measurements.append(measurement("cuda_mem", memory[0], memory[1], uuid))
        if utilization is not None:
            measurements.append(measurement("cuda_util", utilization[0], 100.0, uuid))
            measurements.append(measurement("cuda_mem_util", utilization[1], 100.0, uuid))
        return measurements

    def node(self, node: Node, last_xids: Mapping[str, int]) -> list[Measurement]:
        """Returns the measurements of every GPU of the node. MIG instances have no measurements of their own here."""
        return [
            measurement_of_gpu for gpu in node.gpus for measurement_of_gpu in self.gpu(gpu, last_xids.get(gpu.uuid, 0))
        ]

    def process_usage(self, uuid: str) -> ProcessUsage | None:
        """Returns the memory and the time that processes use of a GPU or MIG instance. Returns None if NVML refuses
        (another user's, no permission).
        """
        processes = ask_unless_lost(self.nvml, "nvmlDeviceGetComputeRunningProcesses", uuid)
        if not isinstance(processes, list):
            return None
        # Clients of MPS have a list of their own; which of them the other one has too depends on the driver.
        clients = ask_unless_lost(self.nvml, "nvmlDeviceGetMPSComputeRunningProcesses", uuid)
        all_processes = [*processes, *(clients if isinstance(clients, list) else ())]
        memory_by_pid: dict[int, int] = {}
        for process in all_processes:
            pid, used_bytes = int(process["pid"]), int(process.get("usedGpuMemory") or 0)
            memory_by_pid[pid] = max(memory_by_pid.get(pid, 0), used_bytes)
        return ProcessUsage(memory=memory_by_pid, time=self._time(uuid))

    def _time(self, uuid: str) -> dict[int, float] | None:
        """Returns by process id the percent of a GPU's time that each process used in its latest sample.

        Returns None for MIG instances.
        """
        try:
            samples = self.nvml.ask("nvmlDeviceGetProcessUtilization", uuid, int((self.at - _SAMPLES_S) * 1e6))
        except NvmlFailure as e:
            if e.code in LIBRARY_FAILURES:
                raise
            return {} if e.code == Code.NOT_FOUND else None
        samples_by_time = sorted(samples, key=lambda sample: int(sample["timeStamp"]))
        return {int(sample["pid"]): float(sample["smUtil"]) for sample in samples_by_time}

    def workload(self, held: Sequence[HeldDevice], pids: Iterable[int] | None) -> list[Measurement]:
        """Returns the memory and the time that a workload uses, for each device.

        If the processes are not known, the values of devices that the workload holds alone are taken.
        """
        own_pids = None if pids is None else frozenset(pids)
        measurements: list[Measurement] = []
        for device in held:
            usage = self.process_usage(device.uuid) if own_pids is not None else None
            device_memory = None if device.is_shared else self.memory(device.uuid)
            device_rates = None if device.is_shared else self.utilization(device.uuid)
            used_bytes, used_percent = device_memory and device_memory[0], device_rates and device_rates[0]
            if usage is not None and own_pids is not None:
                used_bytes = sum(size_bytes for pid, size_bytes in usage.memory.items() if pid in own_pids)
                if usage.time is not None:
                    used_percent = min(100.0, sum(percent for pid, percent in usage.time.items() if pid in own_pids))
            if used_bytes is not None:
                limit = device.memory_limit if device.is_shared else device.device.memory_size
                own_limit = float(limit) if device.is_shared else None
                measurements.append(measurement("cuda_mem", used_bytes, float(limit), device.uuid, limit=own_limit))
            if used_percent is not None and not isinstance(device.device, MigInstance):
                measurements.append(measurement("cuda_util", used_percent, 100.0 * float(device.part), device.uuid))
        return measurements

    def processes(self, uuids: Iterable[str], pids: Iterable[int]) -> dict[int, list[Measurement]]:
        """Returns memory and time of each process, over all devices."""
        selected_pids = frozenset(pids)
        used_bytes_by_pid: dict[int, float] = {}
        total_percent_by_pid: dict[int, float] = {}
        device_count_by_pid: dict[int, int] = {}
        for uuid in uuids:
            usage = self.process_usage(uuid)
            if usage is None:
                continue
            percent_by_pid = usage.time or {}
            for pid in selected_pids & (usage.memory.keys() | percent_by_pid.keys()):
                used_bytes_by_pid[pid] = used_bytes_by_pid.get(pid, 0.0) + usage.memory.get(pid, 0)
                total_percent_by_pid[pid] = total_percent_by_pid.get(pid, 0.0) + percent_by_pid.get(pid, 0.0)
                device_count_by_pid[pid] = device_count_by_pid.get(pid, 0) + 1
        return {
            pid: [
                measurement("cuda_mem", used_bytes_by_pid[pid], None),
                measurement("cuda_util", total_percent_by_pid[pid], 100.0 * device_count_by_pid[pid]),
            ]
            for pid in used_bytes_by_pid
        }
