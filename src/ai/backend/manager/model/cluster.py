"""Agents and what they offer, as the manager knows them.

Source: spec 03-09 (Agent, Image, ResourcePreset), client wire contract 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ai.backend.common.ids import AgentId, ResourceGroupName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, SlotType
from ai.backend.common.wire.agent import ImageReport, PluginReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent as its last heartbeat described it.

    Attributes:
        epoch: grows with each start of the agent.
        generation: of the device inventory.
        devices: :class:`ai.backend.common.devices.ComputeDevice` as builtins, as they came.
        enforcement: limit or isolation -> what the runtime really does about it.
        live_stat: ``{"node": {...}, "devices": {...}}``, latest in memory, filled at reads only.
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
    occupied_slots: ResourceSlot = field(default_factory=ResourceSlot)
    addr: str = ""
    first_contact: datetime
    last_heartbeat: datetime
    lost_at: datetime | None = None
    version: str = ""
    runtime: str = ""
    tier: str = ""
    enforcement: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0
    devices: tuple[Mapping[str, Any], ...] = ()
    plugins: tuple[PluginReport, ...] = ()
    images: tuple[ImageReport, ...] = ()
    live_stat: Mapping[str, Any] | None = None
    version_id: int = 1

    @property
    def compute_plugins(self) -> Mapping[str, Mapping[str, Any]]:
        """Plugin name -> its version, health and whatever it tells about itself."""
        return {
            p.name: {"version": p.version, "healthy": p.healthy, **({"reason": p.reason} if p.reason else {}), **p.info}
            for p in self.plugins
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that some living agent can run, merged over agents."""

    name: str
    architecture: str
    digest: str = ""
    size_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    agents: tuple[AgentId, ...] = ()

    @property
    def min_slots(self) -> ResourceSlot:
        """From the labels ``ai.backend.resource.min.<slot>`` (spec 03-05)."""
        prefix = "ai.backend.resource.min."
        return ResourceSlot.parse({k.removeprefix(prefix): v for k, v in self.labels.items() if k.startswith(prefix)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTypeInfo:
    """A slot that an agent has reported at any time; ``display`` is for user interfaces."""

    slot_name: SlotName
    slot_type: SlotType
    display: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePreset:
    """``shared_memory`` is in bytes."""

    name: str
    resource_slots: ResourceSlot
    shared_memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetCheck:
    """What the caller can have (spec 03-08, "check-presets"). Infinite quantities print as ``Infinity``."""

    presets: tuple[tuple[ResourcePreset, bool], ...]
    keypair_limits: ResourceSlot
    keypair_using: ResourceSlot
    keypair_remaining: ResourceSlot
    group_limits: ResourceSlot
    group_using: ResourceSlot
    group_remaining: ResourceSlot
    scaling_groups: Mapping[str, tuple[ResourceSlot, ResourceSlot]]
    """Resource group -> (using, remaining)."""
