"""Finds the PCI locations of devices in sysfs, which plugins do not report and by which claims select devices."""

from __future__ import annotations

import re
from typing import NamedTuple

from ai.backend.plugin.sysfs.pci import pci_at
from ai.backend.plugin.sysfs.tree import Tree

PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_VENDORS = {
    "0x1002": "AMD",
    "0x10de": "NVIDIA",
    "0x10ee": "Xilinx",
    "0x1172": "Altera",
    "0x15b3": "Mellanox",
    "0x19e5": "Huawei",
    "0x1ae0": "Google",
    "0x1d0f": "Amazon",
    "0x1da3": "Habana",
    "0x8086": "Intel",
}
"""PCI vendor -> the name that classes select by; other vendors are named by their number."""


class Place(NamedTuple):
    """Describes a place on the PCI bus. Each unknown part is empty. ``root``: the host bridge, as ``pci0000:3a``."""

    address: str = ""
    root: str = ""
    vendor: str = ""


NOWHERE = Place()
_NODE_TREE = Tree()


def pci_address(location: str) -> str:
    """Returns the PCI address of a device from its location, or an empty text if the device is not on the PCI bus.

    A partition has the address of the device of which it is a part.
    """
    address = location.partition("/")[0].lower()
    return address if PCI_ADDRESS.fullmatch(address) else ""


def place_of(location: str, tree: Tree = _NODE_TREE) -> Place:
    """Returns the place of a device, from its location. Parts that sysfs does not state are empty."""
    address = pci_address(location)
    function = pci_at(tree, address) if address else None
    if function is None:
        return Place(address=address)
    roots = [bridge for bridge in function.bridges if bridge.startswith("pci")]
    return Place(
        address=address,
        root=roots[0] if roots else "",
        vendor=_VENDORS.get(function.vendor.lower(), function.vendor),
    )
