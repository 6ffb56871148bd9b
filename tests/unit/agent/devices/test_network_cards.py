"""Network cards of recorded trees, and which one each device is told to be near."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from ai.backend.agent.devices.network_cards import needs_cards, read_network_cards, with_network_cards
from ai.backend.common.devices import ComputeDevice, DeviceSlot, VariantProperty
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.plugin.sysfs.tree import Tree, unpack

TREE = """
# written after the layout of a DGX-like node: a switch with a GPU and an InfiniBand card, Ethernet at the other socket
/sys/bus/pci/devices/0000:18:00.0 -> ../../../devices/pci0000:15/0000:15:01.0/0000:18:00.0
/sys/bus/pci/devices/0000:9a:00.0 -> ../../../devices/pci0000:97/0000:97:01.0/0000:9a:00.0
/sys/bus/pci/devices/0000:3a:00.0 -> ../../../devices/pci0000:37/0000:37:01.0/0000:3a:00.0
/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0/numa_node = 0
/sys/devices/pci0000:15/0000:15:01.0/0000:19:00.0/numa_node = 0
/sys/devices/pci0000:37/0000:37:01.0/0000:3a:00.0/numa_node = 0
/sys/devices/pci0000:97/0000:97:01.0/0000:9a:00.0/numa_node = 1
/sys/devices/pci0000:97/0000:97:05.0/0000:9c:00.0/numa_node = 1
/sys/devices/pci0000:97/0000:97:05.0/0000:9c:00.1/numa_node = 1
/sys/devices/pci0000:97/0000:97:05.0/0000:9c:00.1/physfn/
/sys/devices/virtual/net/lo/operstate = unknown
/sys/class/infiniband/mlx5_0/device -> ../../../devices/pci0000:15/0000:15:01.0/0000:19:00.0
/sys/class/infiniband/mlx5_0/ports/1/state = 4: ACTIVE
/sys/class/infiniband/mlx5_0/ports/1/rate = 400 Gb/sec (4X NDR)
/sys/class/infiniband/mlx5_0/ports/1/link_layer = InfiniBand
/sys/class/net/ibs0/device -> ../../../devices/pci0000:15/0000:15:01.0/0000:19:00.0
/sys/class/net/ibs0/operstate = up
/sys/class/net/ibs0/speed = 100000
/sys/class/net/eth0/device -> ../../../devices/pci0000:97/0000:97:05.0/0000:9c:00.0
/sys/class/net/eth0/operstate = up
/sys/class/net/eth0/speed = 25000
/sys/class/net/eth1/device -> ../../../devices/pci0000:97/0000:97:05.0/0000:9c:00.1
/sys/class/net/eth1/operstate = up
/sys/class/net/eth1/speed = 25000
/sys/class/net/lo -> ../../devices/virtual/net/lo
"""


def device(location: str, *stated: str) -> ComputeDevice:
    slot = DeviceSlot(slot_name=SlotName("gpu.device"), slot_type=SlotType.COUNT, amount=Decimal(1))
    return ComputeDevice(
        device_name=DeviceName("gpu"),
        device_id=DeviceId(location),
        hw_location=location,
        slots=(slot,),
        variant_properties=tuple(map(VariantProperty.parse, stated)),
    )


def tree(tmp_path: Path, text: str = TREE) -> Tree:
    unpack(text, tmp_path)
    return Tree(tmp_path / "sys", tmp_path / "dev")


def network_of(found: ComputeDevice) -> dict[str, str]:
    return {stated.feature: stated.value for stated in found.variant_properties if stated.namespace == "network"}


def test_cards_with_a_link_are_read_with_their_rates(tmp_path: Path) -> None:
    cards = read_network_cards(tree(tmp_path))
    assert [(card.name, card.rate, card.is_rdma) for card in cards] == [("mlx5_0", 400.0, True), ("eth0", 25.0, False)]


def test_each_device_is_told_its_nearest_card(tmp_path: Path) -> None:
    devices = [device("0000:18:00.0"), device("0000:9a:00.0"), device("0000:3a:00.0"), device("0000:18:00.0/gi1/ci0")]
    beside, below_root, same_node, partition = map(network_of, with_network_cards(devices, tree(tmp_path)))
    assert beside == {"distance": "pcie-switch", "card": "mlx5_0", "rate": "400", "rdma": "yes"}
    assert below_root == {"distance": "pcie-root", "card": "eth0", "rate": "25", "rdma": "no"}
    assert same_node == {"distance": "numa", "card": "mlx5_0", "rate": "400", "rdma": "yes"}
    assert partition == beside


def test_a_card_that_is_down_or_tells_nonsense_is_no_card(tmp_path: Path) -> None:
    text = TREE.replace("= up", "= down").replace("4: ACTIVE", "1: DOWN")
    devices = (device("0000:18:00.0"),)
    assert with_network_cards(devices, tree(tmp_path / "down", text)) == devices
    garbage = TREE.replace("400 Gb/sec", "many").replace("= 25000", "= -1").replace("= 100000", "= fast")
    assert with_network_cards(devices, tree(tmp_path / "garbage", garbage)) == devices


def test_what_a_plugin_states_itself_stays(tmp_path: Path) -> None:
    own = device("0000:18:00.0", "network::distance::system")
    assert with_network_cards([own], tree(tmp_path)) == (own,)
    assert not needs_cards([own, device("mock:00")])
    assert needs_cards([device("0000:18:00.0")])


def test_a_node_without_cards_or_with_unknown_places_changes_nothing(tmp_path: Path) -> None:
    devices = (device("0000:ff:00.0"), device("somewhere"))
    assert with_network_cards(devices, tree(tmp_path)) == devices
