"""Validates the responses of plugins before they are used.

Each function returns an answer as plain values of the declared types, or raises InvalidResponse naming the field; the
caller adds the method. Bounds are far beyond any node and keep a heartbeat small.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
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
from ai.backend.plugin.accelerator import STATS, UNITS, AttachedDevice, Measurement, MetricKind, NodeInfo
from ai.backend.plugin.accelerator.shapes import InvalidResponse, normalized

MAX_DEVICES = 4096
MAX_SLOTS = 256
MAX_ENTRIES = 256
_MAX_AMOUNT = Decimal(10) ** 18
_MIN_QUANTUM = Decimal("0.000001")
_TEXT_LENGTH = 256
_LONG_TEXT_LENGTH = 1024
_BRIEF_LENGTH = 64


def _shorten(value: object) -> str:
    value_text = repr(value)
    return value_text if len(value_text) <= _BRIEF_LENGTH else f"{value_text[:_BRIEF_LENGTH]}..."


def _normalized_collection(method: str, answer: Any, max_items: int) -> Any:
    """Returns a plugin's list or mapping in plain values, after a check of its length."""
    if isinstance(answer, Sequence | Mapping) and not isinstance(answer, str | bytes) and len(answer) > max_items:
        raise InvalidResponse(f"has {len(answer)} entries; {max_items} are allowed")
    return normalized(method, answer)


def _check_text(description: str, text: str | None, max_length: int = _TEXT_LENGTH) -> None:
    if text is not None and len(text) > max_length:
        raise InvalidResponse(f"{description} is {len(text)} characters long; {max_length} are allowed")


def _check_number(description: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and 0 <= value < 2**63):
        raise InvalidResponse(f"{description} is {_shorten(value)}")


def _check_amount(description: str, value: Decimal) -> None:
    if not value.is_finite() or not 0 <= value <= _MAX_AMOUNT:
        raise InvalidResponse(f"{description} is {value if value.adjusted() < 40 else 'too large'}")


def _check_slot_name(description: str, name: str, owner_of: Callable[[str], str | None]) -> None:
    try:
        check_slot_name(name)
    except InvalidName:
        raise InvalidResponse(f"{description} has the malformed slot name {_shorten(name)}") from None
    if (owner := owner_of(name)) is not None:
        raise InvalidResponse(f"{description} has the slot {name}, which belongs to the plugin {owner}")


def validate_devices(
    answer: Any, *, key: str, displays: Sequence[SlotDisplay], owner_of: Callable[[str], str | None]
) -> tuple[ComputeDevice, ...]:
    """Validates the result of ``list_devices`` of the plugin ``key``, with its ``displays`` (``configurable_slots``).

    ``owner_of`` returns the other plugin that a slot belongs to, if any.
    """
    validated_devices: tuple[ComputeDevice, ...] = _normalized_collection("list_devices", answer, MAX_DEVICES)
    slot_types = {display.slot_name: display.slot_type for display in displays}
    quanta: dict[SlotName, Decimal] = {}
    device_ids = {device.device_id for device in validated_devices}
    seen_ids: set[DeviceId] = set()
    for device_number, device in enumerate(validated_devices):
        if not device.device_id:
            raise InvalidResponse(f"device {device_number} has no device_id")
        _check_text(f"device {device_number}: device_id", device.device_id, 128)
        description = f"device {_shorten(device.device_id)}"
        if not device.device_id.isprintable():
            raise InvalidResponse(f"{description}: device_id has characters that do not print")
        if device.device_id in seen_ids:
            raise InvalidResponse(f"{description} is listed twice")
        seen_ids.add(device.device_id)
        if device.device_name != key:
            raise InvalidResponse(f"{description}: device_name is {_shorten(device.device_name)} instead of {key!r}")
        _check_device_facts(description, device, device_ids)
        for slot in device.slots:
            _check_slot_name(description, slot.slot_name, owner_of)
            _check_slot(f"{description}: {slot.slot_name}", slot, slot_types)
            if quanta.setdefault(slot.slot_name, slot.quantum) != slot.quantum:
                raise InvalidResponse(f"{description}: {slot.slot_name}: quantum differs from that of other devices")
        if len({slot.slot_name for slot in device.slots}) != len(device.slots):
            raise InvalidResponse(f"{description} has a slot twice")
    return validated_devices


def _check_device_facts(description: str, device: ComputeDevice, device_ids: set[DeviceId]) -> None:
    if device.numa_node is not None and not 0 <= device.numa_node < 1 << 16:
        raise InvalidResponse(f"{description}: numa_node is {device.numa_node}; an unknown node is None")
    for field_name in ("hw_location", "model_name"):
        _check_text(f"{description}: {field_name}", getattr(device, field_name))
    _check_text(f"{description}: health_reason", device.health_reason, _LONG_TEXT_LENGTH)
    _check_number(f"{description}: memory_size", device.memory_size)
    _check_number(f"{description}: processing_units", device.processing_units)
    for field_name in ("slots", "compute_units", "precision_support", "partitioning_support", "variant_properties"):
        if len(getattr(device, field_name)) > MAX_ENTRIES:
            raise InvalidResponse(
                f"{description}: {field_name} has {len(getattr(device, field_name))} entries; {MAX_ENTRIES} are allowed"
            )
    if device.memory_spec is not None:
        for field_name in device.memory_spec.__slots__:
            field_value = getattr(device.memory_spec, field_name)
            _check_text(f"{description}: memory_spec.{field_name}", field_value) if isinstance(
                field_value, str
            ) else _check_number(f"{description}: memory_spec.{field_name}", field_value)
    for unit in device.compute_units:
        _check_text(f"{description}: compute_units", unit.name)
        _check_number(f"{description}: compute_units: {unit.name}", unit.count)
    for precision in device.precision_support:
        _check_text(f"{description}: precision_support", precision.format)
    for partitioning in device.partitioning_support:
        _check_text(f"{description}: partitioning_support", partitioning.technology)
    for variant in device.variant_properties:
        for property_part in (variant.namespace, variant.feature, variant.value):
            _check_text(f"{description}: variant_properties", property_part, 128)
    for link in device.links:
        if link.peer not in device_ids or link.peer == device.device_id:
            raise InvalidResponse(f"{description}: links lead to the unknown device {_shorten(link.peer)}")
        _check_number(f"{description}: links: bandwidth_gib_s", link.bandwidth_gib_s)
    if len(device.links) > len(device_ids):
        raise InvalidResponse(f"{description}: links has {len(device.links)} entries for {len(device_ids)} devices")


def _check_slot(description: str, slot: DeviceSlot, declared_types: Mapping[SlotName, SlotType]) -> None:
    _check_amount(f"{description}: amount", slot.amount)
    _check_amount(f"{description}: quantum", slot.quantum)
    _check_text(f"{description}: exclusive_group", slot.exclusive_group, 128)
    if slot.quantum < _MIN_QUANTUM:
        raise InvalidResponse(f"{description}: quantum is {slot.quantum}")
    if slot.slot_name not in declared_types:
        raise InvalidResponse(f"{description} is none of configurable_slots")
    if slot.slot_type is not declared_types[slot.slot_name]:
        raise InvalidResponse(
            f"{description} is of type {slot.slot_type}, in configurable_slots {declared_types[slot.slot_name]}"
        )
    if slot.slot_type is not SlotType.COUNT and slot.quantum != 1:
        raise InvalidResponse(f"{description}: quantum is {slot.quantum}; only counts have fractions")


def validate_displays(answer: Any, *, owner_of: Callable[[str], str | None]) -> tuple[SlotDisplay, ...]:
    """Validates the result of ``configurable_slots``."""
    validated_displays: tuple[SlotDisplay, ...] = _normalized_collection("configurable_slots", answer, MAX_SLOTS)
    seen_names: set[SlotName] = set()
    for entry_number, display in enumerate(validated_displays):
        _check_slot_name(f"entry {entry_number}", display.slot_name, owner_of)
        if display.slot_name in seen_names:
            raise InvalidResponse(f"{display.slot_name} is listed twice")
        seen_names.add(display.slot_name)
        for name in ("description", "human_readable_name", "display_unit", "display_icon"):
            _check_text(f"{display.slot_name}: {name}", getattr(display, name))
        if not 0 <= display.number_round_length <= 20:
            raise InvalidResponse(f"{display.slot_name}: number_round_length is {display.number_round_length}")
    return validated_displays


def validate_slots(
    answer: Any, *, listed_devices: Sequence[ComputeDevice], displays: Sequence[SlotDisplay]
) -> dict[SlotName, Decimal]:
    """Validates the result of ``available_slots``.

    It may be at most what all devices have, because a device may fail between two calls.
    """
    quantities: dict[SlotName, Decimal] = _normalized_collection("available_slots", answer, MAX_SLOTS)
    declared_names = {display.slot_name for display in displays}
    totals: dict[SlotName, Decimal] = {}
    for device in listed_devices:
        for slot in device.slots:
            totals[slot.slot_name] = totals.get(slot.slot_name, Decimal(0)) + slot.amount
    for slot_name, amount in quantities.items():
        if slot_name not in declared_names:
            raise InvalidResponse(f"has {_shorten(slot_name)}, which is none of configurable_slots")
        _check_amount(slot_name, amount)
        if amount > totals.get(slot_name, Decimal(0)):
            raise InvalidResponse(f"offers {amount} {slot_name}; the devices have {totals.get(slot_name, 0)}")
    return quantities


def validate_namespaces(answer: Any) -> tuple[VariantNamespace, ...]:
    """Validates the result of ``variant_namespaces``."""
    validated_namespaces: tuple[VariantNamespace, ...] = _normalized_collection(
        "variant_namespaces", answer, MAX_ENTRIES
    )
    for namespace in validated_namespaces:
        _check_text("namespace", namespace.namespace, 128)
        if len(namespace.features) > MAX_ENTRIES:
            raise InvalidResponse(f"{namespace.namespace}: features has {len(namespace.features)} entries")
        for feature in namespace.features:
            for feature_text in (feature.name, *feature.ordered_values):
                _check_text(f"{namespace.namespace}: features", feature_text, 128)
    return validated_namespaces


def validate_attached(answer: Any, *, allocation: DeviceAllocation) -> tuple[AttachedDevice, ...]:
    """Validates the result of ``alloc_to_devices`` for an allocation."""
    validated_devices: tuple[AttachedDevice, ...] = _normalized_collection("alloc_to_devices", answer, MAX_DEVICES)
    device_ids = allocation.device_ids()
    for device in validated_devices:
        if device.device_id not in device_ids:
            raise InvalidResponse(f"has the device {_shorten(device.device_id)}, which is not allocated")
        _check_text(f"{device.device_id}: model_name", device.model_name)
        _check_text(f"{device.device_id}: data", str(device.data), 1 << 16)
    return validated_devices


def validate_node_info(answer: Any) -> NodeInfo:
    """Validates the result of ``get_node_info``."""
    node_info: NodeInfo = normalized("get_node_info", answer)
    if len(node_info.extra) > MAX_ENTRIES:
        raise InvalidResponse(f"extra has {len(node_info.extra)} entries; {MAX_ENTRIES} are allowed")
    for field_name, field_text in (
        ("driver_version", node_info.driver_version), ("runtime_version", node_info.runtime_version),
        *node_info.extra.items(),
    ):  # fmt: skip
        _check_text("extra", field_name, 128)
        _check_text(field_name, field_text, _LONG_TEXT_LENGTH)
    return node_info


def validate_alloc_map(spec: Any, listed_devices: Sequence[ComputeDevice]) -> AllocMapSpec | None:
    """Validates the result of ``alloc_map_spec`` by building an alloc map of the listed devices.

    Without a spec, because the plugin has its own map, builds the map in which the agent keeps the accounts. Raises
    InvalidResponse.
    """
    if spec is not None and not isinstance(spec, AllocMapSpec):
        raise InvalidResponse(f"is a {type(spec).__name__}")
    try:
        build_alloc_map(spec or AllocMapSpec(kind="discrete"), listed_devices)
    except BackendError as e:
        raise InvalidResponse(f"cannot be used: {e.message}") from None
    return spec


MAX_METRIC_KEYS = 64
"""Names of metrics that one source may have in its life: each is a series in every monitoring system."""
MAX_MEASUREMENTS = 8192
_METRIC_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class MeasurementFilter:
    """Removes the invalid measurements from the answers of one source, and records the first fault.

    Remembers the keys, so that the source cannot invent keys for ever.
    """

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self.reason: str | None = None
        """The first complaint since :meth:`begin`."""

    def begin(self) -> None:
        self.reason = None

    def filter_measurements(
        self, measurements: Iterable[Measurement], devices: Collection[str] | None = None
    ) -> list[Measurement]:
        """Returns the valid measurements, and records the first fault if any of them are invalid or too many.

        ``devices``: the device ids that measurements may have; None: any.
        """
        usable_measurements: list[Measurement] = []
        for measurement_number, measurement in enumerate(measurements):
            if measurement_number >= MAX_MEASUREMENTS:
                self.complain(f"more than {MAX_MEASUREMENTS} measurements in one answer")
                break
            fault_text = self._find_fault(measurement, devices)
            if fault_text is None:
                usable_measurements.append(measurement)
            else:
                self.complain(fault_text)
        return usable_measurements

    def complain(self, fault: str) -> None:
        self.reason = self.reason or fault

    def _find_fault(self, answer_item: object, devices: Collection[str] | None) -> str | None:
        measurement: Any = answer_item  # what a plugin put into the fields is not what their types say
        if not isinstance(answer_item, Measurement):
            return f"{type(measurement).__name__} is no measurement"
        if not isinstance(measurement.stats, frozenset) or not isinstance(measurement.unit_hint, str):
            return f"{_shorten(measurement.key)} has a malformed unit or malformed stats"
        if (fault := self._find_key_fault(measurement.key)) is not None:
            return fault
        value = measurement.value
        if not _is_number(value):
            return f"{measurement.key} is {_shorten(value)}, not a finite number from 0 on"
        if measurement.capacity is not None and not _is_number(measurement.capacity):
            return (
                f"the capacity of {measurement.key} is {_shorten(measurement.capacity)}, not a finite number from 0 on"
            )
        if measurement.limit is not None and not _is_number(measurement.limit):
            return f"the limit of {measurement.key} is {_shorten(measurement.limit)}, not a finite number from 0 on"
        if measurement.unit_hint not in UNITS:
            return f"{measurement.key} has the unknown unit {_shorten(measurement.unit_hint)}"
        if measurement.kind not in _METRIC_KINDS:
            return f"{measurement.key} is of the unknown kind {_shorten(measurement.kind)}"
        if not measurement.stats <= STATS:
            return (
                f"{measurement.key} wants unknown stats: {', '.join(sorted(map(_shorten, measurement.stats - STATS)))}"
            )
        if devices is not None and measurement.device_id is not None and measurement.device_id not in devices:
            return f"{measurement.key} is of the unknown device {_shorten(measurement.device_id)}"
        return None

    def _find_key_fault(self, key: object) -> str | None:
        if isinstance(key, str) and key in self._keys:
            return None
        if not isinstance(key, str) or not _METRIC_KEY.fullmatch(key):
            return f"{_shorten(key)} is no name for a metric"
        if len(self._keys) >= MAX_METRIC_KEYS:
            return f"more than {MAX_METRIC_KEYS} different metrics; {key} and later ones are left out"
        self._keys.add(key)
        return None


_METRIC_KINDS = frozenset(MetricKind)
_LARGEST_VALUE = 1e300


def _is_number(value: Any) -> bool:
    is_real = type(value) in (float, int) or (type(value) is not bool and isinstance(value, Real))
    return bool(is_real and 0 <= value <= _LARGEST_VALUE)
