"""Defines resource presets, the replies of their checks, and variants of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ai.backend.common.devices import VariantMatchMode, VariantProperty
from ai.backend.common.ids import DeviceName, ResourceGroupName
from ai.backend.common.slots import ResourceSlot


class OfferedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A property that a session may require of its devices, and the number of healthy devices that have it.
    ``devices``: resource group -> number of devices. ``device_names``: the plugins of the devices."""

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


class ResourcePreset(msgspec.Struct, frozen=True, kw_only=True):
    """A named combination of resources; ``shared_memory`` is in bytes, ``device_requests`` are alternatives of what the
    devices of its accelerators must be."""

    name: str
    resource_slots: ResourceSlot
    shared_memory: int | None = None
    device_requests: tuple[str, ...] = ()


class QuotaState(msgspec.Struct, frozen=True):
    """Holds the limits of the slots of a quota and the amounts in use; infinite amounts print as ``Infinity``."""

    limits: ResourceSlot
    using: ResourceSlot

    @property
    def remaining(self) -> ResourceSlot:
        return self.limits - self.using


class PresetCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the quotas of a caller, and for each preset if the preset fits now (spec 03-08, "check-presets").

    ``quotas``: of the ``keypair``, the ``group`` and the ``domain``. ``scaling_groups``: resource group -> (using,
    remaining).
    """

    presets: Sequence[tuple[ResourcePreset, bool]]
    quotas: Mapping[str, QuotaState]
    scaling_groups: Mapping[str, tuple[ResourceSlot, ResourceSlot]]
