"""Optional powers of a plugin: each a capability flag and a Protocol of the same name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, runtime_checkable

from ai.backend.common.devices import DeviceHealth
from ai.backend.common.ids import DeviceId, SlotName


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCapabilities:
    """Optional powers. A flag that is set promises the Protocol of the same name."""

    partitionable: bool = False
    programmable: bool = False
    power_controllable: bool = False
    attachable: bool = False
    health_watching: bool = False
    cdi_provider: bool = False
    process_metrics: bool = False
    blocking: bool = False
    """The plugin loads vendor libraries: run it in a host process of its own, where it may block or crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealthChange:
    """News of one device. ``reason`` is for people ("Xid 79: the device fell off the bus"); empty when healthy."""

    device_id: DeviceId
    health: DeviceHealth
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProfile:
    """A kind of partition that a device can be cut into; ``available`` says how many more of it fit now."""

    name: str
    slot_name: SlotName
    amount: Decimal = Decimal(1)
    memory_size: int = 0
    available: int = 0


@runtime_checkable
class HealthWatching(Protocol):
    """``health_watching``: the plugin hears of failures sooner than the next ``list_devices``."""

    def watch_health(self) -> AsyncIterator[DeviceHealthChange]:
        """Changes as they happen, without end. A change may be repeated, and one may be lost while nobody listens:
        ``list_devices`` is the truth. An exception ends the watch; the agent starts another one later.
        """
        ...


@runtime_checkable
class Partitionable(Protocol):
    """``partitionable``: devices can be cut into partitions that are devices of their own (MIG and the like)."""

    async def partition_profiles(self, device_id: DeviceId) -> Sequence[PartitionProfile]:
        """Lists the partitions that a device offers. Raises NotFound for an unknown device and for a partition."""
        ...

    async def create_partition(self, device_id: DeviceId, profile: str) -> DeviceId:
        """Make one; the id is listed by ``list_devices`` from now on. Raises Conflict while the device is in use."""
        ...

    async def destroy_partition(self, partition_id: DeviceId) -> None:
        """Undo it. Safe if it is gone; raises Conflict while it is in use."""
        ...


@runtime_checkable
class Programmable(Protocol):
    """``programmable``: an image (a bitstream) is loaded before use."""

    async def program(self, device_id: DeviceId, image: str) -> None:
        """Load the image of this host path; safe if it is loaded. Raises InvalidInput for one that does not fit."""
        ...

    async def programmed_image(self, device_id: DeviceId) -> str | None:
        """Returns the image that is loaded, None if there is none."""
        ...


@runtime_checkable
class PowerControllable(Protocol):
    """``power_controllable``: devices are switched and reset. Every call is safe if the device is so already."""

    async def power_on(self, device_id: DeviceId) -> None: ...
    async def power_off(self, device_id: DeviceId) -> None:
        """Raises Conflict while a workload holds it."""
        ...

    async def reset(self, device_id: DeviceId) -> None:
        """Raises Conflict while a workload holds it."""
        ...


@runtime_checkable
class Attachable(Protocol):
    """``attachable``: devices of another box are attached to this node and detached again."""

    async def attachable_devices(self) -> Sequence[DeviceId]: ...
    async def attach(self, device_id: DeviceId) -> None:
        """``list_devices`` has it from now on. Safe if it is attached."""
        ...

    async def detach(self, device_id: DeviceId) -> None:
        """Raises Conflict while a workload holds it. Safe if it is gone."""
        ...


@runtime_checkable
class CdiProvider(Protocol):
    """``cdi_provider``: the plugin describes its devices in the Container Device Interface."""

    async def cdi_spec(self) -> Mapping[str, Any]:
        """A CDI specification (cncf-tags/container-device-interface, ``cdiVersion`` 0.6.0) of all healthy devices, as
        JSON. Its names are what ``DeviceMapping.cdi_name`` says.
        """
        ...


POWERS: Mapping[str, type] = {
    "partitionable": Partitionable,
    "programmable": Programmable,
    "power_controllable": PowerControllable,
    "attachable": Attachable,
    "health_watching": HealthWatching,
    "cdi_provider": CdiProvider,
}
"""Capability flag -> the Protocol that it promises."""
