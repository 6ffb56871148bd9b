"""Defines the attributes of devices that device requests can name."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum

from ai.backend.common.devices import ComputeDevice, PrecisionSupport
from ai.backend.core.allocation.requests.terms import Attributes, Value


class AttributeKind(StrEnum):
    """Lists the kinds of values with which attributes are compared."""

    SIZE = "a size, such as 40g"
    NUMBER = "a number"
    TEXT = "quoted text"


ATTRIBUTES: Mapping[str, AttributeKind] = {
    "memory": AttributeKind.SIZE,
    "memory_type": AttributeKind.TEXT,
    "memory_bandwidth": AttributeKind.NUMBER,
    "model": AttributeKind.TEXT,
    "plugin": AttributeKind.TEXT,
    "id": AttributeKind.TEXT,
    "location": AttributeKind.TEXT,
    "numa_node": AttributeKind.NUMBER,
    "units": AttributeKind.NUMBER,
    "precision": AttributeKind.TEXT,
}
"""Every other name is a feature of a variant, of any namespace (``compute_capability``) or of one
(``nvidia.compute_capability``); what it states is compared as a version, a size, or text."""
LINK_BANDWIDTH, LINK = "link_bandwidth", "link"
HOST_SLOTS = ("cpu", "mem")
"""Lists the slots to which no device request applies."""


def attributes_of(device: ComputeDevice) -> Attributes:
    """Returns the attributes of a device as names with values. ``memory`` is in bytes, bandwidths are in GiB/s."""
    attributes: dict[str, tuple[Value, ...]] = {
        "plugin": (str(device.device_name),),
        "id": (str(device.device_id),),
    }
    features: dict[str, list[Value]] = {}
    for stated_property in device.properties:
        features.setdefault(stated_property.feature, []).append(stated_property.value)
        features.setdefault(f"{stated_property.namespace}.{stated_property.feature}", []).append(stated_property.value)
    for name, values in features.items():
        attributes[name] = tuple(values)
    spec = device.memory_spec
    if memory := (spec.total_memory if spec else 0) or device.memory_size:
        attributes["memory"] = (Decimal(memory),)
    if spec is not None and spec.memory_type:
        attributes["memory_type"] = (spec.memory_type,)
    if spec is not None and spec.bandwidth is not None:
        attributes["memory_bandwidth"] = (Decimal(str(spec.bandwidth)),)
    if device.model_name:
        attributes["model"] = (device.model_name,)
    if device.hw_location:
        attributes["location"] = (device.hw_location,)
    if device.numa_node is not None:
        attributes["numa_node"] = (Decimal(device.numa_node),)
    if device.processing_units:
        attributes["units"] = (Decimal(device.processing_units),)
    precisions = [
        precision_entry.format
        for precision_entry in device.precision_support
        if precision_entry.support is PrecisionSupport.NATIVE
    ]
    if precisions:
        attributes["precision"] = tuple(precisions)
    return attributes
