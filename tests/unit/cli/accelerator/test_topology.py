"""The tree of a node's devices: from the PCI tree of a recorded machine, and from links alone."""

from __future__ import annotations

import io
from pathlib import Path

from rich.tree import Tree

from ai.backend.accelerator.rocm import RocmPlugin
from ai.backend.accelerator.rocm.plugin import RocmSettings
from ai.backend.cli.accelerator.topology import tree_of
from ai.backend.cli.framework.terminal import write
from ai.backend.common.devices import ComputeDevice, DeviceLink, LinkKind
from ai.backend.common.ids import DeviceId, DeviceName
from ai.backend.plugin.sysfs.tree import Tree as Sysfs
from tests.support.trees import roots


def device(name: str, node: int | None = 0, **links: LinkKind) -> ComputeDevice:
    return ComputeDevice(
        device_name=DeviceName("gpu"),
        device_id=DeviceId(name),
        hw_location="nowhere",
        numa_node=node,
        slots=(),
        links=tuple(DeviceLink(peer=DeviceId(peer), kind=kind) for peer, kind in links.items()),
    )


def drawn(tree: Tree) -> list[str]:
    stream = io.StringIO()
    write(tree, stream)
    return stream.getvalue().splitlines()


def named(device: ComputeDevice) -> str:
    return f"{device.device_name} {device.device_id}: a model"


async def test_a_recorded_machine_shows_its_roots(tmp_path: Path) -> None:
    place = roots("rocm-mi300x", tmp_path)
    plugin = RocmPlugin(RocmSettings(**place))
    await plugin.init()
    devices = await plugin.list_devices()
    lines = drawn(tree_of(devices, named, Sysfs(place["sysfs_root"], place["dev_root"])))
    assert [line for line in lines if line.startswith("NUMA")] == sorted({f"NUMA node {d.numa_node}" for d in devices})
    assert sum("PCIe root" in line for line in lines) >= 1
    for one in devices:
        (line,) = [line for line in lines if named(one) in line]
        assert line.startswith(("│  ", "   ")), "every device is below a root"


def test_links_place_what_has_no_address() -> None:
    switch, root, direct = LinkKind.PCIE_SWITCH, LinkKind.PCIE_ROOT, LinkKind.DIRECT
    devices = [
        device("a", b=switch, c=root),
        device("b", a=switch, c=root),
        device("c", a=root, b=root),
        device("d", node=1, e=direct),
        device("e", node=1, d=direct),
        device("f", node=None),
    ]
    assert drawn(tree_of(devices, named)) == [
        "NUMA node 0",
        "└── PCIe root of a",
        "    ├── PCIe switch of a",
        "    │   ├── gpu a: a model",
        "    │   └── gpu b: a model",
        "    └── gpu c: a model",
        "NUMA node 1",
        "├── gpu d: a model",
        "└── gpu e: a model",
        "no NUMA node",
        "└── gpu f: a model",
    ]


def test_cores_are_one_line() -> None:
    devices = [device(str(number)) for number in range(16)]
    assert drawn(tree_of(devices, named)) == ["NUMA node 0", "└── gpu 0 to 15, each: a model"]
    assert len(drawn(tree_of(devices[:2], named))) == 3


def test_names_of_vendors_are_drawn_literally() -> None:
    (_, line) = drawn(tree_of([device("a\x1b[31m[red]")], named))
    assert line == "└── gpu a\\x1b[31m[red]: a model"
