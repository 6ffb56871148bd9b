"""Matches devices against the requirements of sessions, written as ``namespace::feature::value``.

Source: BEP-1000, second revision (peer facts 1.1); see docs/decisions/0052-variants-are-a-constraint.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from functools import cached_property

from ai.backend.common.devices import (
    KEY,
    TAINT,
    ComputeDevice,
    DeviceHealth,
    VariantFeature,
    VariantMatchMode,
    VariantNamespace,
    VariantProperty,
)
from ai.backend.common.errors import UnsupportedResource
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.structs import replace
from ai.backend.core.allocation.requests.attributes import attributes_of
from ai.backend.core.allocation.requests.compiled import DeviceRequest, Selection
from ai.backend.core.allocation.requests.terms import Attributes

_VERSION = re.compile(r"[vV]?([0-9]+(?:\.[0-9]+)*)")
_UNKNOWN_VERSION = (0,)
_COMPARISON_SIGNS = {
    VariantMatchMode.EXACT: "=",
    VariantMatchMode.MINIMUM: ">=",
    VariantMatchMode.COMPATIBLE: "compatible with",
}

FeatureKey = tuple[str, str]
RequestedSlots = Mapping[str, Mapping[SlotName, Decimal]]
"""Requested quantities: plugin -> slot -> quantity."""


def version_of(text: str) -> tuple[int, ...]:
    """Returns the leading dotted numbers of a version without trailing zeros; ``(0,)`` for any other text."""
    match = _VERSION.match(text.strip())
    if match is None:
        return _UNKNOWN_VERSION
    numbers = [int(digits) for digits in match[1].split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def features_of(namespaces: Iterable[VariantNamespace]) -> dict[FeatureKey, VariantFeature]:
    """Returns the features that the given namespaces describe, by (namespace, feature name)."""
    return {(namespace.namespace, feature.name): feature for namespace in namespaces for feature in namespace.features}


def values_by_feature(properties: Iterable[VariantProperty]) -> dict[FeatureKey, list[str]]:
    """Returns the values of each feature, in their order."""
    values: dict[FeatureKey, list[str]] = {}
    for variant_property in properties:
        values.setdefault((variant_property.namespace, variant_property.feature), []).append(variant_property.value)
    return values


def satisfies(device_values: Sequence[str], required: Sequence[str], feature: VariantFeature) -> bool:
    """Returns True if a device with these stated values of one feature meets the required ones.

    A required value is met by any of the stated ones. A multi-value feature needs one of the required values, another
    one all of them; for MINIMUM the largest of them counts in both cases, and one that is no version is compared
    exactly. Where nothing is stated nothing is met.
    """
    if feature.match_mode is VariantMatchMode.MINIMUM and (
        versions := [value for value in required if _VERSION.match(value)]
    ):
        is_enough = max(map(version_of, device_values), default=()) >= max(map(version_of, versions))
        return is_enough and all(value in device_values for value in required if value not in versions)
    if feature.match_mode is VariantMatchMode.COMPATIBLE:
        met_flags = (
            any(stated_value == value or stated_value.startswith(f"{value}.") for stated_value in device_values)
            for value in required
        )
    else:
        met_flags = (value in device_values for value in required)
    return any(met_flags) if feature.multi_value else all(met_flags)


def matches(
    device: ComputeDevice, requirements: Iterable[VariantProperty], namespaces: Iterable[VariantNamespace]
) -> bool:
    """Returns True if a device satisfies every requirement. Never raises; compares undescribed features exactly."""
    return not unmet_features(
        values_by_feature(device.properties), values_by_feature(requirements), features_of(namespaces)
    )


def unmet_features(
    device_values: Mapping[FeatureKey, Sequence[str]],
    required: Mapping[FeatureKey, Sequence[str]],
    features: Mapping[FeatureKey, VariantFeature],
) -> list[FeatureKey]:
    """Returns the required features that the stated values do not satisfy."""
    return [
        key
        for key, values in required.items()
        if not satisfies(device_values.get(key, ()), values, features.get(key) or VariantFeature(name=key[1]))
    ]


def format_requirement(key: FeatureKey, required: Sequence[str], feature: VariantFeature | None) -> str:
    """Formats a requirement, such as ``nvidia::compute_capability >= 8.0``."""
    feature = feature or VariantFeature(name=key[1])
    shown_values = [max(required, key=version_of)] if feature.match_mode is VariantMatchMode.MINIMUM else required
    values_text = (" or " if feature.multi_value else " and ").join(shown_values)
    return f"{'::'.join(key)} {_COMPARISON_SIGNS[feature.match_mode]} {values_text}"


def sort_values(values: Iterable[str]) -> list[str]:
    """Sorts values as versions, and equal versions as text."""
    return sorted(values, key=lambda value: (version_of(value), value))


def describe_unmet(
    device_values: Iterable[Mapping[FeatureKey, Sequence[str]]],
    required: Mapping[FeatureKey, Sequence[str]],
    features: Mapping[FeatureKey, VariantFeature],
) -> tuple[list[FeatureKey], str]:
    """Returns at most four required features that no device satisfies, and the whole requirement as text.

    If each feature is satisfied by some device, those that are required together are named.
    """
    unmet_keys = set(required)
    for stated_values in device_values:
        unmet_keys &= set(unmet_features(stated_values, required, features))
    named_keys = [feature_key for feature_key in required if feature_key in unmet_keys] or list(required)
    requirement_texts = [
        format_requirement(feature_key, required[feature_key], features.get(feature_key)) for feature_key in named_keys
    ]
    others_text = f" and {len(requirement_texts) - 4} more" if len(requirement_texts) > 4 else ""
    return named_keys[:4], " together with ".join(requirement_texts[:4]) + others_text


def explain(
    devices: Iterable[ComputeDevice],
    requirements: Iterable[VariantProperty],
    namespaces: Iterable[VariantNamespace],
    *,
    slot: str,
) -> str:
    """Explains why no device of a slot satisfies the requirements, and which values the devices have instead."""
    required, features = values_by_feature(requirements), features_of(namespaces)
    stated_of_devices = [values_by_feature(device.properties) for device in devices]
    named_keys, needs_text = describe_unmet(stated_of_devices, required, features)
    alternatives = []
    for key in named_keys:
        values = sort_values({value for stated_values in stated_of_devices for value in stated_values.get(key, ())})
        values_text = ", ".join(values) or "none"
        alternatives.append(values_text if len(named_keys) == 1 else f"{'::'.join(key)} {values_text}")
    return f"no device of {slot} has {needs_text}; this node has {'; '.join(alternatives)}"


class PluginVariants:
    """Holds the devices of one plugin with the namespaces that declare their features.

    Taints, attributes and the namespaces in which devices state values are computed once.
    """

    def __init__(self, devices: Sequence[ComputeDevice], namespaces: Sequence[VariantNamespace] = ()) -> None:
        self.devices = tuple(devices)
        self.namespaces = tuple(namespaces)

    @cached_property
    def stated_namespaces(self) -> frozenset[str]:
        """Returns the namespaces in which the plugin or one of its devices states a value."""
        return frozenset(
            {name.namespace for name in self.namespaces}
            | {prop.namespace for device in self.devices for prop in device.properties}
        )

    @cached_property
    def taints_of_device(self) -> Mapping[DeviceId, frozenset[str]]:
        """Returns the taint keys of each device that has a taint."""
        keys_of_device: dict[DeviceId, frozenset[str]] = {}
        for device in self.devices:
            taint_keys = values_by_feature(device.variant_properties).get((TAINT, KEY), ())
            if taint_keys:
                keys_of_device[device.device_id] = frozenset(taint_keys)
        return keys_of_device

    @cached_property
    def attributes(self) -> tuple[Attributes, ...]:
        """Returns the attributes of each device."""
        return tuple(map(attributes_of, self.devices))

    def devices_offering(self, slot: SlotName) -> list[ComputeDevice]:
        return [device for device in self.devices if any(device_slot.slot_name == slot for device_slot in device.slots)]


def repaired_device(device: ComputeDevice) -> ComputeDevice:
    """Returns a copy of a device that is healthy and has no taint. Returns the same device if it is so already."""
    if device.health is DeviceHealth.HEALTHY and all(prop.namespace != TAINT for prop in device.variant_properties):
        return device
    other_properties = tuple(prop for prop in device.variant_properties if prop.namespace != TAINT)
    return replace(device, health=DeviceHealth.HEALTHY, variant_properties=other_properties)


ANY_TAINT = "*"
#: Plugins whose devices no device request concerns: whoever asks for an accelerator takes what cores there are.
HOST_PLUGINS = ("cpu", "mem")


def select_devices(
    requested_slots: RequestedSlots,
    variants: Mapping[str, PluginVariants],
    requirements: Sequence[VariantProperty],
    device_request: DeviceRequest | None = None,
) -> dict[str, Selection]:
    """Returns the devices of each plugin that satisfy the requirements; plugins without a requirement are left out.

    A requirement concerns each plugin with a requested slot that states something in its namespace, a device request
    every plugin but ``cpu`` and ``mem``; tainted devices are left out unless it tolerates them. Raises
    UnsupportedResource if a requirement concerns none, or no device of a requested slot satisfies what concerns it.
    """
    selections: dict[str, Selection] = {}
    if requirements or device_request is not None:
        selections = _select_required(requested_slots, variants, requirements, device_request)
    tolerated_keys = device_request.tolerated if device_request is not None else frozenset()
    for plugin in requested_slots:
        plugin_devices = variants.get(plugin)
        if plugin_devices is not None and plugin_devices.taints_of_device and ANY_TAINT not in tolerated_keys:
            refused_ids = {
                device_id for device_id, keys in plugin_devices.taints_of_device.items() if not keys <= tolerated_keys
            }
            selections[plugin] = _exclude_devices(selections.get(plugin), plugin_devices, refused_ids)
    return selections


def _exclude_devices(
    selection: Selection | None, plugin_devices: PluginVariants, refused_ids: AbstractSet[DeviceId]
) -> Selection:
    """Returns a selection without the given devices.

    Without a selection, the other devices of the plugin are returned. A request that finds none then waits.
    """
    if selection is None:
        return Selection(frozenset(device.device_id for device in plugin_devices.devices) - refused_ids)
    return replace(
        selection,
        devices=selection.devices - refused_ids,
        sets=None if selection.sets is None else tuple(device_set - refused_ids for device_set in selection.sets),
        groups=None if selection.groups is None else tuple(group - refused_ids for group in selection.groups),
    )


def _select_required(
    requested_slots: RequestedSlots,
    variants: Mapping[str, PluginVariants],
    requirements: Sequence[VariantProperty],
    device_request: DeviceRequest | None,
) -> dict[str, Selection]:
    _check_namespaces(requested_slots, variants, requirements)
    selections: dict[str, Selection] = {}
    for plugin, slots in requested_slots.items():
        plugin_devices = variants.get(plugin)
        own_request = device_request if plugin not in HOST_PLUGINS else None
        own_requirements = (
            [requirement for requirement in requirements if requirement.namespace in plugin_devices.stated_namespaces]
            if plugin_devices is not None
            else []
        )
        if plugin_devices is None or (not own_requirements and own_request is None):
            continue
        fitting_indexes = [
            index
            for index, device in enumerate(plugin_devices.devices)
            if not own_requirements or matches(device, own_requirements, plugin_devices.namespaces)
        ]
        selection = _select_by_request(plugin_devices, fitting_indexes, own_request)
        for slot in slots:
            offering_devices = plugin_devices.devices_offering(slot)
            if any(device.device_id in selection.devices for device in offering_devices):
                continue
            requirement_texts = [str(requirement) for requirement in own_requirements]
            if own_request is None:
                message = explain(offering_devices, own_requirements, plugin_devices.namespaces, slot=slot)
            else:
                requirement_texts.append(str(own_request))
                message = f"no device of {slot} here has {' and '.join(requirement_texts)}"
            raise UnsupportedResource(message, data={"slot": slot, "requirements": requirement_texts})
        selections[plugin] = selection
    return selections


def _check_namespaces(
    requested_slots: RequestedSlots, variants: Mapping[str, PluginVariants], requirements: Sequence[VariantProperty]
) -> None:
    stated_namespaces = frozenset[str]().union(
        *(variants[plugin].stated_namespaces for plugin in requested_slots if plugin in variants)
    )
    if foreign_requirements := [
        requirement for requirement in requirements if requirement.namespace not in stated_namespaces
    ]:
        slots_text = ", ".join(sorted(slot for slots in requested_slots.values() for slot in slots)) or "nothing"
        raise UnsupportedResource(
            f"no device of {slots_text} states anything in the namespace of {foreign_requirements[0]}; "
            f"known namespaces are {', '.join(sorted(stated_namespaces)) or 'none'}",
            data={"requirements": [str(requirement) for requirement in foreign_requirements]},
        )


def _select_by_request(
    plugin_devices: PluginVariants, indexes: Sequence[int], device_request: DeviceRequest | None
) -> Selection:
    devices = [plugin_devices.devices[index] for index in indexes]
    if device_request is None:
        return Selection(frozenset(device.device_id for device in devices))
    return device_request.select(devices, [plugin_devices.attributes[index] for index in indexes])
