"""Describes devices as ResourceSlices (resource.k8s.io/v1). Pure: the same devices give the same slices.

Claims see attributes and capacities by these names, qualified by the driver: ``uuid`` (the plugin's id of the device,
to select exactly one), ``plugin``, ``model``, ``type``, ``numaNode``, ``linkGroup`` (devices of one value reach each
other by the vendor's own links), and each variant property as ``namespace_feature``. By the names of Kubernetes itself:
``pciBusID`` and ``pcieRoot``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec

from ai.backend.common.devices import ComputeDevice, DeviceSlot, LinkKind
from ai.backend.common.slots import format_quantity
from ai.backend.kubeacc.crd.vocabulary import ATTACH_FAILED_CONDITION, ATTACHED_CONDITION
from ai.backend.kubeacc.node_plugin.devices import device_name, name_in_cluster, share_slot
from ai.backend.kubeacc.node_plugin.places import PCI_ADDRESS
from ai.backend.node.kube_api.objects import Device

SLICE_DEVICES = 64
"""The limit of a slice whose devices have taints or counters."""
_COUNTER_SETS = 8
_MAX_VALUE = 64
_MAX_NAME = 32
_MAX_ENTRIES = 32
_MAX_TAINT_VALUE = 63
_STANDARD_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
_STANDARD_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


BINDING: Mapping[str, Any] = {
    "bindsToNode": True,
    "bindingConditions": [ATTACHED_CONDITION],
    "bindingFailureConditions": [ATTACH_FAILED_CONDITION],
}


class OfferedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a device that the node offers to claims, with the facts that its ResourceSlice states about it.

    These are the type of its Accelerator, taints as pairs of key and effect with a value, whether several claims may
    share it (consumable capacity), whether it must be attached before its pod is bound (binding conditions), and the
    host bridge that it is below, by which claims join it with devices of other drivers (``matchAttribute``).
    """

    plugin: str
    type: str
    device: ComputeDevice
    taints: tuple[tuple[str, str, str], ...] = ()
    is_shared: bool = False
    is_detached: bool = False
    pcie_root: str = ""

    @property
    def name(self) -> str:
        return name_in_cluster(self.plugin, self.device.device_id)


class SliceFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """Holds, for each optional part of a ResourceSlice, if the cluster keeps the part: its feature gate is on.

    On by default from 1.36 on: before, devices with a taint are left out, and claims get whole devices of the node.
    """

    taints: bool = True
    counters: bool = True
    shares: bool = True
    binding: bool = True


_ALL_FEATURES = SliceFeatures()


def probe_devices() -> list[dict[str, Any]]:
    """Returns a probe device for each feature, in the order of the fields of :class:`SliceFeatures`."""
    amount = {"a": {"value": "1"}}
    return [
        {"name": "taints", "taints": [{"key": "probe", "effect": "NoSchedule"}]},
        {"name": "counters", "consumesCounters": [{"counterSet": "probe", "counters": amount}]},
        {"name": "shares", "allowMultipleAllocations": True, "capacity": amount},
        {"name": "binding", **BINDING},
    ]


def kept_features(devices: Sequence[Device]) -> SliceFeatures:
    """Returns the features that the cluster's answer to :func:`probe_devices` shows."""
    device_by_name = {device.name: device for device in devices}
    return SliceFeatures(
        taints=bool(device_by_name["taints"].taints),
        counters=bool(device_by_name["counters"].consumes_counters),
        shares=device_by_name["shares"].allow_multiple_allocations,
        binding=bool(device_by_name["binding"].binding_conditions),
    )


def slice_specs(
    offered_devices: Sequence[OfferedDevice],
    *,
    driver: str,
    node: str,
    generation: int,
    features: SliceFeatures = _ALL_FEATURES,
) -> list[dict[str, Any]]:
    """Returns the specs of all slices of the node's pool. A pool without devices has no slice."""
    offered_devices = [offered_device for offered_device in offered_devices if _is_possible(offered_device, features)]
    groups = link_groups([offered_device.device for offered_device in offered_devices])
    parents = _counter_parents(offered_devices) if features.counters else {}
    devices = [
        _device_spec(
            offered_device,
            groups.get(offered_device.device.device_id, ""),
            parents,
            is_shared=offered_device.is_shared and features.shares,
        )
        for offered_device in sorted(offered_devices, key=lambda one: one.name)
        if offered_device.is_detached or offers_anything(offered_device.device)
    ]
    whole_devices = {parent.name: parent for parent in parents.values()}
    counter_sets = [_counter_set(whole_devices[name]) for name in sorted(whole_devices)]
    slice_contents: list[dict[str, Any]] = [
        {"devices": devices[slice_start : slice_start + SLICE_DEVICES]}
        for slice_start in range(0, len(devices), SLICE_DEVICES)
    ]
    slice_contents += [
        {"sharedCounters": counter_sets[slice_start : slice_start + _COUNTER_SETS]}
        for slice_start in range(0, len(counter_sets), _COUNTER_SETS)
    ]
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(slice_contents)}
    return [{"driver": driver, "nodeName": node, "pool": pool, **slice_content} for slice_content in slice_contents]


def _is_possible(offered_device: OfferedDevice, features: SliceFeatures) -> bool:
    """Returns True if the cluster keeps the parts of a slice that the device needs, so that it can be offered.

    A device that may not be allocated has a taint, and needs the part for taints; a detached device needs the part for
    binding conditions.
    """
    return (features.taints or not offered_device.taints) and (features.binding or not offered_device.is_detached)


def offers_anything(device: ComputeDevice) -> bool:
    """Returns False for a device that is cut into partitions, because the partitions are offered instead."""
    return any(slot.amount > 0 for slot in device.slots)


def link_groups(devices: Sequence[ComputeDevice]) -> dict[str, str]:
    """Returns the link group of each device that has direct links; devices that links connect have the same group.

    The name of a group is the name of its first device.
    """
    device_by_id: dict[str, ComputeDevice] = {device.device_id: device for device in devices}
    groups: dict[str, str] = {}
    for first_id in sorted(device_by_id):
        if first_id in groups or not _peers(device_by_id[first_id]):
            continue
        group = device_name(first_id)
        pending_ids: list[str] = [first_id]
        while pending_ids:
            device_id = pending_ids.pop()
            if device_id in groups or device_id not in device_by_id:
                continue
            groups[device_id] = group
            pending_ids += _peers(device_by_id[device_id])
    return groups


def _peers(device: ComputeDevice) -> list[str]:
    return [link.peer for link in device.links if link.kind is LinkKind.DIRECT]


def parent_of(device_id: str, listed_ids: Container[str]) -> str:
    """Returns the id in ``listed_ids`` of the device of which the partition ``device_id`` is a part.

    Returns an empty text for a whole device. A partition's id begins with the device's id.
    """
    prefix = device_id
    while "/" in prefix:
        prefix = prefix.rpartition("/")[0]
        if prefix in listed_ids:
            return prefix
    return ""


def _counter_parents(offered_devices: Sequence[OfferedDevice]) -> dict[tuple[str, str], OfferedDevice]:
    """Returns the device whose counters each partition consumes: the device of which the partition is a part.

    A device that is cut into partitions consumes its own counters.
    """
    parents: dict[tuple[str, str], OfferedDevice] = {}
    for plugin in {offered_device.plugin for offered_device in offered_devices}:
        plugin_devices: dict[str, OfferedDevice] = {
            offered_device.device.device_id: offered_device
            for offered_device in offered_devices
            if offered_device.plugin == plugin
        }
        for device_id in plugin_devices:
            if parent := parent_of(device_id, plugin_devices):
                parents[plugin, device_id] = parents[plugin, parent] = plugin_devices[parent]
    return parents


def _counter_set(parent: OfferedDevice) -> dict[str, Any]:
    return {"name": parent.name, "counters": _counters(parent.device)}


def _counters(device: ComputeDevice) -> dict[str, Any]:
    counters = {"memory": {"value": str(device.memory_size)}}
    if device.processing_units:
        counters["processing-units"] = {"value": str(device.processing_units)}
    return counters


def _device_spec(
    offered_device: OfferedDevice, link_group: str, parents: Mapping[tuple[str, str], OfferedDevice], *, is_shared: bool
) -> dict[str, Any]:
    device = offered_device.device
    attributes: dict[str, Any] = {
        "plugin": {"string": offered_device.plugin[:_MAX_VALUE]},
        "type": {"string": offered_device.type},
    }
    if len(device.device_id) <= _MAX_VALUE:
        attributes["uuid"] = {"string": device.device_id}
    if device.model_name:
        attributes["model"] = {"string": device.model_name[:_MAX_VALUE]}
    if device.numa_node is not None:
        attributes["numaNode"] = {"int": device.numa_node}
    if link_group:
        attributes["linkGroup"] = {"string": link_group}
    if PCI_ADDRESS.fullmatch(device.hw_location):
        attributes[_STANDARD_PCI_BUS_ID] = {"string": device.hw_location.lower()}
    if offered_device.pcie_root:
        attributes[_STANDARD_PCIE_ROOT] = {"string": offered_device.pcie_root[:_MAX_VALUE]}
    parent = parents.get((offered_device.plugin, device.device_id))
    if parent is not None and parent is not offered_device and len(parent.device.device_id) <= _MAX_VALUE:
        attributes["parent"] = {"string": parent.device.device_id}
    capacity: dict[str, Any] = {}
    if device.memory_size:
        capacity["memory"] = {"value": str(device.memory_size)}
    if device.processing_units:
        capacity["processingUnits"] = {"value": str(device.processing_units)}
    shared_slot = share_slot(device) if is_shared else None
    if shared_slot is not None:
        # What a claim does not ask for it must not consume, or nothing would be left for the next one.
        capacity = {
            name: {**capacity_value, "requestPolicy": {"default": "0"}} for name, capacity_value in capacity.items()
        }
        amount, step = format_quantity(shared_slot.amount), format_quantity(shared_slot.quantum)
        policy = {"default": amount, "validRange": {"min": step, "max": amount, "step": step}}
        capacity[capacity_name(shared_slot)] = {"value": amount, "requestPolicy": policy}
    for slot in device.slots if shared_slot is None else ():
        if len(attributes) + len(capacity) < _MAX_ENTRIES:
            capacity.setdefault(capacity_name(slot), {"value": format_quantity(slot.amount)})
    for variant_property in device.variant_properties:
        if len(attributes) + len(capacity) < _MAX_ENTRIES:
            name = _identifier(f"{variant_property.namespace}_{variant_property.feature}")
            attributes.setdefault(name, {"string": variant_property.value[:_MAX_VALUE]})
    slice_device: dict[str, Any] = {"name": offered_device.name, "attributes": attributes, "capacity": capacity}
    if shared_slot is not None:
        slice_device["allowMultipleAllocations"] = True
    if offered_device.is_detached:
        slice_device |= BINDING
    if parent is not None:
        slice_device["consumesCounters"] = [{"counterSet": parent.name, "counters": _counters(device)}]
    if offered_device.taints:
        slice_device["taints"] = [
            {"key": key, "effect": effect, **({"value": taint_text} if taint_text else {})}
            for key, effect, taint_text in offered_device.taints
        ]
    return slice_device


def capacity_name(slot: DeviceSlot) -> str:
    """Returns the name by which claims ask for an amount of a slot."""
    return _identifier(slot.slot_name)


def _identifier(name: str) -> str:
    """Returns a valid attribute name, which is a C identifier of at most 32 characters."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII)[:_MAX_NAME]
    return identifier if identifier[:1].isalpha() or identifier[:1] == "_" else f"_{identifier}"[:_MAX_NAME]


def taint_value(reason: str) -> str:
    """Returns a reason with only the characters that the value of a taint may have, and no longer than it may be."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", reason)[:_MAX_TAINT_VALUE].strip("-_.")
