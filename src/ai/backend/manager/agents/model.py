"""Defines agents, slot types, and the kernels that occupy agents (spec 03-09; client wire contract 3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import InvalidQuantity
from ai.backend.common.ids import AccessKey, AgentId, KernelId, ResourceGroupName, SessionId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, KernelStatus, SlotType
from ai.backend.common.wire.reports import (
    ImageReport,
    KernelPresence,
    OverlayReport,
    PluginReport,
    RuntimeClassReport,
)

PULLING_RUNTIMES = frozenset({"docker"})
FETCHING_RUNTIMES = PULLING_RUNTIMES | {"kubernetes"}
"""Runtimes that can start an image of a registry, including runtimes that cannot fetch it before the session."""


def counted_ids(device: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the ids whose use counts as use of a reported device: the device's id and its partitions' ids."""
    partition_ids = device.get("partition_ids") or ()
    return str(device.get("device_id")), *(str(partition_id) for partition_id in partition_ids)


def withheld_slots(devices: Iterable[Mapping[str, Any]]) -> ResourceSlot:
    """Returns the slots of unhealthy devices; malformed devices count as devices without slots."""
    withheld = ResourceSlot()
    for device in devices:
        if device.get("health") == DeviceHealth.UNHEALTHY.value:
            with suppress(KeyError, TypeError, AttributeError, InvalidQuantity):
                withheld += ResourceSlot.parse({slot["slot_name"]: str(slot["amount"]) for slot in device["slots"]})
    return withheld


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """Represents an agent as its last heartbeat described it.

    ``epoch`` grows with each start of the agent; ``generation`` is that of its device inventory. ``devices`` are
    :class:`ai.backend.common.devices.ComputeDevice` as builtins. ``enforcement`` is limit or isolation -> how the
    runtime enforces it. ``location`` is its failure domains, the widest first. ``live_stat``, ``{"node": {...},
    "devices": {...}}``, is filled at reads only.
    """

    id: AgentId
    status: AgentStatus
    status_changed: datetime
    epoch: int = 0
    region: str = "local"
    architecture: str
    scaling_group: ResourceGroupName
    schedulable: bool = True
    available_slots: ResourceSlot
    occupied_slots: ResourceSlot = msgspec.field(default_factory=ResourceSlot)
    addr: str = ""
    first_contact: datetime
    last_heartbeat: datetime
    lost_at: datetime | None = None
    version: str = ""
    runtime: str = ""
    tier: str = ""
    enforcement: Mapping[str, str] = msgspec.field(default_factory=dict)
    generation: int = 0
    devices: tuple[Mapping[str, Any], ...] = ()
    plugins: tuple[PluginReport, ...] = ()
    images: tuple[ImageReport, ...] = ()
    runtime_classes: tuple[RuntimeClassReport, ...] = ()
    overlay: OverlayReport | None = None
    location: tuple[str, ...] = ()
    kernel_limit: int | None = None
    live_stat: Mapping[str, Any] | None = None
    version_id: int = 1

    @property
    def can_pull(self) -> bool:
        """Returns True if the agent's runtime can pull images from registries on request."""
        return self.runtime in PULLING_RUNTIMES

    @property
    def can_fetch(self) -> bool:
        """Returns True if the agent can start a session from a registry's image that is not yet on its node."""
        return self.runtime in FETCHING_RUNTIMES

    @property
    def capacity(self) -> ResourceSlot:
        """Returns the available slots plus the slots of failed devices, which kernels may still hold."""
        return self.available_slots + withheld_slots(self.devices)

    @property
    def compute_plugins(self) -> Mapping[str, Mapping[str, Any]]:
        """The version, health and further information of each accelerator plugin of the agent, by the plugin's name."""
        return {
            plugin.name: {
                **plugin.info,
                "version": plugin.version,
                "healthy": plugin.healthy,
                **({"reason": plugin.reason} if plugin.reason else {}),
            }
            for plugin in self.plugins
        }


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the fields of an agent that change while the agent runs, such as its status and its occupied slots.

    ``version_id`` grows with each report that says something new, as of devices.
    """

    status: AgentStatus
    schedulable: bool
    scaling_group: str
    occupied_slots: ResourceSlot
    version_id: int


class SlotTypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the type and the display data of a slot that at least one agent has reported at some time.

    ``display`` is a ``SlotDisplay`` as builtins, or empty.
    """

    slot_name: SlotName
    slot_type: SlotType
    display: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Returns the display data of the slot for user interfaces (peer facts 1.1), with defaults
        for missing values.
        """
        display = self.display
        is_bytes = self.slot_type is SlotType.BYTES
        return {
            "slot_name": self.slot_name,
            "slot_type": self.slot_type.value,
            "description": display.get("description") or "",
            "human_readable_name": display.get("human_readable_name") or self.slot_name,
            "display_unit": display.get("display_unit") or ("GiB" if is_bytes else ""),
            "number_format": {
                "binary": display.get("number_binary", is_bytes),
                "round_length": display.get("number_round_length", 0),
            },
            "display_icon": display.get("display_icon") or "",
        }


class PresenceDifferences(msgspec.Struct, frozen=True):
    """Lists the kernels that an agent should remove, and the running kernels that the agent should report again."""

    unknown: list[KernelPresence]
    unobserved: list[KernelPresence]


class KernelOccupancy(msgspec.Struct, frozen=True, kw_only=True):
    """Summarizes a kernel or a device claim that occupies an agent.

    The fields are those of :class:`Kernel` and of its session. ``claim_id`` is the device claim whose devices the
    kernel has besides its own. With ``is_claim`` it is a claim itself, whose id is ``kernel_id``; ``scope`` is its
    domain, project and user then.
    """

    kernel_id: KernelId
    session_id: SessionId
    agent: AgentId
    access_key: AccessKey
    status: KernelStatus
    status_changed: datetime
    attempt: int
    slots: ResourceSlot
    devices: Mapping[str, Mapping[str, str]]
    device_requests: tuple[str, ...] = ()
    claim_id: UUID | None = None
    is_claim: bool = False
    scope: tuple[str, str, str] | None = None
