"""Places of devices on the PCI bus."""

from __future__ import annotations

from pathlib import Path

from ai.backend.kubeacc.node_plugin.places import PciLocation, pci_address, pci_location_of
from ai.backend.plugin.sysfs.tree import Tree


def test_a_partition_is_at_the_address_of_its_device() -> None:
    assert pci_address("0000:3B:00.0/gi1/ci0") == "0000:3b:00.0"
    assert [pci_address(one) for one in ("mock:01", "", "/0000:3b:00.0", "0000:3b:00.9")] == [""] * 4


def test_root_and_vendor_are_read_from_sysfs(tmp_path: Path) -> None:
    function = tmp_path / "devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0"
    function.mkdir(parents=True)
    (function / "vendor").write_text("0x10de\n")
    bus = tmp_path / "bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / "0000:3b:00.0").symlink_to(function)
    tree = Tree(tmp_path)
    assert pci_location_of("0000:3B:00.0", tree) == PciLocation("0000:3b:00.0", "pci0000:3a", "NVIDIA")
    (function / "vendor").write_text("0xabcd\n")
    assert pci_location_of("0000:3B:00.0", tree).vendor == "0xabcd"
    assert pci_location_of("0000:99:00.0", tree) == PciLocation("0000:99:00.0")
    assert pci_location_of("mock:01", tree) == PciLocation()
