"""The kernel's protocol for network devices, byte by byte, as its headers define it."""

from __future__ import annotations

import pytest

from ai.backend.plugin.node.netlink import EVERYBODY, Route, mac_of


class Deaf(Route):
    """Keeps what it would say."""

    def __init__(self) -> None:
        self.said: list[tuple[int, int, bytes]] = []

    def do(self, kind: int, body: bytes, flags: int = 0) -> None:
        self.said.append((kind, flags, body))

    def _index(self, name: str) -> int:
        return 7


def test_a_tunnel_is_made_without_learning() -> None:
    route = Deaf()
    route.add_vxlan("bai0", 4097, "192.0.2.1", 4790, 1450)
    ((kind, flags, body),) = route.said
    assert (kind, flags) == (16, 0x600), "RTM_NEWLINK, create and exclusive"
    assert body[:16].hex() == "00000000000000008000000080000000", "IFF_NOARP, changed"
    assert body[16:].hex() == (
        "090003006261693000000000"  # IFLA_IFNAME
        "08000400aa050000"  # IFLA_MTU
        "3c001200"  # IFLA_LINKINFO
        "0a00010076786c616e000000"  # "vxlan"
        "2c000200"  # IFLA_INFO_DATA
        "0800010001100000"  # IFLA_VXLAN_ID
        "08000400c0000201"  # IFLA_VXLAN_LOCAL
        "0500070000000000"  # IFLA_VXLAN_LEARNING
        "06000f0012b60000"  # IFLA_VXLAN_PORT, in network order
        "05001f0000000000"  # IFLA_VXLAN_LOCALBYPASS
    )  # fmt: skip


@pytest.mark.parametrize(("hardware", "flags"), [(EVERYBODY, 0xC00), ("02:42:0a:d6:00:05", 0x500)])
def test_broadcasts_go_to_many_and_an_address_to_one(hardware: str, flags: int) -> None:
    route = Deaf()
    route.add_place("bai0", hardware, "192.0.2.9", 4789)
    ((kind, told, body),) = route.said
    assert (kind, told) == (28, flags), "RTM_NEWNEIGH, create and append or replace"
    assert body[:12].hex() == "0700000007000000c0000200", "AF_BRIDGE, the device, static and of the device itself"
    assert body[12:].hex() == (
        "0a000200" + hardware.replace(":", "") + "0000"  # NDA_LLADDR
        "08000100c0000209"  # NDA_DST
        "0600060012b50000"  # NDA_PORT
    )  # fmt: skip


def test_hardware_addresses_follow_from_addresses() -> None:
    assert mac_of("10.214.0.5") == "02:42:0a:d6:00:05"
