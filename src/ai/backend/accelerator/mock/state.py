"""Holds all mock devices: the declaration, the settings, the simulated hardware and the control file."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ai.backend.accelerator.mock.declaration import (
    CONTROL_NAME,
    Control,
    Declaration,
    MockDevice,
    MockSettings,
    Partition,
    default_declaration,
    find_declaration,
    read_table,
)
from ai.backend.accelerator.mock.faults import FaultSchedule
from ai.backend.common.devices import (
    ComputeDevice,
    ComputePrecisionSupport,
    ComputeUnit,
    DeviceHealth,
    DeviceLink,
    DeviceSlot,
    LinkKind,
    MemorySpec,
    PartitioningCapability,
    VariantProperty,
)
from ai.backend.common.errors import BackendError, InvalidInput, PluginError
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace


@dataclass
class Hardware:
    """Holds the simulated state of all devices, by device id.

    Attributes:
        partitions: partition id -> [device id, name of the profile].
        off: devices without power.
        images: device id -> the image that is loaded.
        attached: those of another box that are attached here.
        in_use: device id -> the kernels that hold it.
        resets: device id -> how often it was reset.
    """

    partitions: dict[str, list[str]] = field(default_factory=dict)
    off: list[str] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    attached: list[str] = field(default_factory=list)
    in_use: dict[str, list[str]] = field(default_factory=dict)
    resets: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None) -> Hardware:
        """Loads the state of the hardware from a file. Raises PluginError: the file cannot be used."""
        if path is None or not path.exists():
            return cls()
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as e:
            raise PluginError(f"the state of the mock hardware in {path} cannot be used: {e}") from None

    def save(self, path: Path | None) -> None:
        """Writes the state of the hardware to a file as a whole. Raises PluginError."""
        if path is None:
            return
        new_path = path.with_name(path.name + ".new")
        try:
            new_path.write_text(json.dumps(asdict(self)), encoding="utf-8")
            new_path.replace(path)
        except OSError as e:
            raise PluginError(f"the state of the mock hardware cannot be written: {e}") from None


NVLINK_GIB_S = 50.0


def _nvlink_all(rank: int, peer_rank: int) -> LinkKind:
    return LinkKind.DIRECT


def _nvlink_pairs(rank: int, peer_rank: int) -> LinkKind:
    return LinkKind.DIRECT if rank // 2 == peer_rank // 2 else _pcie_tree(rank, peer_rank)


def _pcie_tree(rank: int, peer_rank: int) -> LinkKind:
    """Returns the kind of the link between two devices of a simulated PCIe tree.

    In the tree each switch has two devices, and each root has two switches.
    """
    if rank // 2 == peer_rank // 2:
        return LinkKind.PCIE_SWITCH
    return LinkKind.PCIE_ROOT if rank // 4 == peer_rank // 4 else LinkKind.NUMA


_TOPOLOGIES = {"nvlink-all": _nvlink_all, "nvlink-pairs": _nvlink_pairs, "pcie-tree": _pcie_tree}


def links_of(declaration: Declaration, devices: Sequence[MockDevice]) -> Mapping[str, tuple[DeviceLink, ...]]:
    """Returns the links of each device by device id, in the order of the devices. Links to peers that are not among
    ``devices`` are left out.
    """
    ranks = {device.mother_uuid: rank for rank, device in enumerate(declaration.single_devices())}
    declared_links = {frozenset((link.a, link.b)): link for link in declaration.links}
    kind_of_link = _TOPOLOGIES.get(declaration.topology or "")

    def between(device: MockDevice, peer: MockDevice) -> DeviceLink | None:
        link = declared_links.get(frozenset((device.mother_uuid, peer.mother_uuid)))
        peer_id = DeviceId(peer.mother_uuid)
        if link is not None:
            return DeviceLink(peer=peer_id, kind=link.kind, bandwidth_gib_s=link.bandwidth)
        if kind_of_link is None:
            return None
        link_kind = kind_of_link(ranks[device.mother_uuid], ranks[peer.mother_uuid])
        if link_kind is LinkKind.NUMA and device.node != peer.node:
            link_kind = LinkKind.SYSTEM
        return DeviceLink(
            peer=peer_id, kind=link_kind, bandwidth_gib_s=NVLINK_GIB_S if link_kind is LinkKind.DIRECT else None
        )

    return {
        device.mother_uuid: tuple(
            link for peer in devices if peer is not device and (link := between(device, peer)) is not None
        )
        for device in devices
    }


log = logging.getLogger(__name__)
ALL_DEVICES = "*"


class ControlPanel:
    """Combines the failures and faults of the declaration with those of the control file.

    The control file is read again after a change. A malformed one changes nothing while the plugin runs, and is
    reported in the log and in ``problem``.
    """

    def __init__(
        self, declaration: Declaration, path: Path | None, faults: FaultSchedule, *, source: Path | None = None
    ) -> None:
        self._declaration = declaration
        self._source = source
        self._path = path
        self._known = frozenset(device.mother_uuid for device in declaration.single_devices())
        self._stamp: tuple[int, ...] | None = ()
        self._unhealthy: dict[str, str] = {}
        self.faults = faults
        self.problem = ""

    def load(self) -> None:
        """Loads the control file. Raises InvalidInput or PluginError for wrong content, which changes nothing."""
        self._stamp = self._read_stamp()
        control = read_table(self._path, Control) if self._path is not None and self._stamp is not None else Control()
        for source_path, table in ((self._source, self._declaration), (self._path, control)):
            unknown_names = [
                name for name in table.unhealthy if name != ALL_DEVICES and name.partition("/")[0] not in self._known
            ]
            problem = (
                f"unhealthy: there is no device {unknown_names[0]!r}"
                if unknown_names
                else self.faults.describe_refused_fault(table.faults)
            )
            if problem:
                raise InvalidInput(f"{source_path or 'the declaration'}: {problem}")
        self.faults.replace_all((*control.faults, *self._declaration.faults))
        unhealthy = {**self._declaration.unhealthy, **control.unhealthy}
        self._unhealthy = unhealthy
        self.problem = ""

    def refresh(self) -> None:
        """Reads the control file again if it has changed."""
        if self._read_stamp() == self._stamp:
            return
        try:
            self.load()
        except BackendError as e:
            self.problem = e.message
            log.error("the control file of the mock accelerator is not used: %s", e.message)

    def failure(self, *device_ids: str) -> str | None:
        """Returns the reason why one of these devices counts as failed, or None if all are healthy."""
        for name in (*device_ids, ALL_DEVICES):
            if name in self._unhealthy:
                return self._unhealthy[name] or "switched to unhealthy"
        return None

    def _read_stamp(self) -> tuple[int, ...] | None:
        try:
            file_status = self._path.stat() if self._path is not None else None
        except OSError:
            file_status = None
        return (file_status.st_mtime_ns, file_status.st_size, file_status.st_ino) if file_status is not None else None


P = ParamSpec("P")
R = TypeVar("R")
ONE = Decimal(1)
_DEVICE_GROUP = "whole"
"""The exclusive group of all slots that one device offers."""


def slice_slot_name(memory_size: int) -> str:
    """Returns the subtype of the slot for a slice of ``memory_size`` bytes, such as ``device:10g-mig`` for 10 GiB.

    The subtype is the part of the slot name after the dot (peer facts 2.4).
    """
    return f"device:{max(1, memory_size >> 30)}g-mig"


def with_faults(method: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Wraps a method of the plugin so that the faults in force change its result."""

    @wraps(method)
    async def call_with_faults(*args: P.args, **kwargs: P.kwargs) -> R:
        mock_state: MockState = args[0].mock_state  # type: ignore[attr-defined]  # of the plugin
        return await mock_state.run_with_faults(method.__name__, lambda: method(*args, **kwargs))

    return call_with_faults


class MockState:
    """Holds all devices in their present state; those of the default declaration before :meth:`open`."""

    def __init__(self, settings: MockSettings, declaration: Declaration | None, *, isolated: bool) -> None:
        self.settings = settings
        self._preset = declaration
        self.faults = FaultSchedule(isolated=isolated)
        self._use_declaration(declaration or default_declaration(settings.default_devices))
        self.hardware = Hardware()

    def _use_declaration(self, declaration: Declaration) -> None:
        self.declaration = declaration
        masked_ids = self.settings.device_mask
        self.devices = {
            device.mother_uuid: device
            for device in declaration.single_devices()
            if device.mother_uuid not in masked_ids
        }
        self._links = links_of(declaration, list(self.devices.values()))
        self._ranks = {device_id: rank for rank, device_id in enumerate(self.devices)}
        self.panel = ControlPanel(declaration, self.settings.control_path, self.faults)

    def open(self) -> None:
        """Reads the declaration, control and state files. Raises InvalidInput or PluginError, naming file and key."""
        path = find_declaration(self.settings.config_path) if self._preset is None else None
        if path is not None:
            self._use_declaration(read_table(path, Declaration))
        control_path = self.settings.control_path or (path.with_name(CONTROL_NAME) if path is not None else None)
        self.panel = ControlPanel(self.declaration, control_path, self.faults, source=path)
        self.panel.load()
        self.hardware = Hardware.load(self.settings.state_path)

    def save(self) -> None:
        """Stores the state of the hardware. Raises PluginError."""
        self.hardware.save(self.settings.state_path)

    async def run_with_faults(self, call: str, make: Callable[[], Awaitable[R]], devices: Collection[str] = ()) -> R:
        """Runs a call of the plugin, changed by the faults in force."""
        self.panel.refresh()
        return await self.faults.run_call(call, make, devices)

    def rank(self, device_id: str) -> tuple[int, str]:
        """Returns the position of a device or partition in the order of the declaration."""
        return self._ranks.get(device_id.partition("/")[0], len(self._ranks)), device_id

    def slot_name(self, subtype: str) -> SlotName:
        return SlotName(f"{self.declaration.slot_name}.{subtype}")

    def subtypes(self) -> tuple[str, ...]:
        """Returns every subtype that can be offered under any settings."""
        names = dict.fromkeys(("device", "shares"))
        for device in self.declaration.single_devices():
            names |= dict.fromkeys(self._offered_subtypes(device))
            names |= dict.fromkeys(slice_slot_name(partition.memory_size) for partition in device.partitions)
        return tuple(names)

    def is_fractional(self) -> bool:
        return self.settings.allocation_mode == "fractional" or any(
            "shares" in device.offers for device in self.devices.values()
        )

    def _offered_subtypes(self, device: MockDevice) -> tuple[str, ...]:
        if device.offers:
            return tuple(f"device:{subtype}" if subtype.endswith("g-mig") else subtype for subtype in device.offers)
        if device.is_mig_device:
            return (slice_slot_name(device.memory_size),)
        return ("device" if self.settings.allocation_mode == "discrete" else "shares",)

    def _slot(self, device: MockDevice, subtype: str) -> DeviceSlot:
        group = _DEVICE_GROUP if len(device.offers) > 1 else None
        name = self.slot_name(subtype)
        if subtype == "shares":
            memory = Decimal(device.memory_size) / self.settings.unit_mem
            quantum = self.settings.quantum_size
            amount = min(memory, device.subproc_count / Decimal(self.settings.unit_proc)) // quantum * quantum
            return DeviceSlot(
                slot_name=name, slot_type=SlotType.COUNT, amount=amount, quantum=quantum, exclusive_group=group
            )
        slot_type = SlotType.COUNT if subtype == "device" else SlotType.UNIQUE
        return DeviceSlot(slot_name=name, slot_type=slot_type, amount=ONE, exclusive_group=group)

    def present_devices(self) -> list[ComputeDevice]:
        """Returns every attached device and its partitions."""
        devices = []
        for rank, device in enumerate(self.devices.values()):
            if not device.is_attached and device.mother_uuid not in self.hardware.attached:
                continue
            whole_device = self._whole_device(rank, device)
            partition_devices = self._partition_devices(whole_device, device)
            if partition_devices:
                whole_device = replace(
                    whole_device, slots=tuple(replace(slot, amount=Decimal(0)) for slot in whole_device.slots)
                )
            devices += [whole_device, *partition_devices]
        present_ids = {present_device.device_id for present_device in devices}
        return [
            replace(present_device, links=tuple(link for link in present_device.links if link.peer in present_ids))
            for present_device in devices
        ]

    def _health(self, device: MockDevice, *names: str) -> tuple[DeviceHealth, str]:
        reason = self.panel.failure(*names, device.mother_uuid)
        if reason is None and device.mother_uuid in self.hardware.off:
            reason = "the power is off"
        if reason is None and not device.is_healthy:
            reason = "declared as not healthy"
        return (DeviceHealth.HEALTHY, "") if reason is None else (DeviceHealth.UNHEALTHY, reason)

    def _whole_device(self, rank: int, device: MockDevice) -> ComputeDevice:
        health, reason = self._health(device)
        can_be_cut = device.is_mig_device or bool(device.partitions) or any("mig" in offer for offer in device.offers)
        max_count = max([1, *(partition.max for partition in device.partitions)])
        links: tuple[DeviceLink, ...] = self._links[device.mother_uuid]
        return ComputeDevice(
            device_name=DeviceName("mock"),
            device_id=DeviceId(device.mother_uuid),
            hw_location=f"mock:{rank:02}",
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
            partitioning_support=(PartitioningCapability(max_partitions=max_count, technology="MIG"),)
            if can_be_cut
            else (),
            links=links,
            variant_properties=tuple(
                VariantProperty(namespace=namespace, feature=feature, value=value)
                for namespace, features in device.variants.items()
                for feature, values in features.items()
                for value in ((values,) if isinstance(values, str) else values)
            ),
            slots=tuple(self._slot(device, subtype) for subtype in self._offered_subtypes(device)),
        )

    def _partition_devices(self, whole_device: ComputeDevice, device: MockDevice) -> list[ComputeDevice]:
        profiles = {partition.name: partition for partition in device.partitions}
        named_profiles = sorted(
            (name, profile)
            for name, (parent, profile) in self.hardware.partitions.items()
            if parent == device.mother_uuid and profile in profiles
        )
        return [
            self._partition_device(rank, name, profiles[profile], whole_device, device)
            for rank, (name, profile) in enumerate(named_profiles)
        ]

    def _partition_device(
        self, rank: int, name: str, profile: Partition, whole_device: ComputeDevice, device: MockDevice
    ) -> ComputeDevice:
        health, reason = self._health(device, name)
        slot = DeviceSlot(
            slot_name=self.slot_name(slice_slot_name(profile.memory_size)), slot_type=SlotType.UNIQUE, amount=ONE
        )
        return replace(
            whole_device,
            device_id=DeviceId(name),
            parent_id=whole_device.device_id,
            hw_location=f"{whole_device.hw_location}.{rank}",
            memory_size=profile.memory_size,
            processing_units=profile.subproc_count,
            model_name=f"{whole_device.model_name} {profile.name}",
            health=health,
            health_reason=reason,
            memory_spec=MemorySpec(total_memory=profile.memory_size, memory_type=device.memory_type),
            compute_units=(ComputeUnit(name="subproc", count=profile.subproc_count),),
            partitioning_support=(),
            links=(),
            slots=(slot,),
        )
