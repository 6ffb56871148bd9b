"""Resource presets, checks of presets, and variants of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ai.backend.common.devices import VariantMatchMode, VariantProperty
from ai.backend.common.ids import DeviceName, ResourceGroupName
from ai.backend.common.slots import ResourceSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedVariant:
    """A property that a session may require of its devices, and the number of healthy devices that have it.

    ``devices``: resource group -> number of devices. ``device_names``: the plugins of the devices.
    """

    property: VariantProperty
    match_mode: VariantMatchMode
    device_names: tuple[DeviceName, ...]
    devices: Mapping[ResourceGroupName, int]

    def to_json(self) -> dict[str, Any]:
        return {
            "property": str(self.property),
            "namespace": self.property.namespace,
            "feature": self.property.feature,
            "value": self.property.value,
            "match_mode": self.match_mode.value,
            "device_names": list(self.device_names),
            "devices": dict(self.devices),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePreset:
    """A named combination of resources; ``shared_memory`` is in bytes."""

    name: str
    resource_slots: ResourceSlot
    shared_memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetCheck:
    """The quotas of a caller and which presets fit (spec 03-08, "check-presets"); infinite prints as ``Infinity``."""

    presets: tuple[tuple[ResourcePreset, bool], ...]
    keypair_limits: ResourceSlot
    keypair_using: ResourceSlot
    keypair_remaining: ResourceSlot
    group_limits: ResourceSlot
    group_using: ResourceSlot
    group_remaining: ResourceSlot
    domain_limits: ResourceSlot
    domain_using: ResourceSlot
    domain_remaining: ResourceSlot
    scaling_groups: Mapping[str, tuple[ResourceSlot, ResourceSlot]]
    """Resource group -> (using, remaining)."""
