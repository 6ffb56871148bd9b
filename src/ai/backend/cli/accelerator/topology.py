"""Draws the devices of a node as a tree of NUMA nodes, PCIe roots, PCIe switches and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.text import Text
from rich.tree import Tree

from ai.backend.cli.framework.values import escape_control_characters
from ai.backend.common.devices import ComputeDevice, LinkKind
from ai.backend.plugin.sysfs.pci import pci_at
from ai.backend.plugin.sysfs.tree import Tree as Sysfs

DescribeDevice = Callable[[ComputeDevice], str]
Branch = dict[str, "Branch | None"]
"""Label -> branch below it, or None for a leaf; in order."""


def tree_of(devices: Sequence[ComputeDevice], describe: DescribeDevice, sysfs: Sysfs | None = None) -> Tree:
    """Draws devices as a tree; ``describe`` returns the text of a device.

    PCI addresses are looked up in ``sysfs``; a device that is not there is placed by its links.
    """
    root_branch: Branch = {}
    sysfs = sysfs or Sysfs()
    labels_by_links = _labels_by_links(devices)
    for device in sorted(devices, key=lambda d: (d.numa_node is None, d.numa_node or 0)):
        node_label = "no NUMA node" if device.numa_node is None else f"NUMA node {device.numa_node}"
        branch = root_branch
        for label in (node_label, *(_bridge_labels(device, sysfs) or labels_by_links.get(device.device_id, ()))):
            sub_branch = branch.setdefault(label, {})
            assert sub_branch is not None
            branch = sub_branch
        branch[describe(device)] = None
    tree = Tree("", hide_root=True)
    _add_branch(tree, _merge_similar(root_branch))
    return tree


def _add_branch(tree: Tree, branch: Branch) -> None:
    for label, sub_branch in branch.items():
        _add_branch(tree.add(Text(escape_control_characters(label))), sub_branch or {})


def _bridge_labels(device: ComputeDevice, sysfs: Sysfs) -> tuple[str, ...]:
    """Returns the labels of the PCIe root and, if there is one, of the PCIe switch to which a device is connected."""
    pci_function = pci_at(sysfs, device.hw_location.partition("/")[0])
    if pci_function is None or not pci_function.bridges:
        return ()
    root, *bridges = pci_function.bridges
    # Below a root port, a switch is an upstream port and one of its downstream ports.
    switch = (f"PCIe switch {bridges[-2]}",) if len(bridges) >= 3 else ()
    return (f"PCIe root {root.removeprefix('pci')}", *switch)


def _labels_by_links(devices: Iterable[ComputeDevice]) -> dict[str, tuple[str, ...]]:
    """Returns the labels of each device's PCIe root and PCIe switch, derived from the links between the devices."""
    switch_leaders = _group_leaders(devices, {LinkKind.PCIE_SWITCH})
    root_leaders = _group_leaders(devices, {LinkKind.PCIE_SWITCH, LinkKind.PCIE_ROOT})
    labels_by_device: dict[str, tuple[str, ...]] = {}
    for device_id, leader in root_leaders.items():
        labels = [f"PCIe root of {leader}"]
        if device_id in switch_leaders:
            labels.append(f"PCIe switch of {switch_leaders[device_id]}")
        labels_by_device[device_id] = tuple(labels)
    return labels_by_device


def _group_leaders(devices: Iterable[ComputeDevice], link_kinds: set[LinkKind]) -> dict[str, str]:
    """Returns, for each device with links of ``link_kinds``, the first device of the group that such links connect."""
    peers_of = {device.device_id: [link.peer for link in device.links if link.kind in link_kinds] for device in devices}
    first_ids_by_device: dict[str, str] = {}
    for first_device_id, peers in peers_of.items():
        unvisited_ids = [first_device_id] if peers and first_device_id not in first_ids_by_device else []
        while unvisited_ids:
            device_id = unvisited_ids.pop()
            if device_id not in first_ids_by_device:
                first_ids_by_device[device_id] = first_device_id
                unvisited_ids += peers_of.get(device_id, [])
    return first_ids_by_device


def _merge_similar(branch: Branch) -> Branch:
    """Merges leaves that differ in their id only, such as cores, into one line."""
    labels_by_text: dict[str, list[str]] = {}
    for label, sub_branch in branch.items():
        if sub_branch is None:
            labels_by_text.setdefault(_remove_id(label), []).append(label)
    merged_branch: Branch = {}
    for label, sub_branch in branch.items():
        if sub_branch is not None:
            merged_branch[label] = _merge_similar(sub_branch)
            continue
        similar_labels = labels_by_text[_remove_id(label)]
        if len(similar_labels) <= 2 or not label.split(":")[0].split()[-1].isdigit():
            merged_branch[label] = None
        elif label == similar_labels[0]:
            device_name, _, fact_text = label.partition(":")
            last_id = similar_labels[-1].partition(":")[0].split()[-1]
            merged_branch[f"{device_name} to {last_id}, each:{fact_text}"] = None
    return merged_branch


def _remove_id(label: str) -> str:
    device_name, _, fact_text = label.partition(":")
    return f"{device_name.split()[0]}:{fact_text}"
