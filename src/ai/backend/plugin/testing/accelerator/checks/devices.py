"""Checks a plugin's description of itself, of its devices, and of their slots, links and properties."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

from pydantic import ValidationError

from ai.backend.common.devices import DeviceLink, SlotDisplay
from ai.backend.common.errors import InvalidName
from ai.backend.common.ids import DeviceId
from ai.backend.common.names import check_slot_name
from ai.backend.plugin.accelerator import POWERS, PluginCapabilities, responses, slot_totals
from ai.backend.plugin.discovery import SPI_VERSION
from ai.backend.plugin.options import check_schema
from ai.backend.plugin.testing.accelerator.checks.registry import Checks, NotApplicable, expect, format_value
from ai.backend.plugin.testing.accelerator.checks.subject import Subject

CHECKS = Checks()
_PLUGIN_SOURCE = "spec 00, AbstractComputePlugin"
_DEVICES_SOURCE = "BEP-1000; accelerator v2, The contract: devices"
_SLOTS_SOURCE = "spec 01, slots; accelerator v2, Allocation"


@CHECKS.add(_PLUGIN_SOURCE, needs_start=False)
async def its_key_is_a_slot_name(subject: Subject) -> None:
    """The key is a device name, and the plugin says its version and that of the interface."""
    plugin = subject.plugin
    try:
        check_slot_name(plugin.key)
    except InvalidName as e:
        raise AssertionError(e.message) from None
    expect("." not in plugin.key, f"the key {plugin.key} has a dot in it")
    expect(plugin.spi_version == SPI_VERSION, f"spi_version is {plugin.spi_version}, not {SPI_VERSION}")
    expect(isinstance(plugin.version, str) and plugin.version, f"version is {format_value(plugin.version)}")


@CHECKS.add(_PLUGIN_SOURCE, needs_start=False)
async def settings_have_defaults_and_refuse_unknown_keys(subject: Subject) -> None:
    """Settings are described, and a misspelt key is an error that names it."""
    model = subject.plugin.settings_model
    if model is None:
        return
    if model.model_config.get("extra") == "allow":
        raise NotApplicable("its settings are whatever keys there are, as those of a v1 plugin")
    expect(model.model_config.get("extra") == "forbid", f"{model.__name__} does not forbid unknown keys")
    expect(model.model_json_schema()["type"] == "object", f"{model.__name__} is no table")
    undescribed_settings = [setting_name for setting_name, field in model.model_fields.items() if not field.description]
    expect(not undescribed_settings, f"settings without a description: {', '.join(undescribed_settings)}")
    required_settings = [setting_name for setting_name, field in model.model_fields.items() if field.is_required()]
    expect(not required_settings, f"settings without a default: {', '.join(required_settings)}")
    misspelt_settings: dict[str, Any] = {"no-such-setting": 1}
    try:
        model.model_validate(misspelt_settings)
    except ValidationError as e:
        expect("no-such-setting" in str(e), "the error for an unknown key does not name it")
    else:
        expect(False, f"{model.__name__} takes the unknown key no-such-setting")


@CHECKS.add("accelerator v2, Options of a session", needs_start=False)
async def options_have_a_schema(subject: Subject) -> None:
    """The options of a session have a valid JSON Schema, by which the manager checks them."""
    schema = subject.plugin.options_schema()
    if schema is None:
        raise NotApplicable("it takes no options")
    try:
        check_schema(schema)
    except ValueError as e:
        raise AssertionError(str(e)) from None


@CHECKS.add("accelerator v2, Plugins in the tree", needs_start=False)
async def it_says_what_it_was_verified_on(subject: Subject) -> None:
    """``verified_on`` is None, or names hardware, driver and command in one line."""
    verified_on: object = subject.plugin.verified_on
    text = verified_on if isinstance(verified_on, str) else ""
    is_one_line = bool(text.strip()) and text.isprintable() and len(text) <= 256
    expect(verified_on is None or is_one_line, f"verified_on is {format_value(verified_on)}")


@CHECKS.add("accelerator v2, The contract: optional powers", needs_start=False)
async def flags_promise_their_protocols(subject: Subject) -> None:
    """A capability flag that is set comes with its Protocol."""
    flags = subject.plugin.capabilities
    expect(isinstance(flags, PluginCapabilities), f"capabilities is {format_value(flags)}")
    for flag, protocol in POWERS.items():
        if getattr(flags, flag):
            expect(isinstance(subject.plugin, protocol), f"{flag} is set, and {protocol.__name__} is not implemented")


@CHECKS.add(_PLUGIN_SOURCE, needs_start=False)
async def cleanup_is_safe_without_init(subject: Subject) -> None:
    """``cleanup`` may be called on a plugin that was never initialised."""
    await subject.call("cleanup")


@CHECKS.add(_PLUGIN_SOURCE, needs_start=False, is_basic=True)
async def it_starts_and_stops(subject: Subject) -> None:
    """``init`` and ``cleanup`` work, and work again in the next process."""
    await subject.call("init")
    await subject.call("cleanup")
    async with subject.restart():
        pass


def _no_owner(_: str) -> None:
    return None


@CHECKS.add("spec 03-06, formats", is_basic=True)
async def slots_can_be_shown(subject: Subject) -> None:
    """Every slot has a name and a unit for people."""
    for slot in await subject.call_validated(
        "configurable_slots", partial(responses.validate_displays, owner_of=_no_owner)
    ):
        expect(slot.human_readable_name, f"{slot.slot_name} has no human_readable_name")
        expect(slot.display_unit, f"{slot.slot_name} has no display_unit")


@CHECKS.add(_DEVICES_SOURCE, is_basic=True)
async def devices_are_well_formed(subject: Subject) -> None:
    """The agent takes every device as it is listed."""
    displays: tuple[SlotDisplay, ...] = await subject.call("configurable_slots")
    validate_devices = partial(
        responses.validate_devices, key=subject.plugin.key, displays=displays, owner_of=_no_owner
    )
    for device in await subject.call_validated("list_devices", validate_devices):
        expect(device.hw_location, f"{device.device_id} has no hw_location")
        expect(device.slots, f"{device.device_id} offers no slot")


@CHECKS.add(_DEVICES_SOURCE, is_basic=True)
async def device_ids_are_unique_and_survive_a_restart(subject: Subject) -> None:
    """The next process lists the same devices under the same ids."""
    device_ids = [device.device_id for device in await subject.devices()]
    async with subject.restart() as restarted_subject:
        ids_after = [device.device_id for device in await restarted_subject.devices()]
    expect(ids_after == device_ids, f"after a restart there are {ids_after} instead of {device_ids}")


@CHECKS.add(_SLOTS_SOURCE, is_basic=True)
async def slots_are_well_formed(subject: Subject) -> None:
    """Slot names begin with the plugin's key, and quantities are whole quanta."""
    for device in await subject.devices():
        for slot in device.slots:
            slot_name, plugin_key = slot.slot_name, subject.plugin.key
            begins_with_key = slot_name.split(".")[0] == plugin_key or not subject.plugin.key_is_slot_prefix
            expect(begins_with_key, f"{slot_name} does not begin with {plugin_key}")
            quantum_fits = slot.quantum <= slot.amount or not slot.amount
            expect(
                quantum_fits, f"{device.device_id}: {slot_name}: the quantum {slot.quantum} is more than the device has"
            )


@CHECKS.add(_SLOTS_SOURCE, is_basic=True)
async def the_totals_are_those_of_the_devices(subject: Subject) -> None:
    """``available_slots`` is the sum over healthy devices."""
    totals: dict[Any, Decimal] = await subject.call("available_slots")
    device_totals = slot_totals(await subject.devices())
    for slot_name in sorted({*totals, *device_totals}):
        offered_amount, amount = totals.get(slot_name, 0), device_totals.get(slot_name, 0)
        expect(
            offered_amount == amount,
            f"available_slots has {offered_amount} {slot_name}; the healthy devices have {amount}",
        )


@CHECKS.add(_DEVICES_SOURCE, is_basic=True)
async def listing_is_repeatable(subject: Subject) -> None:
    """Devices and slots are the same in every call; only health may change."""
    first_slots = {device.device_id: device.slots for device in await subject.devices()}
    for _ in range(2):
        second_slots = {device.device_id: device.slots for device in await subject.devices()}
        expect(
            second_slots == first_slots,
            f"list_devices changes from call to call: {_changed_devices(first_slots, second_slots)}",
        )
    for method in ("configurable_slots", "variant_namespaces"):
        expect(await subject.call(method) == await subject.call(method), f"{method} changes from call to call")


def _changed_devices(first_slots: dict[DeviceId, Any], second_slots: dict[DeviceId, Any]) -> str:
    changed_ids = sorted(
        device_id
        for device_id in {*first_slots, *second_slots}
        if first_slots.get(device_id) != second_slots.get(device_id)
    )
    return ", ".join(changed_ids[:5])


@CHECKS.add(_DEVICES_SOURCE)
async def links_are_symmetric(subject: Subject) -> None:
    """Links between two devices are the same in both directions."""
    links: dict[tuple[DeviceId, DeviceId], DeviceLink] = {}
    for device in await subject.devices():
        for link in device.links:
            device_pair = (device.device_id, link.peer)
            expect(device_pair not in links, f"{device_pair[0]} has two links to {device_pair[1]}")
            links[device_pair] = link
    for (device_id, peer_id), link in links.items():
        return_link = links.get((peer_id, device_id))
        expect(return_link is not None, f"{device_id} is linked to {peer_id}, and {peer_id} not to {device_id}")
        is_same = return_link is not None and (return_link.kind, return_link.bandwidth_gib_s) == (
            link.kind,
            link.bandwidth_gib_s,
        )
        expect(is_same, f"the link of {device_id} to {peer_id} differs from the one back")


@CHECKS.add("BEP-1000, variant properties")
async def variant_properties_are_declared(subject: Subject) -> None:
    """Every property is of a namespace that the plugin describes, and of a kind that can be required."""
    namespaces = await subject.call_validated("variant_namespaces", responses.validate_namespaces)
    namespace_names = [namespace.namespace for namespace in namespaces]
    expect(len(set(namespace_names)) == len(namespace_names), "a namespace is described twice")
    for namespace in namespaces:
        features = [feature.name for feature in namespace.features]
        expect(len(set(features)) == len(features), f"{namespace.namespace} describes a feature twice")
    single_value_features = {
        (namespace.namespace, described_feature.name)
        for namespace in namespaces
        for described_feature in namespace.features
        if not described_feature.multi_value
    }
    for device in await subject.devices():
        seen_pairs: set[tuple[str, str]] = set()
        for variant_property in device.variant_properties:
            description = f"{device.device_id}: {variant_property}"
            property_parts = (variant_property.namespace, variant_property.feature, variant_property.value)
            expect(
                all(property_part and property_part == property_part.strip() for property_part in property_parts),
                f"{description} has an empty part, or blanks around one",
            )
            expect(
                "::" not in variant_property.namespace + variant_property.feature, f"{description} cannot be read back"
            )
            expect(
                variant_property.namespace in namespace_names,
                f"{description} is of a namespace that variant_namespaces does not name",
            )
            is_second = property_parts[:2] in seen_pairs and property_parts[:2] in single_value_features
            expect(not is_second, f"{description} is a second value of a feature that has one")
            seen_pairs.add(property_parts[:2])
