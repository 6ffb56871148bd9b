"""Reads PCI devices from sysfs, and computes how close two of them are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from ai.backend.common.devices import DeviceLink, LinkKind
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.sysfs.tree import Tree

BUS = "/sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class PciDevice:
    """Describes a PCI function: its directory below /sys without links, the ``bridges`` above it, and its NUMA node.

    Bridges are listed from the host bridge down. The NUMA node is None if the firmware does not state it.
    """

    address: str
    path: str
    bridges: tuple[str, ...]
    numa_node: int | None
    vendor: str
    device: str


def pci_device(tree: Tree, path: str) -> PciDevice | None:
    """Returns the PCI function to which a path leads. Returns None if the path leads to none."""
    real_path = tree.resolve(path)
    if real_path is None or _ADDRESS.fullmatch(address := real_path.rpartition("/")[2]) is None:
        return None
    numa_number = tree.value(f"{real_path}/numa_node")
    bridges = [
        path_part
        for path_part in real_path.split("/")[:-1]
        if path_part.startswith("pci") or _ADDRESS.fullmatch(path_part)
    ]
    return PciDevice(
        address=address,
        path=real_path,
        bridges=tuple(bridges),
        numa_node=int(numa_number) if numa_number is not None and 0 <= numa_number < 4096 else None,
        vendor=tree.text(f"{real_path}/vendor") or "",
        device=tree.text(f"{real_path}/device") or "",
    )


def pci_at(tree: Tree, address: str) -> PciDevice | None:
    """Returns the PCI function at an address such as ``0000:19:00.0``, in upper or lower case."""
    address = address.strip().lower()
    return pci_device(tree, f"{BUS}/{address}") if _ADDRESS.fullmatch(address) else None


def link_kind(device: PciDevice, peer: PciDevice) -> LinkKind:
    """Returns the kind of the shortest connection between two PCI devices: switch, root port, NUMA node or system.

    Two devices meet in a switch if they share more than the first bridge.
    """
    shared_bridge_count = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(device.bridges, peer.bridges, strict=False))
    )
    if shared_bridge_count > 1:
        return LinkKind.PCIE_SWITCH
    if shared_bridge_count == 1:
        return LinkKind.PCIE_ROOT
    same_node = device.numa_node is not None and device.numa_node == peer.numa_node
    return LinkKind.NUMA if same_node else LinkKind.SYSTEM


def links_of(device_id: DeviceId, device_places: Mapping[DeviceId, PciDevice]) -> tuple[DeviceLink, ...]:
    """Returns the links from one device to every other device whose place in the PCI tree is known."""
    own_place = device_places.get(device_id)
    if own_place is None:
        return ()
    return tuple(
        DeviceLink(peer=peer_id, kind=link_kind(own_place, peer_place))
        for peer_id, peer_place in device_places.items()
        if peer_id != device_id
    )
