"""Finds the devices of a family in the node's tree."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from ai.backend.accelerator.sysfs.family import Condition, Family, Model, Value
from ai.backend.common.devices import (
    ComputeDevice,
    ComputePrecisionSupport,
    ComputeUnit,
    DeviceHealth,
    MemorySpec,
    VariantProperty,
)
from ai.backend.common.ids import DeviceId, DeviceName
from ai.backend.plugin.accelerator import DeviceMapping
from ai.backend.plugin.sysfs.base import ScannedDevice, distinct, whole
from ai.backend.plugin.sysfs.pci import BUS, PciDevice, links_of, pci_at, pci_device
from ai.backend.plugin.sysfs.tree import Missing, Tree, Unreadable, parse_number

_SAFE_FIELD = re.compile(r"[\w+:-][\w.+:-]{0,127}", re.ASCII)
"""The form of values that may be filled into a path or a variable. A driver that answers with garbage must not name
other files.
"""


@dataclass(slots=True)
class Entry:
    """Describes a place in the tree where a device was found, with its PCI function and faults so far."""

    path: str
    name: str
    index: str
    pci: PciDevice | None
    faults: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        return self.pci.address if self.pci is not None else self.name

    def read(self, tree: Tree, value: Value) -> str:
        """Reads a value of the device. Raises Missing or Unreadable."""
        path = value.attribute or value.name_of or ""
        if path.startswith("pci:"):
            if self.pci is None:
                raise Missing(f"{self.name} has no PCI function")
            folder, path = self.pci.path, path.removeprefix("pci:")
        else:
            folder = self.path
        paths = tree.glob(f"{folder}/{path}") if "*" in path else [f"{folder}/{path}"]
        if not paths:
            raise Missing(f"{folder}/{path}")
        if value.name_of is not None:
            if (link_target := tree.resolve(paths[0])) is None:
                raise Missing(paths[0])
            text = link_target.rpartition("/")[2]
        else:
            text = tree.read(paths[0])
        if value.pattern is None:
            return text
        if (match := re.search(value.pattern, text)) is None:
            raise Unreadable(f"{paths[0]} is not as expected: {text[:40]!r}")
        return str(match[1]).strip()


def entries(tree: Tree, family: Family) -> Iterator[Entry]:
    """Yields every place that a device of the family may be at, in natural order."""
    device_match = family.find
    if device_match.by == "pci":
        pci_devices = [pci_at(tree, address) for address in sorted(tree.names(BUS))]  # hexadecimal
        entries = [
            Entry(pci.path, pci.address, "", pci)
            for pci in pci_devices
            if pci is not None and pci.vendor == device_match.vendor
        ]
    else:
        paths = tree.glob(device_match.glob if device_match.by == "dev" else f"/sys/class/{device_match.class_name}/*")
        names = [(path, path.rpartition("/")[2]) for path in paths]
        matched_paths = [
            (path, name, match) for path, name in names if (match := re.fullmatch(device_match.name, name)) is not None
        ]
        entries = [
            Entry(path, name, match[1], pci_device(tree, f"{path}/device")) for path, name, match in matched_paths
        ]
    for entry in entries:
        if entry.pci is None and device_match.pci_address is not None:
            try:
                entry.pci = pci_at(tree, entry.read(tree, device_match.pci_address))
            except (Missing, Unreadable) as e:
                entry.faults.append(f"its PCI address cannot be read: {e}")
        if device_match.vendor and entry.pci is not None and entry.pci.vendor.lower() != device_match.vendor:
            continue
        yield entry


def scan_family(tree: Tree, family: Family, serials: MutableMapping[str, str]) -> list[ScannedDevice]:
    """Lists the devices of one family. ``serials`` maps places to the serial numbers read last; the caller stores it,
    so that a serial that is unreadable for a while does not change the id of its device."""
    entry_models: list[tuple[Entry, Model]] = []
    for entry in entries(tree, family):
        if (model := family.model_of(entry.pci.device if entry.pci is not None else "")) is None:
            continue
        if not _belongs(tree, family, entry):
            continue
        entry.index = _index(tree, family, entry) or str(len(entry_models))
        entry_models.append((entry, model))
    for place in serials.keys() - {entry.place for entry, _ in entry_models}:
        del serials[place]
    serial_claims = [(entry.place, _serial(tree, family, entry, serials)) for entry, _ in entry_models]
    id_of_place = distinct(serial_claims)
    pci_of_device = {
        DeviceId(id_of_place[entry.place]): entry.pci for entry, _ in entry_models if entry.pci is not None
    }
    return [
        _scanned_device(tree, family, entry, model, id_of_place[entry.place], pci_of_device)
        for entry, model in entry_models
    ]


def _belongs(tree: Tree, family: Family, entry: Entry) -> bool:
    """Returns True if the device at an entry fulfils all conditions of the family (``only_if``).

    An unreadable condition counts as fulfilled and as a fault, since a faulty device must not vanish.
    """
    for condition in family.only_if:
        try:
            if condition.fault(entry.read(tree, condition.value)) is not None:
                return False
        except Missing:
            if not condition.optional:
                return False
        except Unreadable as e:
            entry.faults.append(str(e))
    return True


def _index(tree: Tree, family: Family, entry: Entry) -> str:
    if family.find.index is None:
        return entry.index
    try:
        return entry.read(tree, family.find.index)
    except (Missing, Unreadable) as e:
        entry.faults.append(f"its index cannot be read: {e}")
        return entry.index


def _serial(tree: Tree, family: Family, entry: Entry, serials: MutableMapping[str, str]) -> str:
    if family.id is None:
        return entry.place
    try:
        serial = entry.read(tree, family.id)
    except Missing:
        return serials.get(entry.place, entry.place)
    except Unreadable as e:
        entry.faults.append(f"its serial number cannot be read: {e}")
        return serials.get(entry.place, entry.place)
    if _SAFE_FIELD.fullmatch(serial) is None:
        if serial:
            entry.faults.append(f"its serial number is garbage: {serial[:40]!r}")
        return serials.get(entry.place, entry.place)
    first_serial = serials.setdefault(entry.place, serial)
    if first_serial != serial:
        entry.faults.append(
            f"its serial number changed from {first_serial} to {serial}; restart the agent if it was replaced"
        )
    return first_serial


def _fields(tree: Tree, family: Family, entry: Entry, model: Model, device_id: str) -> dict[str, str]:
    """Returns by name the values that replace the placeholders in a device's templates.

    A missing value is left out; a malformed value makes the device unhealthy.
    """
    fields = {"index": entry.index, "name": entry.name, "id": device_id, "model": model.name}
    if entry.pci is not None:
        fields["pci"] = entry.pci.address
    for name, value in family.values.items():
        try:
            text = entry.read(tree, value)
        except Missing:
            continue
        except Unreadable as e:
            entry.faults.append(str(e))
            continue
        if _SAFE_FIELD.fullmatch(text) is None:
            entry.faults.append(f"{name} is garbage: {text[:40]!r}")
            continue
        fields[name] = text
    if _SAFE_FIELD.fullmatch(entry.index) is None:
        entry.faults.append(f"its index is garbage: {entry.index[:40]!r}")
        del fields["index"]
    return fields


def fill(template: str, fields: Mapping[str, str]) -> str | None:
    """Replaces the placeholders of a template. Returns None if the device has no value for one of them."""
    filled_parts = []
    for literal_text, name, _, _ in string.Formatter().parse(template):
        filled_parts.append(literal_text)
        if name is not None:
            if name not in fields:
                return None
            filled_parts.append(fields[name])
    return "".join(filled_parts)


def _nodes(tree: Tree, family: Family, entry: Entry, fields: Mapping[str, str]) -> tuple[DeviceMapping, ...]:
    """Returns the existing device nodes of a device. Records faults for nodes that should exist.

    A device whose family has nodes for each device needs at least one of its own.
    """
    nodes: list[DeviceMapping] = []
    own_nodes: list[bool] = []
    for node in family.devices:
        path = fill(node.path, fields)
        paths = (tree.glob(path) if "*" in path else [path] * tree.exists(path)) if path is not None else []
        if not paths and not node.optional:
            entry.faults.append(f"there is no device node {path or node.path}")
        nodes += (DeviceMapping(source=existing_path, permissions=node.permissions) for existing_path in paths)
        if path != node.path:
            own_nodes.append(bool(paths))
    if own_nodes and not any(own_nodes):
        entry.faults.append("it has no device node of its own")
    return tuple(nodes)


def _fault(tree: Tree, entry: Entry, condition: Condition) -> str | None:
    name = condition.value.attribute or condition.value.name_of
    try:
        fault = condition.fault(entry.read(tree, condition.value))
    except Missing:
        return None if condition.optional else f"{name} is missing"
    except Unreadable as e:
        return str(e)
    return f"{name} {fault}" if fault is not None else None


def _scanned_device(
    tree: Tree, family: Family, entry: Entry, model: Model, device_id: str, pci_of_device: Mapping[DeviceId, PciDevice]
) -> ScannedDevice:
    fields = _fields(tree, family, entry, model, device_id)
    nodes = _nodes(tree, family, entry, fields)
    faults = [
        *entry.faults,
        *(fault for condition in family.healthy_if if (fault := _fault(tree, entry, condition)) is not None),
    ]
    memory = _memory(tree, family, entry, model)
    device = ComputeDevice(
        device_name=DeviceName(family.key),
        device_id=DeviceId(device_id),
        hw_location=entry.place,
        slots=whole(family.slot),
        numa_node=entry.pci.numa_node if entry.pci is not None else None,
        memory_size=memory,
        processing_units=model.cores,
        model_name=model.name,
        health=DeviceHealth.UNHEALTHY if faults else DeviceHealth.HEALTHY,
        health_reason="; ".join(dict.fromkeys(faults))[:500],
        memory_spec=MemorySpec(total_memory=memory, memory_type=model.memory_type, bandwidth=model.memory_bandwidth)
        if memory
        else None,
        compute_units=(ComputeUnit(name=model.unit, count=model.cores),) if model.cores else (),
        precision_support=tuple(
            ComputePrecisionSupport(format=name, support=support) for name, support in model.precision_support()
        ),
        links=links_of(DeviceId(device_id), pci_of_device),
        variant_properties=tuple(_variants(tree, family, model, memory)),
    )
    return ScannedDevice(device=device, nodes=nodes, fields=fields | {"path": entry.path})


def _memory(tree: Tree, family: Family, entry: Entry, model: Model) -> int:
    if family.memory is not None:
        try:
            text = entry.read(tree, family.memory)
            if 0 < (size := parse_number(text, "memory")) < 2**63:
                return int(size)
        except (Missing, Unreadable):
            pass
    return model.memory


def _variants(tree: Tree, family: Family, model: Model, memory: int) -> Iterator[VariantProperty]:
    """Yields the variant properties of a device: its model, memory, driver version and precisions.

    Yields none if its family names no namespace.
    """
    if not family.variant_namespace:
        return
    features: Sequence[tuple[str, str | None]] = (
        ("model", model.name),
        ("memory_type", model.memory_type),
        ("memory_gib", str(memory >> 30) if memory else None),
        ("driver_version", driver_version(tree, family)),
        *(("precision", name) for name in model.precisions),
    )
    for feature, value in features:
        if value is not None and 0 < len(value) <= 128:
            yield VariantProperty(namespace=family.variant_namespace, feature=feature, value=value)


def driver_version(tree: Tree, family: Family) -> str | None:
    """Returns the version of the driver's kernel module, or None if it is unknown."""
    if not family.kernel_module:
        return None
    version = tree.text(f"/sys/module/{family.kernel_module.replace('-', '_')}/version")
    return version[:64].split()[0] if version is not None else None
