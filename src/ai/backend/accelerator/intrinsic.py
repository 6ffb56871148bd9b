"""Serves cores and main memory. Cores are bound by cpuset where the runtime can, and limited by time."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import msgspec
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

ALIGNMENT_BYTES = 2**20
"""Totals of memory are multiples of this number, so that the same machine reports the same total after each boot."""
_NODE_NAME = re.compile(r"node(\d+)")
_CPU_NAME = re.compile(r"cpu(\d+)")
_MEMINFO_LINE = re.compile(r"(?:Node \d+ )?(?P<key>\w+):\s+(?P<kib>\d+) kB")
_LIMIT_FILES = ("fs/cgroup/memory.max", "fs/cgroup/memory/memory.limit_in_bytes")
"""The files with the memory limit of the container in which the agent itself may run."""
_STATS = frozenset({"avg", "max"})


class CpuTimes(msgspec.Struct, frozen=True):
    """Holds the times of a core since boot, in seconds."""

    busy: float
    total: float


class MemoryUse(msgspec.Struct, frozen=True):
    """Holds the usage of memory in bytes."""

    total: int
    available: int


class IntrinsicHost:
    """Reads files of the Linux kernel below the folders ``sys`` and ``proc``. A test may pass recorded folders."""

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sys
        self._proc = proc

    def _nodes(self, folder: str) -> dict[int, Path]:
        """Maps the numbers of NUMA nodes to their entries in a folder. It is empty where the kernel has no NUMA
        support.
        """
        parent_folder = self._sys / folder
        paths = parent_folder.iterdir() if parent_folder.is_dir() else ()
        matched_paths = [(match, path) for path in paths if (match := _NODE_NAME.fullmatch(path.name))]
        return {int(match[1]): path for match, path in matched_paths}


class CpuHost(IntrinsicHost):
    """Reads the CPU affinity, NUMA nodes and usage of cores."""

    def __init__(
        self, sys: Path = Path("/sys"), proc: Path = Path("/proc"), cores: frozenset[int] | None = None
    ) -> None:
        super().__init__(sys, proc)
        self._cores = cores

    def cores(self) -> list[int]:
        """Returns the numbers of the cores that this process, and with it every workload, may use."""
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
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        by_core: dict[int, CpuTimes] = {}
        for line in text.splitlines():
            name, *fields = line.split()
            match = _CPU_NAME.fullmatch(name) if name.startswith("cpu") else None
            if match is None or len(fields) < 5:
                continue
            # user nice system idle iowait irq softirq steal; guest time is part of user time
            times_s = [int(field) / ticks_per_s for field in fields[:8]]
            total_s = sum(times_s)
            by_core[int(match[1])] = CpuTimes(busy=total_s - times_s[3] - times_s[4], total=total_s)
        return by_core


class MemoryHost(IntrinsicHost):
    """Reads the state of main memory."""

    def usage(self) -> MemoryUse:
        """Returns the total and the available bytes of main memory, within the limit that this process has.

        Raises OSError, KeyError: /proc/meminfo cannot be read or is not as expected.
        """
        meminfo = _read_meminfo(self._proc / "meminfo")
        total_bytes, available_bytes = meminfo["MemTotal"], meminfo.get("MemAvailable", meminfo["MemFree"])
        limit_bytes = self._limit()
        if limit_bytes is None or limit_bytes > total_bytes:
            return MemoryUse(total_bytes, available_bytes)
        return MemoryUse(limit_bytes, min(available_bytes, limit_bytes))

    def nodes(self) -> dict[int, int]:
        """Maps the numbers of NUMA nodes to their bytes of memory. It is empty where the kernel has no NUMA support."""
        meminfo_files = {node: path / "meminfo" for node, path in sorted(self._nodes("devices/system/node").items())}
        total_bytes = {
            node: _read_meminfo(file).get("MemTotal", 0) for node, file in meminfo_files.items() if file.exists()
        }
        return {node: total for node, total in total_bytes.items() if total}

    def _limit(self) -> int | None:
        for file_name in _LIMIT_FILES:
            try:
                limit_text = (self._sys / file_name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            return int(limit_text) if limit_text.isdigit() else None
        return None


def _read_meminfo(path: Path) -> dict[str, int]:
    lines = path.read_text(encoding="ascii").splitlines()
    return {match["key"]: int(match["kib"]) * 1024 for line in lines if (match := _MEMINFO_LINE.match(line))}


class CPUSettings(PluginSettings):
    """Settings of the plugin, ``[plugins.cpu]`` of agent.toml."""

    reserved_cpu: int = Field(default=0, ge=0, description="How many cores, the first ones, sessions never get.")
    declared_cpu: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="How many processors the node declares; 0: those that it has. More than it has over-commits them:"
        " sessions share cores in turn.",
    )
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


def _core_of(processor: DeviceId) -> int:
    """Returns the number of the core of a declared processor."""
    return int(processor.partition(".")[0])


class IntrinsicPlugin(AbstractComputePlugin):
    """Represents the base of the plugins for cores and for main memory. Each of the two plugins offers one slot.

    Every node has both slots.
    """

    version: ClassVar[str] = "1"
    verified_on: ClassVar[str | None] = "every Linux machine on which its tests have run"
    display: ClassVar[SlotDisplay]
    strategy: ClassVar[AllocationStrategy]
    _config: CPUSettings | MemorySettings

    def _slot(self, amount: int) -> tuple[DeviceSlot]:
        display = self.display
        return (DeviceSlot(slot_name=display.slot_name, slot_type=display.slot_type, amount=Decimal(amount)),)

    def _held_amounts(self, device_alloc: DeviceAllocation) -> Mapping[DeviceId, Decimal]:
        return device_alloc.slots.get(self.display.slot_name, {})

    def _measurement(self, value: float, capacity: float, device: DeviceId | None = None) -> Measurement:
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
        model_name = self._host.model_name()
        return [
            ComputeDevice(
                device_name=self.key,
                device_id=device_id,
                hw_location="root",
                numa_node=self._host.numa_node(_core_of(device_id)),
                processing_units=1,
                compute_units=(ComputeUnit(name="core", count=1),),
                model_name=model_name,
                slots=self._slot(1),
            )
            for device_id in self._processors()
        ]

    def _processors(self) -> list[DeviceId]:
        """Returns the ids of the offered processors: as many as the settings declare, or else all usable cores.

        If more are declared than there are cores, cores are listed again as ``CORE.1``, ``CORE.2`` and so on.
        """
        cores = self._host.cores()[self._config.reserved_cpu :]
        processor_count = (self._config.declared_cpu or len(cores)) if cores else 0
        round_and_index = (divmod(number, len(cores)) for number in range(processor_count))
        return [
            DeviceId(f"{cores[core_index]}.{listing_round}" if listing_round else str(cores[core_index]))
            for listing_round, core_index in round_and_index
        ]

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Binds a workload to its cores, and limits its CPU time to the time of these cores."""
        processors = self._held_amounts(device_alloc)
        cpu_limit = float(device_alloc.total(self.display.slot_name)) if processors else None
        return WorkloadConfig(cpuset=tuple(sorted(set(map(_core_of, processors)))), cpu_limit=cpu_limit)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        amount_by_core = self._held_amounts(device_alloc)
        model_name = (self._host.model_name() if amount_by_core else None) or "CPU"
        return [
            AttachedDevice(device_id=core, model_name=model_name, data={"cores": int(core_amount)})
            for core, core_amount in amount_by_core.items()
        ]

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        """Returns ``cpu_util`` in percent since the last call, of the node (capacity: 100 for each core) and of each
        core."""
        times = self._host.times()
        previous_times, self._before = self._before, times
        percent_of_core: dict[DeviceId, float] = {}
        for core in self._host.cores():
            if core in times and core in previous_times:
                elapsed_s = times[core].total - previous_times[core].total
                busy_s = max(0.0, times[core].busy - previous_times[core].busy)
                percent_of_core[DeviceId(str(core))] = min(100.0, 100.0 * busy_s / elapsed_s) if elapsed_s > 0 else 0.0
        if not percent_of_core:
            return ()
        node_measurement = self._measurement(sum(percent_of_core.values()), 100.0 * len(percent_of_core))
        return [
            node_measurement,
            *(self._measurement(percent, 100.0, core) for core, percent in percent_of_core.items()),
        ]

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
        """Returns the devices ``node0``, ``node1`` ... on a machine with several NUMA nodes, and otherwise one device
        ``root``.
        """
        usable_bytes = self._host.usage().total
        bytes_of_node = self._host.nodes()
        if len(bytes_of_node) < 2:
            only_node = next(iter(bytes_of_node), None)
            return [self._device("root", usable_bytes - self._config.reserved_mem, only_node)]
        # A container's limit does not say on which node it counts; every node gives up the same part.
        usable_fraction = min(1.0, usable_bytes / sum(bytes_of_node.values()))
        bytes_to_reserve = self._config.reserved_mem
        devices = []
        for node, node_bytes in bytes_of_node.items():
            offered_bytes = int(node_bytes * usable_fraction)
            reserved_bytes = min(bytes_to_reserve, offered_bytes)
            bytes_to_reserve -= reserved_bytes
            devices.append(self._device(f"node{node}", offered_bytes - reserved_bytes, node))
        return devices

    def _device(self, device_id: str, size: int, node: int | None) -> ComputeDevice:
        size = max(0, size) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
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
        """Limits the memory of a workload, and binds it to its NUMA nodes where there are several."""
        held = self._held_amounts(device_alloc)
        nodes = tuple(sorted(int(device_id.removeprefix("node")) for device_id in held if device_id.startswith("node")))
        memory_limit_bytes = int(device_alloc.total(self.display.slot_name)) if held else None
        return WorkloadConfig(memory_limit_bytes=memory_limit_bytes, memory_nodes=nodes)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        held = self._held_amounts(device_alloc)
        return [
            AttachedDevice(device_id=node, model_name="RAM", data={"mem": int(size)}) for node, size in held.items()
        ]

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        """Returns ``mem`` in bytes, of the whole node."""
        usage = self._host.usage()
        return [self._measurement(float(usage.total - usage.available), float(usage.total))]

    async def get_node_info(self) -> NodeInfo:
        return NodeInfo(extra={"total": str(BinarySize(self._host.usage().total))})
