"""REST routes of slots, variants of devices and presets (spec 03-08, client wire contract 2.9)."""

from __future__ import annotations

import time
from typing import Any, TypedDict

import msgspec

from ai.backend.common.devices import VariantMatchMode
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SlotType
from ai.backend.infra.http.fields import Name
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Schema, route
from ai.backend.manager.access.requests import OBJECT_PROBLEMS, caller_of
from ai.backend.manager.resources.model import ResourcePreset
from ai.backend.manager.resources.presets import PresetService
from ai.backend.manager.resources.service import ResourceService

PRESETS_TTL_S = 0.2
"""How long encoded presets are served; only administrators and new agents change them."""


class SlotsQuery(Schema, frozen=True):
    sgroup: Name | None = None


class VariantsQuery(Schema, frozen=True):
    scaling_group: Name | None = None


class CheckPresetsBody(Schema, frozen=True):
    group: Name | None = None
    scaling_group: Name | None = None


class NumberFormat(TypedDict):
    binary: bool
    round_length: int


class SlotDetails(TypedDict):
    """The display data of a slot."""

    slot_name: str
    slot_type: SlotType
    description: str
    human_readable_name: str
    display_unit: str
    number_format: NumberFormat
    display_icon: str


class VariantItem(TypedDict):
    """A property of devices, with the number of healthy devices that have it, by resource group."""

    property: str
    namespace: str
    feature: str
    value: str
    match_mode: VariantMatchMode
    device_names: list[str]
    devices: dict[str, int]


class VariantsReply(TypedDict):
    variant_properties: list[VariantItem]


class PluginOptionsReply(TypedDict):
    plugin_options: dict[str, list[dict[str, Any]]]


Slots = dict[str, str]
"""Slot -> quantity."""


class PresetItem(TypedDict):
    """The Resource Preset Object (spec 03-07)."""

    name: str
    resource_slots: Slots
    shared_memory: int | None
    device_requests: list[str]


class PresetsReply(TypedDict):
    presets: list[PresetItem]


class CheckedPreset(PresetItem):
    allocatable: bool


class GroupSlots(TypedDict):
    using: Slots
    remaining: Slots


class PresetCheckReply(TypedDict):
    """The presets, each with a flag if it can be allocated now, and the quotas of the keypair, group and domain."""

    keypair_limits: Slots
    keypair_using: Slots
    keypair_remaining: Slots
    group_limits: Slots
    group_using: Slots
    group_remaining: Slots
    domain_limits: Slots
    domain_using: Slots
    domain_remaining: Slots
    scaling_group_remaining: Slots
    scaling_groups: dict[str, GroupSlots]
    presets: list[CheckedPreset]


class ResourcesApi:
    """Routes of slots, device variants and presets, for every user."""

    owner_key = OwnerKey.ASSUMED
    problems = OBJECT_PROBLEMS

    def __init__(self, resources: ResourceService, presets: PresetService) -> None:
        self._resources = resources
        self._presets = presets
        self._encoded_presets: tuple[float, msgspec.Raw] = (0.0, msgspec.Raw(b""))

    @route("GET", "/config/resource-slots")
    async def resource_slots(self, call: Call) -> dict[str, str]:
        """Returns the type of every slot that an agent ever reported, by name."""
        return {info.slot_name: info.slot_type.value for info in self._resources.slot_types()}

    @route("GET", "/config/resource-slots/details", query=SlotsQuery, reply=dict[str, SlotDetails])
    async def resource_slot_details(self, call: Call[Nothing, SlotsQuery]) -> dict[str, Any]:
        """Returns the display data of slots, by name; with ``sgroup`` only of those that the resource group has now."""
        group, slots = call.query.sgroup, self._resources.slot_types()
        if group is not None:
            offered_slots = await self._resources.offered_slots(caller_of(call), group)
            slots = [info for info in slots if info.slot_name in offered_slots]
        return {info.slot_name: dict(info.metadata) for info in slots}

    @route("GET", "/resource/variant-properties", query=VariantsQuery, reply=VariantsReply)
    async def variant_properties(self, call: Call[Nothing, VariantsQuery]) -> dict[str, Any]:
        """Lists what sessions may require of devices (``config.variant_requirements``), with numbers of devices."""
        variants = await self._resources.variants(caller_of(call), call.query.scaling_group)
        return {"variant_properties": [variant.to_json() for variant in variants]}

    @route("GET", "/resource/plugin-options", reply=PluginOptionsReply)
    async def plugin_options(self, call: Call) -> dict[str, Any]:
        """Lists what sessions may say to accelerator plugins (``config.plugin_options``), as JSON Schemas by plugin; of
        a plugin in several versions each one that differs."""
        return {"plugin_options": await self._resources.plugin_options(caller_of(call))}

    @route("GET", "/resource/presets", reply=PresetsReply)
    async def presets(self, call: Call) -> msgspec.Raw:
        """Lists the named combinations of resources."""
        now = time.monotonic()
        fresh_until_s, encoded_presets = self._encoded_presets
        if now >= fresh_until_s:
            slot_names = {info.slot_name for info in self._resources.slot_types()}
            presets = [_preset_view(preset, slot_names) for preset in await self._presets.presets()]
            encoded_presets = msgspec.Raw(msgspec.json.encode({"presets": presets}))
            self._encoded_presets = (now + PRESETS_TTL_S, encoded_presets)
        return encoded_presets

    @route("POST", "/resource/check-presets", body=CheckPresetsBody, audited=False, reply=PresetCheckReply)
    async def check_presets(self, call: Call[CheckPresetsBody]) -> dict[str, Any]:
        """Returns the presets, whether each is allocatable now, and the remaining quotas of the caller."""
        body = call.body
        preset_check = await self._resources.check_presets(
            caller_of(call), group=body.group, scaling_group=body.scaling_group
        )
        slot_names = {info.slot_name for info in self._resources.slot_types()}
        total_remaining = ResourceSlot()
        for _, group_remaining in preset_check.scaling_groups.values():
            total_remaining += group_remaining
        quotas: dict[str, Any] = {}
        for name, quota in preset_check.quotas.items():
            quotas[f"{name}_limits"] = quota.limits.to_json()
            quotas[f"{name}_using"] = quota.using.to_json()
            quotas[f"{name}_remaining"] = quota.remaining.to_json()
        return {
            **quotas,
            "scaling_group_remaining": total_remaining.to_json(),
            "scaling_groups": {
                name: {"using": used_slots.to_json(), "remaining": group_remaining.to_json()}
                for name, (used_slots, group_remaining) in preset_check.scaling_groups.items()
            },
            "presets": [
                {**_preset_view(preset, slot_names), "allocatable": allocatable}
                for preset, allocatable in preset_check.presets
            ],
        }


def _preset_view(preset: ResourcePreset, slot_names: set[Any]) -> PresetItem:
    """Returns the view of a preset without the slots that nobody offers (spec 03-07, "Resource Preset Object")."""
    slots = {name: amount_text for name, amount_text in preset.resource_slots.to_json().items() if name in slot_names}
    return {
        "name": preset.name,
        "resource_slots": slots,
        "shared_memory": preset.shared_memory,
        "device_requests": list(preset.device_requests),
    }
