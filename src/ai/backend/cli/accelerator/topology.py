"""Draws the devices of a node as a tree of NUMA nodes, PCIe roots, PCIe switches and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.text import Text
from rich.tree import Tree

from ai.backend.cli.framework.values import harmless
from ai.backend.common.devices import ComputeDevice, LinkKind
from ai.backend.plugin.sysfs.pci import pci_at
from ai.backend.plugin.sysfs.tree import Tree as Sysfs

Describe = Callable[[ComputeDevice], str]
Branch = dict[str, "Branch | None"]
"""Label -> branch below it, or None for a leaf; in order."""


def tree_of(devices: Sequence[ComputeDevice], describe: Describe, sysfs: Sysfs | None = None) -> Tree:
    """Returns the tree of these devices, whose texts ``describe`` returns.

    PCI addresses are looked up in ``sysfs``; a device that is not there is placed by its links.
    """
    root: Branch = {}
    sysfs = sysfs or Sysfs()
    by_links = _groups(devices)
    for device in sorted(devices, key=lambda d: (d.numa_node is None, d.numa_node or 0)):
        node = "no NUMA node" if device.numa_node is None else f"NUMA node {device.numa_node}"
        branch = root
        for label in (node, *(_bridges(device, sysfs) or by_links.get(device.device_id, ()))):
            below = branch.setdefault(label, {})
            assert below is not None
            branch = below
        branch[describe(device)] = None
    tree = Tree("", hide_root=True)
    _add(tree, _collapsed(root))
    return tree


def _add(tree: Tree, branch: Branch) -> None:
    for label, below in branch.items():
        _add(tree.add(Text(harmless(label))), below or {})


def _bridges(device: ComputeDevice, sysfs: Sysfs) -> tuple[str, ...]:
    """Returns the PCIe root and, if there is one, the switch above a device."""
    function = pci_at(sysfs, device.hw_location.partition("/")[0])
    if function is None or not function.bridges:
        return ()
    root, *bridges = function.bridges
    # Below a root port, a switch is an upstream port and one of its downstream ports.
    switch = (f"PCIe switch {bridges[-2]}",) if len(bridges) >= 3 else ()
    return (f"PCIe root {root.removeprefix('pci')}", *switch)


def _groups(devices: Iterable[ComputeDevice]) -> dict[str, tuple[str, ...]]:
    """Returns roots and switches as the links of devices imply them, by device."""
    switches = _first_peers(devices, {LinkKind.PCIE_SWITCH})
    roots = _first_peers(devices, {LinkKind.PCIE_SWITCH, LinkKind.PCIE_ROOT})
    groups: dict[str, tuple[str, ...]] = {}
    for device_id, root in roots.items():
        labels = [f"PCIe root of {root}"]
        if device_id in switches:
            labels.append(f"PCIe switch of {switches[device_id]}")
        groups[device_id] = tuple(labels)
    return groups


def _first_peers(devices: Iterable[ComputeDevice], kinds: set[LinkKind]) -> dict[str, str]:
    """Returns the first device that each one reaches by links of these kinds; without those that reach none."""
    near = {d.device_id: [link.peer for link in d.links if link.kind in kinds] for d in devices}
    firsts: dict[str, str] = {}
    for first, peers in near.items():
        waiting = [first] if peers and first not in firsts else []
        while waiting:
            device_id = waiting.pop()
            if device_id not in firsts:
                firsts[device_id] = first
                waiting += near.get(device_id, [])
    return firsts


def _collapsed(branch: Branch) -> Branch:
    """Merges leaves that differ in their id only, such as cores, into one line."""
    alike: dict[str, list[str]] = {}
    for label, below in branch.items():
        if below is None:
            alike.setdefault(_without_id(label), []).append(label)
    merged: Branch = {}
    for label, below in branch.items():
        if below is not None:
            merged[label] = _collapsed(below)
            continue
        group = alike[_without_id(label)]
        if len(group) <= 2 or not label.split(":")[0].split()[-1].isdigit():
            merged[label] = None
        elif label == group[0]:
            name, _, facts = label.partition(":")
            last = group[-1].partition(":")[0].split()[-1]
            merged[f"{name} to {last}, each:{facts}"] = None
    return merged


def _without_id(label: str) -> str:
    name, _, facts = label.partition(":")
    return f"{name.split()[0]}:{facts}"
