"""Validates the responses of plugins before they are used.

Every function takes an answer and returns it as plain values of the declared types, or raises InvalidResponse with the
name of the field. The caller knows the method. Bounds are far beyond any node and keep a heartbeat small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceSlot,
    SlotDisplay,
    VariantNamespace,
)
from ai.backend.common.errors import BackendError, InvalidName
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.names import check_slot_name
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.stock_maps import build_alloc_map
from ai.backend.plugin.accelerator import AttachedDevice, NodeInfo
from ai.backend.plugin.accelerator.shapes import InvalidResponse, normalized

MAX_DEVICES = 4096
MAX_SLOTS = 256
MAX_ENTRIES = 256
_MAX_AMOUNT = Decimal(10) ** 18
_MIN_QUANTUM = Decimal("0.000001")
_TEXT = 256
_LONG_TEXT = 1024
_SHOWN = 64


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _bounded(method: str, answer: Any, limit: int) -> Any:
    """Returns an answer of several items, whose number is checked first."""
    if isinstance(answer, Sequence | Mapping) and not isinstance(answer, str | bytes) and len(answer) > limit:
        raise InvalidResponse(f"has {len(answer)} entries; {limit} are allowed")
    if not isinstance(answer, Sequence | Mapping) or isinstance(answer, str | bytes):
        raise InvalidResponse(f"is a {type(answer).__name__}")
    return normalized(method, answer)


def _text(where: str, text: str | None, limit: int = _TEXT) -> None:
    if text is not None and len(text) > limit:
        raise InvalidResponse(f"{where} is {len(text)} characters long; {limit} are allowed")


def _number(where: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and 0 <= value < 2**63):
        raise InvalidResponse(f"{where} is {_shown(value)}")


def _amount(where: str, value: Decimal) -> None:
    if not value.is_finite() or not 0 <= value <= _MAX_AMOUNT:
        raise InvalidResponse(f"{where} is {value if value.adjusted() < 40 else 'too large'}")


def _slot_name(where: str, name: str, foreign: Callable[[str], str | None]) -> None:
    try:
        check_slot_name(name)
    except InvalidName:
        raise InvalidResponse(f"{where} has the malformed slot name {_shown(name)}") from None
    if (owner := foreign(name)) is not None:
        raise InvalidResponse(f"{where} has the slot {name}, which belongs to the plugin {owner}")


# ---- devices


def devices(
    answer: Any, *, key: str, displays: Sequence[SlotDisplay], foreign: Callable[[str], str | None]
) -> tuple[ComputeDevice, ...]:
    """``list_devices``.

    Args:
        answer: what the plugin returned.
        key: of the plugin.
        displays: what ``configurable_slots`` returned.
        foreign: the other plugin that a slot belongs to, if any.
    """
    validated: tuple[ComputeDevice, ...] = _bounded("list_devices", answer, MAX_DEVICES)
    types = {display.slot_name: display.slot_type for display in displays}
    quanta: dict[SlotName, Decimal] = {}
    ids = {device.device_id for device in validated}
    seen: set[DeviceId] = set()
    for number, device in enumerate(validated):
        if not device.device_id:
            raise InvalidResponse(f"device {number} has no device_id")
        _text(f"device {number}: device_id", device.device_id, 128)
        where = f"device {_shown(device.device_id)}"
        if not device.device_id.isprintable():
            raise InvalidResponse(f"{where}: device_id has characters that do not print")
        if device.device_id in seen:
            raise InvalidResponse(f"{where} is listed twice")
        seen.add(device.device_id)
        if device.device_name != key:
            raise InvalidResponse(f"{where}: device_name is {_shown(device.device_name)} instead of {key!r}")
        _facts(where, device, ids)
        for slot in device.slots:
            _slot_name(where, slot.slot_name, foreign)
            _slot(f"{where}: {slot.slot_name}", slot, types)
            if quanta.setdefault(slot.slot_name, slot.quantum) != slot.quantum:
                raise InvalidResponse(f"{where}: {slot.slot_name}: quantum differs from that of other devices")
        if len({slot.slot_name for slot in device.slots}) != len(device.slots):
            raise InvalidResponse(f"{where} has a slot twice")
    return validated


def _facts(where: str, device: ComputeDevice, ids: set[DeviceId]) -> None:
    if device.numa_node is not None and not 0 <= device.numa_node < 1 << 16:
        raise InvalidResponse(f"{where}: numa_node is {device.numa_node}; an unknown node is None")
    for name in ("hw_location", "model_name"):
        _text(f"{where}: {name}", getattr(device, name))
    _text(f"{where}: health_reason", device.health_reason, _LONG_TEXT)
    _number(f"{where}: memory_size", device.memory_size)
    _number(f"{where}: processing_units", device.processing_units)
    for name in ("slots", "compute_units", "precision_support", "partitioning_support", "variant_properties"):
        if len(getattr(device, name)) > MAX_ENTRIES:
            raise InvalidResponse(
                f"{where}: {name} has {len(getattr(device, name))} entries; {MAX_ENTRIES} are allowed"
            )
    if device.memory_spec is not None:
        for name in device.memory_spec.__slots__:
            value = getattr(device.memory_spec, name)
            _text(f"{where}: memory_spec.{name}", value) if isinstance(value, str) else _number(
                f"{where}: memory_spec.{name}", value
            )
    for unit in device.compute_units:
        _text(f"{where}: compute_units", unit.name)
        _number(f"{where}: compute_units: {unit.name}", unit.count)
    for precision in device.precision_support:
        _text(f"{where}: precision_support", precision.format)
    for partitioning in device.partitioning_support:
        _text(f"{where}: partitioning_support", partitioning.technology)
    for variant in device.variant_properties:
        for part in (variant.namespace, variant.feature, variant.value):
            _text(f"{where}: variant_properties", part, 128)
    for link in device.links:
        if link.peer not in ids or link.peer == device.device_id:
            raise InvalidResponse(f"{where}: links lead to the unknown device {_shown(link.peer)}")
        _number(f"{where}: links: bandwidth_gib_s", link.bandwidth_gib_s)
    if len(device.links) > len(ids):
        raise InvalidResponse(f"{where}: links has {len(device.links)} entries for {len(ids)} devices")


def _slot(where: str, slot: DeviceSlot, types: Mapping[SlotName, SlotType]) -> None:
    _amount(f"{where}: amount", slot.amount)
    _amount(f"{where}: quantum", slot.quantum)
    _text(f"{where}: exclusive_group", slot.exclusive_group, 128)
    if slot.quantum < _MIN_QUANTUM:
        raise InvalidResponse(f"{where}: quantum is {slot.quantum}")
    if slot.slot_name not in types:
        raise InvalidResponse(f"{where} is none of configurable_slots")
    if slot.slot_type is not types[slot.slot_name]:
        raise InvalidResponse(f"{where} is of type {slot.slot_type}, in configurable_slots {types[slot.slot_name]}")
    if slot.slot_type is not SlotType.COUNT and slot.quantum != 1:
        raise InvalidResponse(f"{where}: quantum is {slot.quantum}; only counts have fractions")


# ---- the rest


def displays(answer: Any, *, foreign: Callable[[str], str | None]) -> tuple[SlotDisplay, ...]:
    """``configurable_slots``."""
    validated: tuple[SlotDisplay, ...] = _bounded("configurable_slots", answer, MAX_SLOTS)
    seen: set[SlotName] = set()
    for number, display in enumerate(validated):
        _slot_name(f"entry {number}", display.slot_name, foreign)
        if display.slot_name in seen:
            raise InvalidResponse(f"{display.slot_name} is listed twice")
        seen.add(display.slot_name)
        for name in ("description", "human_readable_name", "display_unit", "display_icon"):
            _text(f"{display.slot_name}: {name}", getattr(display, name))
        if not 0 <= display.number_round_length <= 20:
            raise InvalidResponse(f"{display.slot_name}: number_round_length is {display.number_round_length}")
    return validated


def slots(answer: Any, *, listed: Sequence[ComputeDevice], displays: Sequence[SlotDisplay]) -> dict[SlotName, Decimal]:
    """``available_slots``: at most what the devices have, healthy or not, so that one which fails between the two calls
    is no lie.
    """
    quantities: dict[SlotName, Decimal] = _bounded("available_slots", answer, MAX_SLOTS)
    declared = {display.slot_name for display in displays}
    totals: dict[SlotName, Decimal] = {}
    for device in listed:
        for slot in device.slots:
            totals[slot.slot_name] = totals.get(slot.slot_name, Decimal(0)) + slot.amount
    for name, amount in quantities.items():
        if name not in declared:
            raise InvalidResponse(f"has {_shown(name)}, which is none of configurable_slots")
        _amount(name, amount)
        if amount > totals.get(name, Decimal(0)):
            raise InvalidResponse(f"offers {amount} {name}; the devices have {totals.get(name, 0)}")
    return quantities


def namespaces(answer: Any) -> tuple[VariantNamespace, ...]:
    """``variant_namespaces``."""
    validated: tuple[VariantNamespace, ...] = _bounded("variant_namespaces", answer, MAX_ENTRIES)
    for space in validated:
        _text("namespace", space.namespace, 128)
        if len(space.features) > MAX_ENTRIES:
            raise InvalidResponse(f"{space.namespace}: features has {len(space.features)} entries")
        for feature in space.features:
            for text in (feature.name, *feature.ordered_values):
                _text(f"{space.namespace}: features", text, 128)
    return validated


def attached(answer: Any, *, held: DeviceAllocation) -> tuple[AttachedDevice, ...]:
    """``alloc_to_devices`` for an allocation."""
    validated: tuple[AttachedDevice, ...] = _bounded("alloc_to_devices", answer, MAX_DEVICES)
    ids = held.device_ids()
    for device in validated:
        if device.device_id not in ids:
            raise InvalidResponse(f"has the device {_shown(device.device_id)}, which is not allocated")
        _text(f"{device.device_id}: model_name", device.model_name)
        _text(f"{device.device_id}: data", str(device.data), 1 << 16)
    return validated


def info(answer: Any) -> NodeInfo:
    """``get_node_info``."""
    node_info: NodeInfo = normalized("get_node_info", answer)
    if len(node_info.extra) > MAX_ENTRIES:
        raise InvalidResponse(f"extra has {len(node_info.extra)} entries; {MAX_ENTRIES} are allowed")
    for name, text in (
        ("driver_version", node_info.driver_version), ("runtime_version", node_info.runtime_version),
        *node_info.extra.items(),
    ):  # fmt: skip
        _text("extra", name, 128)
        _text(name, text, _LONG_TEXT)
    return node_info


def alloc_map(spec: Any, listed: Sequence[ComputeDevice]) -> AllocMapSpec | None:
    """``alloc_map_spec``: a map can be made of it, or books be kept for a map of the plugin's own."""
    if spec is not None and not isinstance(spec, AllocMapSpec):
        raise InvalidResponse(f"is a {type(spec).__name__}")
    try:
        build_alloc_map(spec or AllocMapSpec(kind="discrete"), listed)
    except BackendError as e:
        raise InvalidResponse(f"cannot be used: {e.message}") from None
    return spec
