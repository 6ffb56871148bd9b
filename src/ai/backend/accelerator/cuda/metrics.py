"""Metrics of GPUs, workloads and processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ai.backend.accelerator.cuda.gpus import Gpu, MigInstance, Node
from ai.backend.accelerator.cuda.health import UNCORRECTABLE, VOLATILE
from ai.backend.accelerator.cuda.nvml import LIBRARY_FAILURES, Code, Nvml, NvmlFailure, unless_lost
from ai.backend.accelerator.cuda.tables import METRICS
from ai.backend.accelerator.cuda.workload import Held
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement

_SM_CLOCK, _TEMPERATURE = 1, 0
_SAMPLES_S = 10.0
"""How far back samples of processes count: NVML keeps those of the last seconds."""


def measurement(key: str, value: float, capacity: float | None, device_id: str | None = None) -> Measurement:
    """Returns a measurement of a metric of the table. Raises a capacity below the value to it."""
    metric = METRICS[key]
    return Measurement(
        key=key,
        value=max(0.0, value),
        unit_hint=metric.unit,
        capacity=None if capacity is None else max(capacity, value, 1e-9),
        kind=metric.kind,
        stats=metric.stats,
        device_id=None if device_id is None else DeviceId(device_id),
        exported=metric.exported if device_id is not None else None,
    )


@dataclass(slots=True)
class Use:
    """Holds what processes use of a device: bytes, and percent of its time if available, by process id."""

    memory: dict[int, int]
    time: dict[int, float] | None


@dataclass(frozen=True, slots=True)
class Meter:
    """Reads metrics from NVML at the Unix time ``at``."""

    nvml: Nvml
    at: float

    def _number(self, function: str, *arguments: str | int) -> float | None:
        answer = unless_lost(self.nvml, function, *arguments)
        return float(answer) if isinstance(answer, int | float) else None

    def memory(self, uuid: str) -> tuple[float, float] | None:
        """Returns used and total bytes."""
        answer = unless_lost(self.nvml, "nvmlDeviceGetMemoryInfo", uuid)
        return (float(answer["used"]), float(answer["total"])) if isinstance(answer, dict) else None

    def utilization(self, uuid: str) -> tuple[float, float] | None:
        """Returns percent of the time that any kernel ran, and that memory was accessed; None for MIG instances."""
        answer = unless_lost(self.nvml, "nvmlDeviceGetUtilizationRates", uuid)
        return (float(answer["gpu"]), float(answer["memory"])) if isinstance(answer, dict) else None

    def gpu(self, gpu: Gpu, last_xid: int) -> list[Measurement]:
        uuid = gpu.uuid
        ask = self._number
        power, limit = ask("nvmlDeviceGetPowerUsage", uuid), ask("nvmlDeviceGetEnforcedPowerLimit", uuid)
        clock, energy = ask("nvmlDeviceGetClockInfo", uuid, _SM_CLOCK), ask("nvmlDeviceGetTotalEnergyConsumption", uuid)
        readings = (
            ("cuda_power", power and power / 1e3, limit / 1e3 if limit else None),
            ("cuda_temperature", ask("nvmlDeviceGetTemperature", uuid, _TEMPERATURE), None),
            ("cuda_sm_clock", clock and clock * 1e6, gpu.max_sm_clock),
            ("cuda_energy", energy and energy / 1e3, None),
            ("cuda_ecc_errors", ask("nvmlDeviceGetTotalEccErrors", uuid, UNCORRECTABLE, VOLATILE), None),
            ("cuda_xid", last_xid, None),
        )
        return self._both(uuid) + [
            measurement(key, value, capacity, uuid) for key, value, capacity in readings if value is not None
        ]

    def _both(self, uuid: str) -> list[Measurement]:
        measurements: list[Measurement] = []
        memory, utilization = self.memory(uuid), self.utilization(uuid)
        if memory is not None:
            measurements.append(measurement("cuda_mem", memory[0], memory[1], uuid))
        if utilization is not None:
            measurements.append(measurement("cuda_util", utilization[0], 100.0, uuid))
            measurements.append(measurement("cuda_mem_util", utilization[1], 100.0, uuid))
        return measurements

    def node(self, node: Node, last_xids: Mapping[str, int]) -> list[Measurement]:
        """Returns the measurements of every GPU. One in MIG mode reports its instances."""
        return [m for gpu in node.gpus for m in self.gpu(gpu, last_xids.get(gpu.uuid, 0))]

    def use(self, uuid: str) -> Use | None:
        """Returns what processes use of a GPU or MIG instance; None if NVML refuses (another user's, no permission)."""
        running = unless_lost(self.nvml, "nvmlDeviceGetComputeRunningProcesses", uuid)
        if not isinstance(running, list):
            return None
        memory = {int(p["pid"]): int(p.get("usedGpuMemory") or 0) for p in running}
        return Use(memory=memory, time=self._time(uuid))

    def _time(self, uuid: str) -> dict[int, float] | None:
        """Returns the time of each process in its latest sample. NVML has none of MIG instances."""
        try:
            samples = self.nvml.ask("nvmlDeviceGetProcessUtilization", uuid, int((self.at - _SAMPLES_S) * 1e6))
        except NvmlFailure as e:
            if e.code in LIBRARY_FAILURES:
                raise
            return {} if e.code == Code.NOT_FOUND else None
        ordered = sorted(samples, key=lambda sample: int(sample["timeStamp"]))
        return {int(sample["pid"]): float(sample["smUtil"]) for sample in ordered}

    def workload(self, held: Sequence[Held], pids: Iterable[int] | None) -> list[Measurement]:
        """Returns memory and time of a workload, each device apart: those of its processes where they are known, else
        of a device that it holds alone."""
        own_pids = None if pids is None else frozenset(pids)
        measurements: list[Measurement] = []
        for one in held:
            use = self.use(one.uuid) if own_pids is not None else None
            of_device = None if one.is_shared else self.memory(one.uuid)
            rates = None if one.is_shared else self.utilization(one.uuid)
            memory, time = of_device and of_device[0], rates and rates[0]
            if use is not None and own_pids is not None:
                memory = sum(size for pid, size in use.memory.items() if pid in own_pids)
                if use.time is not None:
                    time = min(100.0, sum(part for pid, part in use.time.items() if pid in own_pids))
            if memory is not None:
                limit = one.memory_limit if one.is_shared else one.device.memory_size
                measurements.append(measurement("cuda_mem", memory, float(limit), one.uuid))
            if time is not None and not isinstance(one.device, MigInstance):
                measurements.append(measurement("cuda_util", time, 100.0 * float(one.part), one.uuid))
        return measurements

    def processes(self, uuids: Iterable[str], pids: Iterable[int]) -> dict[int, list[Measurement]]:
        """Returns memory and time of each process, over all devices."""
        selected = frozenset(pids)
        memory: dict[int, float] = {}
        time: dict[int, float] = {}
        devices: dict[int, int] = {}
        for uuid in uuids:
            use = self.use(uuid)
            if use is None:
                continue
            times = use.time or {}
            for pid in selected & (use.memory.keys() | times.keys()):
                memory[pid] = memory.get(pid, 0.0) + use.memory.get(pid, 0)
                time[pid] = time.get(pid, 0.0) + times.get(pid, 0.0)
                devices[pid] = devices.get(pid, 0) + 1
        return {
            pid: [measurement("cuda_mem", memory[pid], None), measurement("cuda_util", time[pid], 100.0 * devices[pid])]
            for pid in memory
        }
