"""The mock accelerator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from ai.backend.accelerator.mock import metrics
from ai.backend.accelerator.mock.declaration import (
    Declaration,
    MockDevice,
    SlotFormat,
    default_declaration,
    load_declaration,
)
from ai.backend.common.devices import (
    AllocationStrategy,
    AllocMapSpec,
    ComputeDevice,
    ComputeUnit,
    DeviceAllocation,
    DeviceHealth,
    DeviceSlot,
    MemorySpec,
    PartitioningCapability,
    SlotDisplay,
)
from ai.backend.common.ids import DeviceId, DeviceName, KernelId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    HookContext,
    Measurement,
    NodeInfo,
    StatContext,
    Workload,
    WorkloadConfig,
    slot_totals,
)
from ai.backend.plugin.settings import PluginSettings, Quantity, Size


class MockSettings(PluginSettings):
    """Settings of the plugin (spec 03-06, peer facts 2.4)."""

    allocation_mode: Literal["discrete", "fractional"] = Field(
        default="discrete", description="Whole devices (<slot>.device) or parts of them (<slot>.shares)."
    )
    unit_mem: Size = Field(default=2 * 2**30, ge=1, description="Device memory of 1.0 share.")
    unit_proc: int = Field(default=8, ge=1, description="Sub-processors of 1.0 share.")
    quantum_size: Quantity = Field(default=Decimal("0.01"), gt=0, le=1, description="Smallest step of a share.")
    strategy: AllocationStrategy = Field(
        default=AllocationStrategy.EVENLY, description="How requests are spread over devices."
    )
    device_mask: tuple[str, ...] = Field(default=(), description="Ids of devices to leave out.")
    config_path: Path | None = Field(
        default=None, description="The declaration to read; default: mock-accelerator.toml on the search path."
    )
    default_devices: int = Field(
        default=4, ge=0, le=1024, description="How many devices to pretend where nothing is declared."
    )


class MockHook(AbstractLifecycleHook):
    """Tells the workload which devices it has, as a vendor's plugin would."""

    def __init__(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext, plugin: MockPlugin
    ) -> None:
        super().__init__(workload, device_alloc, context)
        self._plugin = plugin

    async def pre_create(self) -> WorkloadConfig:
        ids = sorted(self.device_alloc.device_ids(), key=self._plugin.rank)
        if not ids:
            return WorkloadConfig()
        prefix = self._plugin.env_prefix
        return WorkloadConfig(
            env_vars={f"{prefix}_VISIBLE_DEVICES": ",".join(ids), f"{prefix}_DEVICE_COUNT": str(len(ids))},
            resource_data=self._plugin.resource_data(self.device_alloc, ids),
        )


class MockPlugin(AbstractComputePlugin):
    """Pretends the devices of a declaration; see :class:`MockSettings`."""

    key: ClassVar[DeviceName] = DeviceName("mock")
    version: ClassVar[str] = "1"
    settings_model: ClassVar[type[BaseModel] | None] = MockSettings

    def __init__(self, settings: BaseModel | None = None, *, declaration: Declaration | None = None) -> None:
        super().__init__(settings)
        self._config = settings if isinstance(settings, MockSettings) else MockSettings()
        self._declaration = declaration
        self._ranks: dict[DeviceId, int] = {}

    async def init(self) -> None:
        """Raises InvalidInput or PluginError for a bad declaration."""
        if self._declaration is None:
            found = load_declaration(self._config.config_path)
            self._declaration = found or default_declaration(self._config.default_devices)
        self._ranks = {DeviceId(d.mother_uuid): n for n, d in enumerate(self._devices())}

    @property
    def declaration(self) -> Declaration:
        """What is pretended; the default before :meth:`init`."""
        return self._declaration or default_declaration(self._config.default_devices)

    @property
    def env_prefix(self) -> str:
        return re.sub(r"\W", "_", self.declaration.slot_name).upper()

    def rank(self, device_id: DeviceId) -> int:
        return self._ranks.get(device_id, len(self._ranks))

    def _devices(self) -> list[MockDevice]:
        return [d for d in self.declaration.devices if d.mother_uuid not in self._config.device_mask]

    # ---- devices and slots

    def _subtype(self, device: MockDevice) -> str:
        if device.is_mig_device:
            gib = max(1, device.memory_size >> 30)
            return f"device:{gib}g-mig"
        return "device" if self._config.allocation_mode == "discrete" else "shares"

    def _slot_name(self, subtype: str) -> SlotName:
        return SlotName(f"{self.declaration.slot_name}.{subtype}")

    def _slot(self, device: MockDevice) -> DeviceSlot:
        name = self._slot_name(self._subtype(device))
        if device.is_mig_device:
            return DeviceSlot(slot_name=name, slot_type=SlotType.UNIQUE, amount=Decimal(1))
        if self._config.allocation_mode == "discrete":
            return DeviceSlot(slot_name=name, slot_type=SlotType.COUNT, amount=Decimal(1))
        quantum = self._config.quantum_size
        amount = min(
            Decimal(device.memory_size) / self._config.unit_mem, Decimal(device.subproc_count) / self._config.unit_proc
        )
        return DeviceSlot(slot_name=name, slot_type=SlotType.COUNT, amount=amount // quantum * quantum, quantum=quantum)

    async def list_devices(self) -> Sequence[ComputeDevice]:
        return [
            ComputeDevice(
                device_name=self.key,
                device_id=DeviceId(d.mother_uuid),
                hw_location=f"mock:{n:02}",
                numa_node=d.numa_node,
                memory_size=d.memory_size,
                processing_units=d.subproc_count,
                model_name=d.model_name,
                health=DeviceHealth.HEALTHY if d.is_healthy else DeviceHealth.UNHEALTHY,
                memory_spec=MemorySpec(total_memory=d.memory_size),
                compute_units=(ComputeUnit(name="subproc", count=d.subproc_count),),
                partitioning_support=(PartitioningCapability(technology="MIG"),) if d.is_mig_device else (),
                slots=(self._slot(d),),
            )
            for n, d in enumerate(self._devices())
        ]

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        slices = dict.fromkeys(self._subtype(d) for d in self.declaration.devices if d.is_mig_device)
        return [self._display(subtype) for subtype in ("device", "shares", *slices)]

    def _display(self, subtype: str) -> SlotDisplay:
        formats = self.declaration.formats
        short = subtype.removeprefix("device:")
        given = formats.get(subtype) or formats.get(short) or (formats.get("*-mig") if short != subtype else None)
        shown = given or SlotFormat()
        is_share = subtype == "shares"
        return SlotDisplay(
            slot_name=self._slot_name(subtype),
            slot_type=SlotType.UNIQUE if short != subtype else SlotType.COUNT,
            description=shown.description or "Mock accelerator",
            human_readable_name=shown.human_readable_name or "Mock Device",
            display_unit=shown.display_unit or ("Share" if is_share else "Device"),
            display_icon=shown.display_icon or "npu1",
            number_binary=shown.number_format.binary,
            number_round_length=shown.number_format.round_length if given else 2 * is_share,
        )

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return slot_totals(await self.list_devices())

    def alloc_map_spec(self) -> AllocMapSpec:
        return AllocMapSpec(kind=self._config.allocation_mode, strategy=self._config.strategy)

    # ---- workloads

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return MockHook(workload, device_alloc, context, self)

    def _held(self, device_alloc: DeviceAllocation) -> dict[DeviceId, Decimal]:
        """Devices of an allocation with the part of each that is held, 1 being the whole device."""
        known = {DeviceId(d.mother_uuid): d for d in self._devices()}
        return {
            device_id: quantity / amount
            for per_device in device_alloc.slots.values()
            for device_id, quantity in per_device.items()
            if device_id in known and (amount := self._slot(known[device_id]).amount)
        }

    def resource_data(self, device_alloc: DeviceAllocation, ids: Sequence[DeviceId]) -> dict[str, str]:
        """Lines of ``resource.txt``: what a library hook inside would read (peer facts 2.4)."""
        prefix = self.env_prefix
        lines = {
            f"{prefix}_GLOBAL_DEVICE_IDS": ",".join(f"{n}:{d}" for n, d in enumerate(ids)),
            f"{prefix}_RESOURCE_VIRTUALIZED": "1" if self._config.allocation_mode == "fractional" else "0",
        }
        if self._config.allocation_mode == "fractional":
            known = {DeviceId(d.mother_uuid): d for d in self._devices()}
            held = self._held(device_alloc)
            shares = [(n, held[d], known[d]) for n, d in enumerate(ids) if d in held]
            lines[f"{prefix}_MEMORY_LIMITS"] = ",".join(f"{n}:{int(p * d.memory_size)}" for n, p, d in shares)
            lines[f"{prefix}_PROCESSOR_LIMITS"] = ",".join(
                f"{n}:{max(1, int(p * d.subproc_count))}" for n, p, d in shares
            )
        return lines

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        known = {DeviceId(d.mother_uuid): d for d in self._devices()}
        return [
            AttachedDevice(
                device_id=device_id,
                model_name=known[device_id].model_name,
                data={
                    "smp": int(part * known[device_id].subproc_count),
                    "mem": int(part * known[device_id].memory_size),
                },
            )
            for device_id, part in sorted(self._held(device_alloc).items(), key=lambda item: self.rank(item[0]))
        ]

    # ---- metrics

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        devices = self._devices()
        prefix = self.declaration.slot_name
        loads = [metrics.load(ctx.at, n, len(devices)) for n in range(len(devices))]
        found = [
            m
            for d, at_load in zip(devices, loads, strict=True)
            for m in metrics.of_device(prefix, DeviceId(d.mother_uuid), at_load, float(d.memory_size))
        ]
        parts = [(at_load, float(d.memory_size), Decimal(1)) for d, at_load in zip(devices, loads, strict=True)]
        return [*metrics.of_parts(prefix, parts), *found]

    async def gather_workload_metrics(
        self, ctx: StatContext, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        devices = self._devices()
        memory = {DeviceId(d.mother_uuid): float(d.memory_size) for d in devices}
        found: dict[KernelId, Sequence[Measurement]] = {}
        for kernel_id in kernels:
            held = self._held(ctx.allocations.get(kernel_id, DeviceAllocation()))
            parts = [(metrics.load(ctx.at, self.rank(d), len(devices)), memory[d], part) for d, part in held.items()]
            if parts:
                found[kernel_id] = metrics.of_parts(self.declaration.slot_name, parts)
        return found

    async def get_node_info(self) -> NodeInfo:
        attributes = self.declaration.attributes
        return NodeInfo(
            driver_version=attributes.get("nvidia_driver") or attributes.get("driver"),
            runtime_version=attributes.get("cuda_runtime") or attributes.get("runtime"),
            extra={"devices": str(len(self._devices())), "mode": self._config.allocation_mode},
        )
