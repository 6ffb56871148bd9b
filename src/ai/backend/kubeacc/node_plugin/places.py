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


class PciLocation(NamedTuple):
    """Describes a place on the PCI bus. Each unknown part is empty. ``root``: the host bridge, as ``pci0000:3a``."""

    address: str = ""
    root: str = ""
    vendor: str = ""


NO_LOCATION = PciLocation()
_SYSFS_TREE = Tree()


def pci_address(location: str) -> str:
    """Returns the PCI address of a device from its location, or an empty text if the device is not on the PCI bus.

    A partition has the address of the device of which it is a part.
    """
    address = location.partition("/")[0].lower()
    return address if PCI_ADDRESS.fullmatch(address) else ""


def pci_location_of(location: str, sysfs_tree: Tree = _SYSFS_TREE) -> PciLocation:
    """Returns the place of a device, from its location. Parts that sysfs does not state are empty."""
    address = pci_address(location)
    pci_function = pci_at(sysfs_tree, address) if address else None
    if pci_function is None:
        return PciLocation(address=address)
    root_bridges = [bridge for bridge in pci_function.bridges if bridge.startswith("pci")]
    return PciLocation(
        address=address,
        root=root_bridges[0] if root_bridges else "",
        vendor=_VENDORS.get(pci_function.vendor.lower(), pci_function.vendor),
    )
