"""The intrinsic plugins: cores, bound by cpuset where the runtime can and limited by time, and main memory."""

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
    MemorySpec,
    SlotDisplay,
)
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.slots import BinarySize
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AttachedDevice,
    Measurement,
    NodeInfo,
    StatContext,
    Workload,
    WorkloadConfig,
)
from ai.backend.plugin.settings import PluginSettings, Size

ALIGNMENT = 2**20
"""Totals of memory are whole MiB, so that the same machine reports the same number after each boot."""
_NODE = re.compile(r"node(\d+)")
_CPU = re.compile(r"cpu(\d+)")
_SIZE = re.compile(r"(?:Node \d+ )?(?P<key>\w+):\s+(?P<kib>\d+) kB")
_LIMITS = ("fs/cgroup/memory.max", "fs/cgroup/memory/memory.limit_in_bytes")
"""The limit of the container that the agent itself is in, where it is in one."""
_STATS = frozenset({"avg", "max"})


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The times of a core since boot, in seconds."""

    busy: float
    total: float


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The usage of memory in bytes."""

    total: int
    available: int


class IntrinsicHost:
    """Reads Linux below ``sys`` and ``proc``, which a test may replace by recorded trees."""

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sys
        self._proc = proc

    def _nodes(self, folder: str) -> dict[int, Path]:
        """Maps NUMA nodes to their entries in a folder; empty where the kernel has no NUMA support."""
        base = self._sys / folder
        entries = [(m, p) for p in base.iterdir() if (m := _NODE.fullmatch(p.name))] if base.is_dir() else []
        return {int(m[1]): path for m, path in entries}


class CpuHost(IntrinsicHost):
    """Reads the CPU affinity, NUMA nodes and usage of cores."""

    def __init__(
        self, sys: Path = Path("/sys"), proc: Path = Path("/proc"), cores: frozenset[int] | None = None
    ) -> None:
        super().__init__(sys, proc)
        self._cores = cores

    def cores(self) -> list[int]:
        """Returns the cores that this process, and with it every workload, may use."""
        return sorted(os.sched_getaffinity(0) if self._cores is None else self._cores)

    def numa_node(self, core: int) -> int | None:
        return next(iter(self._nodes(f"devices/system/cpu/cpu{core}")), None)

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


class MemoryHost(IntrinsicHost):
    """Reads the state of main memory."""

    def use(self) -> MemoryUse:
        """Returns the usage of the node, as far as this process may use it. Raises OSError, KeyError: /proc/meminfo
        cannot be read or is not as expected."""
        sizes = _sizes(self._proc / "meminfo")
        total, available = sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemFree"])
        limit = self._limit()
        if limit is None or limit > total:
            return MemoryUse(total, available)
        return MemoryUse(limit, min(available, limit))

    def nodes(self) -> dict[int, int]:
        """Maps NUMA nodes to their bytes; empty where the kernel has no NUMA support."""
        files = {n: path / "meminfo" for n, path in sorted(self._nodes("devices/system/node").items())}
        totals = {n: _sizes(file).get("MemTotal", 0) for n, file in files.items() if file.exists()}
        return {n: total for n, total in totals.items() if total}

    def _limit(self) -> int | None:
        for name in _LIMITS:
            try:
                text = (self._sys / name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            return int(text) if text.isdigit() else None
        return None


def _sizes(path: Path) -> dict[str, int]:
    lines = path.read_text(encoding="ascii").splitlines()
    return {m["key"]: int(m["kib"]) * 1024 for line in lines if (m := _SIZE.match(line))}


class CPUSettings(PluginSettings):
    """Settings of the plugin, ``[plugins.cpu]`` of agent.toml."""

    reserved_cpu: int = Field(default=0, ge=0, description="How many cores, the first ones, sessions never get.")
    affinity_policy: AffinityPolicy = Field(
        default=AffinityPolicy.PREFER_SINGLE_NODE,
        description="A session's cores are of one NUMA node where they can be, or in turn of every node.",
    )


class MemorySettings(PluginSettings):
    """Settings of the plugin, ``[plugins.mem]`` of agent.toml."""

    reserved_mem: Size = Field(default=0, ge=0, description="Memory that sessions never get, in bytes or as 512m.")
    affinity_policy: AffinityPolicy = Field(
        default=AffinityPolicy.PREFER_SINGLE_NODE,
        description="A session's memory is of one NUMA node where it can be, or in equal parts of every node.",
    )


class IntrinsicPlugin(AbstractComputePlugin):
    """Serves one slot that every node has."""

    version: ClassVar[str] = "1"
    verified_on: ClassVar[str | None] = "every machine that runs its tests: they read the one they run on"
    display: ClassVar[SlotDisplay]
    strategy: ClassVar[AllocationStrategy]
    _config: CPUSettings | MemorySettings

    def _slot(self, amount: int) -> tuple[DeviceSlot]:
        display = self.display
        return (DeviceSlot(slot_name=display.slot_name, slot_type=display.slot_type, amount=Decimal(amount)),)

    def _held(self, device_alloc: DeviceAllocation) -> Mapping[DeviceId, Decimal]:
        return device_alloc.slots.get(self.display.slot_name, {})

    def _measured(self, value: float, capacity: float, device: DeviceId | None = None) -> Measurement:
        key, unit = ("mem", "bytes") if self.display.slot_type is SlotType.BYTES else ("cpu_util", "percent")
        return Measurement(key=key, value=value, unit_hint=unit, capacity=capacity, stats=_STATS, device_id=device)

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [self.display]

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return {self.display.slot_name: Decimal(0)} | dict(await super().available_slots())

    def alloc_map_spec(self) -> AllocMapSpec:
        policy = self._config.affinity_policy
        return AllocMapSpec(kind="discrete", strategy=self.strategy, affinity_policy=policy)


class CPUPlugin(IntrinsicPlugin):
    """Serves the cores of the node, one device each."""

    key: ClassVar[DeviceName] = DeviceName("cpu")
    settings_model: ClassVar[type[BaseModel] | None] = CPUSettings
    strategy = AllocationStrategy.EVENLY
    display = SlotDisplay(
        slot_name=SlotName("cpu"),
        slot_type=SlotType.COUNT,
        human_readable_name="CPU",
        description="CPU cores",
        display_unit="Core",
        display_icon="cpu",
    )

    def __init__(self, settings: BaseModel | None = None, *, host: CpuHost | None = None) -> None:
        super().__init__(settings)
        self._config: CPUSettings = settings if isinstance(settings, CPUSettings) else CPUSettings()
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
                slots=self._slot(1),
            )
            for core in self._host.cores()[self._config.reserved_cpu :]
        ]

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Binds the workload to its cores, and limits its time to theirs."""
        cores = sorted(map(int, self._held(device_alloc)))
        limit = float(device_alloc.total(self.display.slot_name)) if cores else None
        return WorkloadConfig(cpuset=tuple(cores), cpu_limit=limit)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        held = self._held(device_alloc)
        model = (self._host.model_name() if held else None) or "CPU"
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
        total = self._measured(sum(percents.values()), 100.0 * len(percents))
        return [total, *(self._measured(percent, 100.0, core) for core, percent in percents.items())]

    async def get_node_info(self) -> NodeInfo:
        cores = self._host.cores()
        return NodeInfo(extra={"model": self._host.model_name() or "unknown", "cores": str(len(cores))})


class MemoryPlugin(IntrinsicPlugin):
    """Serves the main memory of the node, one device for each NUMA node that has some."""

    key: ClassVar[DeviceName] = DeviceName("mem")
    settings_model: ClassVar[type[BaseModel] | None] = MemorySettings
    strategy = AllocationStrategy.FILL
    display = SlotDisplay(
        slot_name=SlotName("mem"),
        slot_type=SlotType.BYTES,
        human_readable_name="RAM",
        description="Main memory",
        display_unit="GiB",
        display_icon="ram",
        number_binary=True,
    )

    def __init__(self, settings: BaseModel | None = None, *, host: MemoryHost | None = None) -> None:
        super().__init__(settings)
        self._config: MemorySettings = settings if isinstance(settings, MemorySettings) else MemorySettings()
        self._host = host or MemoryHost()

    async def list_devices(self) -> Sequence[ComputeDevice]:
        """Lists ``node0``, ``node1`` ... on a machine with several NUMA nodes, else one device ``root``."""
        usable = self._host.use().total
        nodes = self._host.nodes()
        if len(nodes) < 2:
            only = next(iter(nodes), None)
            return [self._device("root", usable - self._config.reserved_mem, only)]
        # A container's limit does not say on which node it counts; every node gives up the same part.
        scale = min(1.0, usable / sum(nodes.values()))
        remaining = self._config.reserved_mem
        devices = []
        for node, size in nodes.items():
            offered = int(size * scale)
            reserved = min(remaining, offered)
            remaining -= reserved
            devices.append(self._device(f"node{node}", offered - reserved, node))
        return devices

    def _device(self, device_id: str, size: int, node: int | None) -> ComputeDevice:
        size = max(0, size) // ALIGNMENT * ALIGNMENT
        return ComputeDevice(
            device_name=self.key,
            device_id=DeviceId(device_id),
            hw_location="root",
            numa_node=node,
            memory_size=size,
            memory_spec=MemorySpec(total_memory=size),
            slots=self._slot(size),
        )

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Limits the workload, and binds it to its NUMA nodes where there are several."""
        held = self._held(device_alloc)
        nodes = tuple(sorted(int(d.removeprefix("node")) for d in held if d.startswith("node")))
        limit = int(device_alloc.total(self.display.slot_name)) if held else None
        return WorkloadConfig(memory_limit_bytes=limit, memory_nodes=nodes)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        held = self._held(device_alloc)
        return [AttachedDevice(device_id=d, model_name="RAM", data={"mem": int(q)}) for d, q in held.items()]

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        """Returns ``mem`` in bytes, of the whole node."""
        use = self._host.use()
        return [self._measured(float(use.total - use.available), float(use.total))]

    async def get_node_info(self) -> NodeInfo:
        return NodeInfo(extra={"total": str(BinarySize(self._host.use().total))})
