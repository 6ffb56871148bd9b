"""The intrinsic plugin for main memory: one device for each NUMA node that has some."""

from __future__ import annotations

import re
from collections.abc import Sequence
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

_NODE = re.compile(r"node(\d+)")
_LINE = re.compile(r"(?:Node \d+ )?(?P<key>\w+):\s+(?P<kib>\d+) kB")
#: The limit of the container that the agent itself is in, where it is in one.
_LIMITS = ("fs/cgroup/memory.max", "fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The usage of memory in bytes."""

    total: int
    available: int


class MemoryHost:
    """Reads below ``sys`` and ``proc``, which a test may replace by recorded trees."""

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sys
        self._proc = proc

    def use(self) -> MemoryUse:
        """Returns the usage of the node, as far as this process may use it. Raises OSError, KeyError: /proc/meminfo
        cannot be read or is not as expected."""
        fields = _fields(self._proc / "meminfo")
        total, available = fields["MemTotal"], fields.get("MemAvailable", fields["MemFree"])
        limit = self._limit()
        return (
            MemoryUse(total, available) if limit is None or limit > total else MemoryUse(limit, min(available, limit))
        )

    def nodes(self) -> dict[int, int]:
        """Maps NUMA nodes to their bytes; empty where the kernel has no NUMA support."""
        base = self._sys / "devices/system/node"
        if not base.is_dir():
            return {}
        sizes: dict[int, int] = {}
        for folder in base.iterdir():
            match = _NODE.fullmatch(folder.name)
            if match is not None and (folder / "meminfo").exists():
                total = _fields(folder / "meminfo").get("MemTotal", 0)
                if total:
                    sizes[int(match[1])] = total
        return dict(sorted(sizes.items()))

    def _limit(self) -> int | None:
        for name in _LIMITS:
            try:
                text = (self._sys / name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            return int(text) if text.isdigit() else None
        return None


def _fields(path: Path) -> dict[str, int]:
    lines = path.read_text(encoding="ascii").splitlines()
    return {m["key"]: int(m["kib"]) * 1024 for line in lines if (m := _LINE.match(line))}


SLOT = SlotName("mem")
ALIGNMENT = 2**20
"""Totals are whole MiB, so that the same machine reports the same number after each boot."""


class MemorySettings(PluginSettings):
    """Settings of the plugin, ``[plugins.mem]`` of agent.toml."""

    reserved_mem: Size = Field(default=0, ge=0, description="Memory that sessions never get, in bytes or as 512m.")
    affinity_policy: AffinityPolicy = Field(
        default=AffinityPolicy.PREFER_SINGLE_NODE,
        description="A session's memory is of one NUMA node where it can be, or in equal parts of every node.",
    )


class MemoryPlugin(AbstractComputePlugin):
    """Serves the main memory of the node."""

    key: ClassVar[DeviceName] = DeviceName("mem")
    version: ClassVar[str] = "1"
    verified_on: ClassVar[str | None] = "every machine that runs its tests: they read the one they run on"
    settings_model: ClassVar[type[BaseModel] | None] = MemorySettings

    def __init__(self, settings: BaseModel | None = None, *, host: MemoryHost | None = None) -> None:
        super().__init__(settings)
        self._config = settings if isinstance(settings, MemorySettings) else MemorySettings()
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
            slots=(DeviceSlot(slot_name=SLOT, slot_type=SlotType.BYTES, amount=Decimal(size)),),
        )

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [
            SlotDisplay(
                slot_name=SLOT,
                slot_type=SlotType.BYTES,
                human_readable_name="RAM",
                description="Main memory",
                display_unit="GiB",
                display_icon="ram",
                number_binary=True,
            )
        ]

    def alloc_map_spec(self) -> AllocMapSpec:
        policy = self._config.affinity_policy
        return AllocMapSpec(kind="discrete", strategy=AllocationStrategy.FILL, affinity_policy=policy)

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Limits the workload, and binds it to its NUMA nodes where there are several."""
        held = device_alloc.slots.get(SLOT, {})
        if not held:
            return WorkloadConfig()
        nodes = tuple(sorted(int(d.removeprefix("node")) for d in held if d.startswith("node")))
        return WorkloadConfig(memory_limit_bytes=int(device_alloc.total(SLOT)), memory_nodes=nodes)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        held = device_alloc.slots.get(SLOT, {})
        return [AttachedDevice(device_id=d, model_name="RAM", data={"mem": int(q)}) for d, q in held.items()]

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        """Returns ``mem`` in bytes, of the whole node."""
        use = self._host.use()
        used = float(use.total - use.available)
        stats = frozenset({"max", "avg"})
        return [Measurement(key="mem", value=used, unit_hint="bytes", capacity=float(use.total), stats=stats)]

    async def get_node_info(self) -> NodeInfo:
        return NodeInfo(extra={"total": str(BinarySize(self._host.use().total))})
