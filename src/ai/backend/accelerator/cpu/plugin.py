"""The intrinsic plugin for cores: one device per core, bound by cpuset where the runtime can, limited by time."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, Field

from ai.backend.common.devices import (
    AffinityPolicy,
    AllocationStrategy,
    AllocMapSpec,
    ComputeDevice,
    ComputeUnit,
    DeviceAllocation,
    DeviceSlot,
    SlotDisplay,
)
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AttachedDevice,
    Measurement,
    NodeInfo,
    StatContext,
    Workload,
    WorkloadConfig,
    slot_totals,
)
from ai.backend.plugin.settings import PluginSettings

_NODE = re.compile(r"node(\d+)")
_CPU = re.compile(r"cpu(\d+)")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The times of a core since boot, in seconds."""

    busy: float
    total: float


class CpuHost:
    """Reads below ``sys`` and ``proc``, which a test may replace by recorded trees."""

    def __init__(
        self, sys: Path = Path("/sys"), proc: Path = Path("/proc"), cores: frozenset[int] | None = None
    ) -> None:
        self._sys = sys
        self._proc = proc
        self._cores = cores

    def cores(self) -> list[int]:
        """Returns the cores that this process, and with it every workload, may use."""
        return sorted(os.sched_getaffinity(0) if self._cores is None else self._cores)

    def numa_node(self, core: int) -> int | None:
        """Returns the NUMA node of a core; None where the kernel has no NUMA support."""
        folder = self._sys / f"devices/system/cpu/cpu{core}"
        if not folder.is_dir():
            return None
        return next((int(m[1]) for p in folder.iterdir() if (m := _NODE.fullmatch(p.name))), None)

    def model_name(self) -> str | None:
        try:
            text = (self._proc / "cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        match = re.search(r"^(?:model name|Model|cpu model|Processor)\s*:\s*(.+)$", text, re.MULTILINE)
        return match[1].strip() if match else None

    def times(self) -> dict[int, CpuTimes]:
        """Returns the times of every core; empty if they cannot be read."""
        try:
            text = (self._proc / "stat").read_text(encoding="ascii")
        except OSError:
            return {}
        ticks = os.sysconf("SC_CLK_TCK")
        by_core: dict[int, CpuTimes] = {}
        for line in text.splitlines():
            name, *fields = line.split()
            match = _CPU.fullmatch(name) if name.startswith("cpu") else None
            if match is None or len(fields) < 5:
                continue
            # user nice system idle iowait irq softirq steal; guest time is part of user time
            values = [int(f) / ticks for f in fields[:8]]
            total = sum(values)
            by_core[int(match[1])] = CpuTimes(busy=total - values[3] - values[4], total=total)
        return by_core


SLOT = SlotName("cpu")


class CPUSettings(PluginSettings):
    """Settings of the plugin, ``[plugins.cpu]`` of agent.toml."""

    reserved_cpu: int = Field(default=0, ge=0, description="How many cores, the first ones, sessions never get.")
    affinity_policy: AffinityPolicy = Field(
        default=AffinityPolicy.PREFER_SINGLE_NODE,
        description="A session's cores are of one NUMA node where they can be, or in turn of every node.",
    )


class CPUPlugin(AbstractComputePlugin):
    """Serves the cores of the node."""

    key: ClassVar[DeviceName] = DeviceName("cpu")
    version: ClassVar[str] = "1"
    verified_on: ClassVar[str | None] = "every machine that runs its tests: they read the one they run on"
    settings_model: ClassVar[type[BaseModel] | None] = CPUSettings

    def __init__(self, settings: BaseModel | None = None, *, host: CpuHost | None = None) -> None:
        super().__init__(settings)
        self._config = settings if isinstance(settings, CPUSettings) else CPUSettings()
        self._host = host or CpuHost()
        self._before: dict[int, CpuTimes] = {}

    async def list_devices(self) -> Sequence[ComputeDevice]:
        model = self._host.model_name()
        return [
            ComputeDevice(
                device_name=self.key,
                device_id=DeviceId(str(core)),
                hw_location="root",
                numa_node=self._host.numa_node(core),
                processing_units=1,
                compute_units=(ComputeUnit(name="core", count=1),),
                model_name=model,
                slots=(DeviceSlot(slot_name=SLOT, slot_type=SlotType.COUNT, amount=Decimal(1)),),
            )
            for core in self._host.cores()[self._config.reserved_cpu :]
        ]

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [
            SlotDisplay(
                slot_name=SLOT,
                slot_type=SlotType.COUNT,
                human_readable_name="CPU",
                description="CPU cores",
                display_unit="Core",
                display_icon="cpu",
            )
        ]

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return {SLOT: Decimal(0)} | slot_totals(await self.list_devices())

    def alloc_map_spec(self) -> AllocMapSpec:
        policy = self._config.affinity_policy
        return AllocMapSpec(kind="discrete", strategy=AllocationStrategy.EVENLY, affinity_policy=policy)

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Binds the workload to its cores, and limits its time to theirs."""
        cores = sorted(int(d) for d in device_alloc.slots.get(SLOT, {}))
        if not cores:
            return WorkloadConfig()
        return WorkloadConfig(cpuset=tuple(cores), cpu_limit=float(device_alloc.total(SLOT)))

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        held = device_alloc.slots.get(SLOT, {})
        if not held:
            return ()
        model = self._host.model_name() or "CPU"
        return [AttachedDevice(device_id=d, model_name=model, data={"cores": int(q)}) for d, q in held.items()]

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        """Returns ``cpu_util`` in percent since the last call, of the node (capacity: 100 for each core) and of each
        core."""
        now = self._host.times()
        before, self._before = self._before, now
        percents: dict[DeviceId, float] = {}
        for core in self._host.cores():
            if core in now and core in before:
                elapsed = now[core].total - before[core].total
                busy = max(0.0, now[core].busy - before[core].busy)
                percents[DeviceId(str(core))] = min(100.0, 100.0 * busy / elapsed) if elapsed > 0 else 0.0
        if not percents:
            return ()
        stats = frozenset({"avg", "max"})
        parts = [(None, sum(percents.values()), 100.0 * len(percents)), *((d, v, 100.0) for d, v in percents.items())]
        return [
            Measurement(key="cpu_util", value=value, unit_hint="percent", capacity=top, stats=stats, device_id=device)
            for device, value, top in parts
        ]

    async def get_node_info(self) -> NodeInfo:
        cores = self._host.cores()
        return NodeInfo(extra={"model": self._host.model_name() or "unknown", "cores": str(len(cores))})
