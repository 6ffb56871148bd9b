"""Draws devices and operations as objects that Rich prints. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ai.backend.common.devices import DeviceHealth
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorOperation

_GIB = 1 << 30


def plain_text(value: object) -> Text:
    """Returns text of the cluster without markup and control characters, which could forge what a terminal shows."""
    return Text("".join(char if char.isprintable() else "\ufffd" for char in str(value)))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _add_row(table: Table, *values: object) -> None:
    table.add_row(*("" if value is None else plain_text(value) for value in values))


def health_of(device: Accelerator) -> str:
    """Returns the health of a device, and the reason why it accepts no workloads."""
    if device.status.is_quarantined:
        return "quarantined"
    if device.spec.unschedulable:
        return "cordoned"
    health = device.status.health
    if health is None:
        return "unknown"
    return health.state if health.state is DeviceHealth.HEALTHY else f"{health.state}: {health.reason}"


def _holders(device: Accelerator) -> str:
    return ", ".join(f"{holder.namespace}/{holder.pod}" for holder in device.status.holders)


def _model(device: Accelerator) -> str:
    return device.status.device.model if device.status.device is not None else ""


def device_list(devices: Iterable[Accelerator]) -> Table:
    table = _table("NAME", "TYPE", "MODEL", "NODE", "CLASS", "HEALTH", "ATTACHED", "HELD BY", "OPERATION")
    for device in sorted(devices, key=lambda d: (d.spec.node_name or "", d.metadata.name)):
        status = device.status
        operation = f"{status.operation.namespace}/{status.operation.name}" if status.operation else ""
        _add_row(
            table,
            *(device.metadata.name, device.spec.type, _model(device), device.spec.node_name, status.class_name),
            *(health_of(device), status.attach_state, _holders(device), operation),
        )
    return table


def device_tree(devices: Sequence[Accelerator]) -> Tree:
    """Draws nodes, NUMA nodes, PCIe roots, devices with their links, and partitions below the devices."""
    tree = Tree("accelerators")
    devices_by_node: defaultdict[str, list[Accelerator]] = defaultdict(list)
    partitions_of_device: defaultdict[str, list[Accelerator]] = defaultdict(list)
    names = {device.metadata.name for device in devices}
    for device in devices:
        if device.spec.parent in names and device.spec.parent is not None:
            partitions_of_device[device.spec.parent].append(device)
        else:
            devices_by_node[device.spec.node_name or ""].append(device)
    for node, node_devices in sorted(devices_by_node.items()):
        node_branch = tree.add(plain_text(f"node {node}" if node else "not attached"))
        _add_topology(node_branch, node_devices, partitions_of_device)
    return tree


def _add_topology(branch: Tree, devices: list[Accelerator], partitions_of_device: dict[str, list[Accelerator]]) -> None:
    branch_of_path: dict[tuple[str, ...], Tree] = {}
    for device in sorted(devices, key=lambda d: (*_topology_path(d), d.metadata.name)):
        parent_branch = branch
        topology_path = _topology_path(device)
        for depth in range(1, len(topology_path) + 1):
            path_prefix = topology_path[:depth]
            if path_prefix not in branch_of_path:
                branch_of_path[path_prefix] = parent_branch.add(plain_text(path_prefix[-1]))
            parent_branch = branch_of_path[path_prefix]
        _add_device(parent_branch, device, partitions_of_device)


def _topology_path(device: Accelerator) -> tuple[str, ...]:
    topology = device.status.device.topology if device.status.device is not None else None
    if topology is None:
        return ()
    numa = () if topology.numa_node is None else (f"NUMA node {topology.numa_node}",)
    return (*numa, *((f"PCIe root {topology.pcie_root}",) if topology.pcie_root else ()))


def _add_device(parent_branch: Tree, device: Accelerator, partitions_of_device: dict[str, list[Accelerator]]) -> None:
    label = plain_text(f"{device.metadata.name}  {device.spec.type} {_model(device)}  {health_of(device)}")
    branch = parent_branch.add(label)
    topology = device.status.device.topology if device.status.device is not None else None
    for link in topology.links if topology is not None else ():
        speed_text = f" {link.bandwidth_gi_b_s} GiB/s" if link.bandwidth_gi_b_s else ""
        branch.add(plain_text(f"{link.kind} to {link.peer}{speed_text}"))
    for partition in sorted(partitions_of_device.get(device.metadata.name, ()), key=lambda d: d.metadata.name):
        _add_device(branch, partition, partitions_of_device)


def device_details(device: Accelerator, operations: Iterable[AcceleratorOperation]) -> RenderableType:
    """Draws everything about one device, with its last operations."""
    spec, status, device_description = device.spec, device.status, device.status.device
    fact_table = Table(box=None, pad_edge=False, show_header=False)
    fact_table.add_column(style="bold")
    fact_table.add_column(overflow="fold")
    labelled_values: list[tuple[str, Any]] = [
        ("Name", device.metadata.name),
        ("Type", spec.type),
        ("Node", spec.node_name),
        ("Driver", f"{spec.driver} ({spec.device_id})"),
        ("Attachment", f"{spec.attachment}, {status.attach_state}"),
        ("Class", status.class_name),
        ("Managed by", status.managed_by),
        ("Health", health_of(device)),
        ("Power", status.power_state),
        ("Program", f"{status.program.image} {status.program.sha256 or ''}" if status.program else None),
        ("Held by", _holders(device) or None),
        ("Cordoned", spec.unschedulable_reason if spec.unschedulable else None),
    ]
    if device_description is not None:
        memory = device_description.memory.total_bytes if device_description.memory is not None else 0
        labelled_values += [
            ("Model", f"{device_description.vendor} {device_description.model}".strip()),
            ("UUID", device_description.uuid),
            ("Memory", f"{memory / _GIB:.1f} GiB" if memory else None),
            ("Slots", ", ".join(f"{slot.name}={slot.amount}" for slot in device_description.slots)),
            ("Operations", ", ".join(device_description.operations)),
            (
                "Properties",
                ", ".join(
                    f"{variant.namespace}::{variant.feature}::{variant.value}"
                    for variant in device_description.variants
                ),
            ),
        ]
    for name, value in labelled_values:
        if value not in (None, ""):
            fact_table.add_row(plain_text(name), plain_text(value))
    conditions = _table("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE")
    for condition in status.conditions:
        _add_row(
            conditions,
            *(condition.type, condition.status, condition.reason, condition.last_transition_time, condition.message),
        )
    sections: list[RenderableType] = [fact_table, "", conditions]
    own_operations = [operation for operation in operations if operation.spec.accelerator == device.metadata.name]
    if own_operations:
        sections += ["", operation_list(own_operations)]
    return Group(*sections)


def operation_list(operations: Iterable[AcceleratorOperation]) -> Table:
    table = _table("OPERATION", "VERB", "PHASE", "REASON", "BY", "STARTED", "MESSAGE")
    for operation in sorted(operations, key=lambda each: each.metadata.creation_timestamp or "", reverse=True):
        status = operation.status
        _add_row(
            table,
            *(f"{operation.metadata.namespace}/{operation.metadata.name}", operation.spec.operation, status.phase),
            *(status.reason, operation.spec.requested_by, status.start_time, status.message),
        )
    return table


def usage_table(devices: Iterable[Accelerator]) -> Table:
    """Draws how much devices are used, the most used first."""
    table = _table("NAME", "NODE", "MODEL", "USE %", "MEMORY", "WATT", "°C", "HELD BY", "MEASURED")
    for device in sorted(devices, key=lambda d: (-_utilization(d), d.metadata.name)):
        device_usage = device.status.usage
        memory = (
            f"{device_usage.memory_used_bytes / _GIB:.1f} GiB"
            if device_usage and device_usage.memory_used_bytes
            else None
        )
        _add_row(
            table,
            *(device.metadata.name, device.spec.node_name, _model(device)),
            *(device_usage.utilization_percent if device_usage else None, memory),
            *(
                device_usage.power_watts if device_usage else None,
                device_usage.temperature_celsius if device_usage else None,
            ),
            *(_holders(device), device_usage.measured_at if device_usage else None),
        )
    return table


def _utilization(device: Accelerator) -> float:
    device_usage = device.status.usage
    return float(device_usage.utilization_percent) if device_usage and device_usage.utilization_percent else -1.0
