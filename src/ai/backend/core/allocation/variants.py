"""Matches devices against the requirements of sessions, written as ``namespace::feature::value``.

Source: BEP-1000, second revision (peer facts 1.1); see docs/decisions/0052-variants-are-a-constraint.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property

from ai.backend.common.devices import (
    ComputeDevice,
    VariantFeature,
    VariantMatchMode,
    VariantNamespace,
    VariantProperty,
)
from ai.backend.common.errors import UnsupportedResource
from ai.backend.common.ids import DeviceId, SlotName

_VERSION = re.compile(r"[vV]?([0-9]+(?:\.[0-9]+)*)")
_UNKNOWN = (0,)
_SIGNS = {VariantMatchMode.EXACT: "=", VariantMatchMode.MINIMUM: ">=", VariantMatchMode.COMPATIBLE: "compatible with"}

Key = tuple[str, str]
RequestedSlots = Mapping[str, Mapping[SlotName, Decimal]]
"""Requested quantities: plugin -> slot -> quantity."""


def version_of(text: str) -> tuple[int, ...]:
    """Returns the leading dotted numbers of a version without trailing zeros; ``(0,)`` for any other text."""
    match = _VERSION.match(text.strip())
    if match is None:
        return _UNKNOWN
    numbers = [int(part) for part in match[1].split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def features_of(namespaces: Iterable[VariantNamespace]) -> dict[Key, VariantFeature]:
    """Returns every described feature by (namespace, name)."""
    return {(n.namespace, f.name): f for n in namespaces for f in n.features}


def by_feature(properties: Iterable[VariantProperty]) -> dict[Key, list[str]]:
    """Returns the values of each feature, in their order."""
    values: dict[Key, list[str]] = {}
    for p in properties:
        values.setdefault((p.namespace, p.feature), []).append(p.value)
    return values


def satisfies(stated: Sequence[str], required: Sequence[str], feature: VariantFeature) -> bool:
    """Returns True if a device with these stated values of one feature meets the required ones.

    A required value is met by any of the stated ones. A multi-value feature needs one of the required values, another
    one all of them; for MINIMUM the largest of them counts in both cases, and one that is no version is compared
    exactly. Where nothing is stated nothing is met.
    """
    if feature.match_mode is VariantMatchMode.MINIMUM and (versions := [r for r in required if _VERSION.match(r)]):
        enough = max(map(version_of, stated), default=()) >= max(map(version_of, versions))
        return enough and all(r in stated for r in required if r not in versions)
    if feature.match_mode is VariantMatchMode.COMPATIBLE:
        met = (any(s == r or s.startswith(f"{r}.") for s in stated) for r in required)
    else:
        met = (r in stated for r in required)
    return any(met) if feature.multi_value else all(met)


def matches(
    device: ComputeDevice, requirements: Iterable[VariantProperty], namespaces: Iterable[VariantNamespace]
) -> bool:
    """Returns True if a device satisfies every requirement. Never raises; compares undescribed features exactly."""
    return not unmet(by_feature(device.properties), by_feature(requirements), features_of(namespaces))


def unmet(
    stated: Mapping[Key, Sequence[str]], required: Mapping[Key, Sequence[str]], features: Mapping[Key, VariantFeature]
) -> list[Key]:
    """Returns the required features that the stated values do not satisfy."""
    return [
        key
        for key, values in required.items()
        if not satisfies(stated.get(key, ()), values, features.get(key) or VariantFeature(name=key[1]))
    ]


def wording(key: Key, required: Sequence[str], feature: VariantFeature | None) -> str:
    """Formats a requirement, such as ``nvidia::compute_capability >= 8.0``."""
    feature = feature or VariantFeature(name=key[1])
    shown = [max(required, key=version_of)] if feature.match_mode is VariantMatchMode.MINIMUM else required
    return f"{'::'.join(key)} {_SIGNS[feature.match_mode]} {(' or ' if feature.multi_value else ' and ').join(shown)}"


def ascending(values: Iterable[str]) -> list[str]:
    """Sorts values by version, then by text."""
    return sorted(values, key=lambda v: (version_of(v), v))


def missing(
    had: Iterable[Mapping[Key, Sequence[str]]],
    requested: Mapping[Key, Sequence[str]],
    features: Mapping[Key, VariantFeature],
) -> tuple[list[Key], str]:
    """Returns the required features to name, at most four, that no device satisfies, and the need as text.

    If each feature is satisfied by some device, those that are required together are named.
    """
    failing = set(requested)
    for stated in had:
        failing &= set(unmet(stated, requested, features))
    named = [key for key in requested if key in failing] or list(requested)
    words = [wording(key, requested[key], features.get(key)) for key in named]
    more = f" and {len(words) - 4} more" if len(words) > 4 else ""
    return named[:4], " together with ".join(words[:4]) + more


def explain(
    devices: Iterable[ComputeDevice],
    requirements: Iterable[VariantProperty],
    namespaces: Iterable[VariantNamespace],
    *,
    slot: str,
) -> str:
    """Explains why none of these devices of a slot satisfies the requirements, and what they have instead."""
    requested, features = by_feature(requirements), features_of(namespaces)
    had = [by_feature(d.properties) for d in devices]
    named, needs = missing(had, requested, features)
    has = []
    for key in named:
        values = ascending({v for stated in had for v in stated.get(key, ())})
        listed = ", ".join(values) or "none"
        has.append(listed if len(named) == 1 else f"{'::'.join(key)} {listed}")
    return f"no device of {slot} has {needs}; this node has {'; '.join(has)}"


class PluginVariants:
    """One plugin's devices with the namespaces they state, computed once."""

    def __init__(self, devices: Sequence[ComputeDevice], namespaces: Sequence[VariantNamespace] = ()) -> None:
        self.devices = tuple(devices)
        self.namespaces = tuple(namespaces)

    @cached_property
    def stated(self) -> frozenset[str]:
        """The namespaces in which the plugin or one of its devices states something."""
        return frozenset(
            {n.namespace for n in self.namespaces} | {p.namespace for d in self.devices for p in d.properties}
        )

    def offering(self, slot: SlotName) -> list[ComputeDevice]:
        return [device for device in self.devices if any(s.slot_name == slot for s in device.slots)]


def eligible_devices(
    requested: RequestedSlots, variants: Mapping[str, PluginVariants], requirements: Sequence[VariantProperty]
) -> dict[str, frozenset[DeviceId]]:
    """Returns the devices of each plugin that satisfy the requirements; plugins without a requirement are left out.

    A requirement concerns each plugin with a requested slot that states something in its namespace. Raises
    UnsupportedResource if it concerns none, or no device of a requested slot satisfies what concerns it.
    """
    eligible: dict[str, frozenset[DeviceId]] = {}
    if not requirements:
        return eligible
    stated = frozenset[str]().union(*(variants[plugin].stated for plugin in requested if plugin in variants))
    if open_ := [r for r in requirements if r.namespace not in stated]:
        slots_text = ", ".join(sorted(slot for slots in requested.values() for slot in slots)) or "nothing"
        raise UnsupportedResource(
            f"no device of {slots_text} states anything in the namespace of {open_[0]}; "
            f"known namespaces are {', '.join(sorted(stated)) or 'none'}",
            data={"requirements": [str(r) for r in open_]},
        )
    for plugin, slots in requested.items():
        own = variants.get(plugin)
        concerning = [r for r in requirements if r.namespace in own.stated] if own is not None else []
        if own is None or not concerning:
            continue
        fitting = frozenset(d.device_id for d in own.devices if matches(d, concerning, own.namespaces))
        for slot in slots:
            offering = own.offering(slot)
            if not any(device.device_id in fitting for device in offering):
                raise UnsupportedResource(
                    explain(offering, concerning, own.namespaces, slot=slot),
                    data={"slot": slot, "requirements": [str(r) for r in concerning]},
                )
        eligible[plugin] = fitting
    return eligible
