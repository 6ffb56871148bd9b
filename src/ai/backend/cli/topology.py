"""The devices of a node as a tree: NUMA node, PCIe root, PCIe switch, device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ai.backend.common.devices import ComputeDevice, LinkKind
from ai.backend.plugin.sysfs.pci import pci_at
from ai.backend.plugin.sysfs.tree import Tree

Describe = Callable[[ComputeDevice], str]
Branch = dict[str, "Branch | None"]
"""Label -> what is below; None for a leaf. In order."""


def tree_of(devices: Sequence[ComputeDevice], describe: Describe, sysfs: Tree | None = None) -> str:
    """Lines of a tree.

    Args:
        devices: in order.
        describe: the text of a device.
        sysfs: where PCI addresses are looked up; what is not there is placed by its links.
    """
    root: Branch = {}
    known = sysfs or Tree()
    by_links = _groups(devices)
    for device in sorted(devices, key=lambda d: (d.numa_node is None, d.numa_node or 0)):
        node = "no NUMA node" if device.numa_node is None else f"NUMA node {device.numa_node}"
        branch = root
        for label in (node, *(_bridges(device, known) or by_links.get(device.device_id, ()))):
            below = branch.setdefault(label, {})
            assert below is not None
            branch = below
        branch[describe(device)] = None
    return "\n".join(_lines(_collapsed(root), ""))


def _bridges(device: ComputeDevice, sysfs: Tree) -> tuple[str, ...]:
    """The PCIe root and, if there is one, the switch above a device."""
    found = pci_at(sysfs, device.hw_location.partition("/")[0])
    if found is None or not found.bridges:
        return ()
    root, *bridges = found.bridges
    # Below a root port, a switch is an upstream port and one of its downstream ports.
    switch = (f"PCIe switch {bridges[-2]}",) if len(bridges) >= 3 else ()
    return (f"PCIe root {root.removeprefix('pci')}", *switch)


def _groups(devices: Iterable[ComputeDevice]) -> dict[str, tuple[str, ...]]:
    """Roots and switches as links tell of them, for devices whose place in the PCI tree is not known."""
    switches = _joined(devices, {LinkKind.PCIE_SWITCH})
    roots = _joined(devices, {LinkKind.PCIE_SWITCH, LinkKind.PCIE_ROOT})
    found: dict[str, tuple[str, ...]] = {}
    for device_id, root in roots.items():
        labels = [f"PCIe root of {root}"]
        if device_id in switches:
            labels.append(f"PCIe switch of {switches[device_id]}")
        found[device_id] = tuple(labels)
    return found


def _joined(devices: Iterable[ComputeDevice], kinds: set[LinkKind]) -> dict[str, str]:
    """Device -> the first of those that it reaches by links of these kinds; none for one that reaches nobody."""
    near = {d.device_id: [link.peer for link in d.links if link.kind in kinds] for d in devices}
    found: dict[str, str] = {}
    for first, peers in near.items():
        waiting = [first] if peers and first not in found else []
        while waiting:
            one = waiting.pop()
            if one not in found:
                found[one] = first
                waiting += near.get(one, [])
    return found


def _collapsed(branch: Branch) -> Branch:
    """Leaves that differ in their id only, such as cores, become one line."""
    alike: dict[str, list[str]] = {}
    for label, below in branch.items():
        if below is None:
            alike.setdefault(_without_id(label), []).append(label)
    found: Branch = {}
    for label, below in branch.items():
        if below is not None:
            found[label] = _collapsed(below)
            continue
        group = alike[_without_id(label)]
        if len(group) <= 2 or not label.split(":")[0].split()[-1].isdigit():
            found[label] = None
        elif label == group[0]:
            name, _, facts = label.partition(":")
            last = group[-1].partition(":")[0].split()[-1]
            found[f"{name} to {last}, each:{facts}"] = None
    return found


def _without_id(label: str) -> str:
    name, _, facts = label.partition(":")
    return f"{name.split()[0]}:{facts}"


def _lines(branch: Branch, indent: str) -> Iterable[str]:
    for number, (label, below) in enumerate(branch.items()):
        is_last = number == len(branch) - 1
        if indent == "" and below is not None:
            yield label
            yield from _lines(below, "\0")
            continue
        lead = indent.replace("\0", "")
        yield f"{lead}{'└─ ' if is_last else '├─ '}{label}"
        if below is not None:
            yield from _lines(below, f"\0{lead}{'   ' if is_last else '│  '}")
