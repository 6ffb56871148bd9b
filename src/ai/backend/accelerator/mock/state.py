"""Combines the declaration, the settings, the simulated hardware and the control file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from decimal import Decimal
from typing import TypeVar

from ai.backend.accelerator.mock.control import ControlPanel
from ai.backend.accelerator.mock.declaration import (
    CONTROL_NAME,
    Declaration,
    MockDevice,
    Partition,
    default_declaration,
    find_declaration,
    read_table,
)
from ai.backend.accelerator.mock.faults import FaultSchedule
from ai.backend.accelerator.mock.hardware import Hardware
from ai.backend.accelerator.mock.settings import MockSettings
from ai.backend.accelerator.mock.topology import links_of
from ai.backend.common.devices import (
    ComputeDevice,
    ComputePrecisionSupport,
    ComputeUnit,
    DeviceHealth,
    DeviceLink,
    DeviceSlot,
    MemorySpec,
    PartitioningCapability,
    VariantProperty,
)
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType

R = TypeVar("R")
ONE = Decimal(1)
_WHOLE = "whole"
"""The exclusive group of what one device offers."""


def slice_of(memory_size: int) -> str:
    """Subtype of a slice: named after its memory in GiB (peer facts 2.4)."""
    return f"device:{max(1, memory_size >> 30)}g-mig"


class MockState:
    """All devices as they are now. Before :meth:`open` those of the default declaration."""

    def __init__(self, settings: MockSettings, declaration: Declaration | None, *, isolated: bool) -> None:
        self.settings = settings
        self._given = declaration
        self.faults = FaultSchedule(isolated=isolated)
        self._set(declaration or default_declaration(settings.default_devices))
        self.hardware = Hardware()

    def _set(self, declaration: Declaration) -> None:
        self.declaration = declaration
        mask = self.settings.device_mask
        self.devices = {d.mother_uuid: d for d in declaration.expanded() if d.mother_uuid not in mask}
        self._links = links_of(declaration, list(self.devices.values()))
        self._ranks = {name: n for n, name in enumerate(self.devices)}
        self.panel = ControlPanel(declaration, self.settings.control_path, self.faults)

    def open(self) -> None:
        """Read everything. Raises InvalidInput or PluginError, naming file and key."""
        path = find_declaration(self.settings.config_path) if self._given is None else None
        if path is not None:
            self._set(read_table(path, Declaration))
        control = self.settings.control_path or (path.with_name(CONTROL_NAME) if path is not None else None)
        self.panel = ControlPanel(self.declaration, control, self.faults, source=path)
        self.panel.load()
        self.hardware = Hardware.load(self.settings.state_path)

    def save(self) -> None:
        """Keep the state of the hardware. Raises PluginError."""
        self.hardware.save(self.settings.state_path)

    async def faulted(self, call: str, make: Callable[[], Awaitable[R]], devices: Collection[str] = ()) -> R:
        """Make a call, or what the faults in force make of it."""
        self.panel.refresh()
        return await self.faults.run(call, make, devices)

    def rank(self, device_id: str) -> tuple[int, str]:
        """Where a device or partition stands in the order of the declaration."""
        return self._ranks.get(device_id.partition("/")[0], len(self._ranks)), device_id

    # ---- slots

    def slot_name(self, subtype: str) -> SlotName:
        return SlotName(f"{self.declaration.slot_name}.{subtype}")

    def subtypes(self) -> tuple[str, ...]:
        """Returns every subtype that can be offered under any settings."""
        names = dict.fromkeys(("device", "shares"))
        for device in self.declaration.expanded():
            names |= dict.fromkeys(self._offered(device))
            names |= dict.fromkeys(slice_of(p.memory_size) for p in device.partitions)
        return tuple(names)

    def is_fractional(self) -> bool:
        return self.settings.allocation_mode == "fractional" or any("shares" in d.offers for d in self.devices.values())

    def _offered(self, device: MockDevice) -> tuple[str, ...]:
        if device.offers:
            return tuple(f"device:{o}" if o.endswith("g-mig") else o for o in device.offers)
        if device.is_mig_device:
            return (slice_of(device.memory_size),)
        return ("device" if self.settings.allocation_mode == "discrete" else "shares",)

    def _slot(self, device: MockDevice, subtype: str) -> DeviceSlot:
        group = _WHOLE if len(device.offers) > 1 else None
        name = self.slot_name(subtype)
        if subtype == "shares":
            units = (
                Decimal(device.memory_size) / self.settings.unit_mem,
                device.subproc_count / Decimal(self.settings.unit_proc),
            )
            quantum = self.settings.quantum_size
            amount = min(units) // quantum * quantum
            return DeviceSlot(
                slot_name=name, slot_type=SlotType.COUNT, amount=amount, quantum=quantum, exclusive_group=group
            )
        slot_type = SlotType.COUNT if subtype == "device" else SlotType.UNIQUE
        return DeviceSlot(slot_name=name, slot_type=slot_type, amount=ONE, exclusive_group=group)

    # ---- devices

    def present(self) -> list[ComputeDevice]:
        """Returns every device and partition that is here."""
        devices = []
        for n, device in enumerate(self.devices.values()):
            if not device.is_attached and device.mother_uuid not in self.hardware.attached:
                continue
            whole = self._whole(n, device)
            parts = self._parts(whole, device)
            if parts:
                whole = replace(whole, slots=tuple(replace(s, amount=Decimal(0)) for s in whole.slots))
            devices += [whole, *parts]
        present_ids = {d.device_id for d in devices}
        return [replace(d, links=tuple(link for link in d.links if link.peer in present_ids)) for d in devices]

    def _health(self, device: MockDevice, *names: str) -> tuple[DeviceHealth, str]:
        reason = self.panel.failure(*names, device.mother_uuid)
        if reason is None and device.mother_uuid in self.hardware.off:
            reason = "the power is off"
        if reason is None and not device.is_healthy:
            reason = "declared as not healthy"
        return (DeviceHealth.HEALTHY, "") if reason is None else (DeviceHealth.UNHEALTHY, reason)

    def _whole(self, n: int, device: MockDevice) -> ComputeDevice:
        health, reason = self._health(device)
        can_be_cut = device.is_mig_device or bool(device.partitions) or any("mig" in o for o in device.offers)
        most = max([1, *(p.max for p in device.partitions)])
        links: tuple[DeviceLink, ...] = self._links[device.mother_uuid]
        return ComputeDevice(
            device_name=DeviceName("mock"),
            device_id=DeviceId(device.mother_uuid),
            hw_location=f"mock:{n:02}",
            numa_node=device.node,
            memory_size=device.memory_size,
            processing_units=device.subproc_count,
            model_name=device.model_name,
            health=health,
            health_reason=reason,
            memory_spec=MemorySpec(
                total_memory=device.memory_size, memory_type=device.memory_type, bandwidth=device.memory_bandwidth
            ),
            compute_units=tuple(
                ComputeUnit(name=name, count=count)
                for name, count in (device.compute_units or {"subproc": device.subproc_count}).items()
            ),
            precision_support=tuple(
                ComputePrecisionSupport(format=name, support=support) for name, support in device.precisions.items()
            ),
            partitioning_support=(PartitioningCapability(max_partitions=most, technology="MIG"),) if can_be_cut else (),
            links=links,
            variant_properties=tuple(
                VariantProperty(namespace=namespace, feature=feature, value=value)
                for namespace, features in device.variants.items()
                for feature, values in features.items()
                for value in ((values,) if isinstance(values, str) else values)
            ),
            slots=tuple(self._slot(device, subtype) for subtype in self._offered(device)),
        )

    def _parts(self, whole: ComputeDevice, device: MockDevice) -> list[ComputeDevice]:
        profiles = {p.name: p for p in device.partitions}
        made = (
            sorted(
                (name, profiles[profile])
                for name, (parent, profile) in self.hardware.partitions.items()
                if parent == device.mother_uuid and profile in profiles
            )
            if self.hardware.partitions
            else []
        )
        return [self._part(n, name, profile, whole, device) for n, (name, profile) in enumerate(made)]

    def _part(self, n: int, name: str, profile: Partition, whole: ComputeDevice, device: MockDevice) -> ComputeDevice:
        health, reason = self._health(device, name)
        slot = DeviceSlot(
            slot_name=self.slot_name(slice_of(profile.memory_size)), slot_type=SlotType.UNIQUE, amount=ONE
        )
        return replace(
            whole,
            device_id=DeviceId(name),
            hw_location=f"{whole.hw_location}.{n}",
            memory_size=profile.memory_size,
            processing_units=profile.subproc_count,
            model_name=f"{whole.model_name} {profile.name}",
            health=health,
            health_reason=reason,
            memory_spec=MemorySpec(total_memory=profile.memory_size, memory_type=device.memory_type),
            compute_units=(ComputeUnit(name="subproc", count=profile.subproc_count),),
            partitioning_support=(),
            links=(),
            slots=(slot,),
        )
