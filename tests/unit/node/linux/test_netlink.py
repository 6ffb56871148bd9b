"""Messages about network devices, byte by byte, as the kernel's headers define them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyroute2 import IPBatch

from ai.backend.node.linux import netlink_socket
from ai.backend.node.linux.netlink import EVERYBODY, RouteSocket
from ai.backend.node.network.overlay import mac_of


class RecordingRoute(RouteSocket):
    """Encodes each request and sends none; every device has the number 7."""

    def __init__(self) -> None:
        self._collect = netlink_socket.collect
        self._route = IPBatch()

    def _index_of(self, name: str) -> int:
        return 7

    def sent(self) -> tuple[int, int, bytes]:
        """Type, flags and body of the one request that was made."""
        message = bytes(self._route.batch)
        assert int.from_bytes(message[:4], "little") == len(message)
        return int.from_bytes(message[4:6], "little"), int.from_bytes(message[6:8], "little"), message[16:]


@pytest.fixture
def route(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingRoute]:
    monkeypatch.setattr(netlink_socket, "IPRoute", IPBatch)
    netlink_socket.open_route().close()  # so that the library knows our kinds of devices
    with RecordingRoute() as route:
        yield route


def test_a_tunnel_is_made_without_learning(route: RecordingRoute) -> None:
    route.add_vxlan("bai0", 4097, "192.0.2.1", 4790, 1450)
    kind, flags, body = route.sent()
    assert (kind, flags) == (16, 0x605), "RTM_NEWLINK, acknowledged, create and exclusive"
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


@pytest.mark.parametrize(("hardware", "flags"), [(EVERYBODY, 0xC05), ("02:42:0a:d6:00:05", 0x505)])
def test_broadcasts_go_to_many_and_an_address_to_one(route: RecordingRoute, hardware: str, flags: int) -> None:
    route.add_forwarding_entry("bai0", hardware, "192.0.2.9", 4789)
    kind, sent, body = route.sent()
    assert (kind, sent) == (28, flags), "RTM_NEWNEIGH, acknowledged, create and append or replace"
    assert body[:12].hex() == "0700000007000000c0000200", "AF_BRIDGE, the device, static and of the device itself"
    assert body[12:].hex() == (
        "0a000200" + hardware.replace(":", "") + "0000"  # NDA_LLADDR
        "08000100c0000209"  # NDA_DST
        "0600060012b50000"  # NDA_PORT
    )  # fmt: skip


@pytest.mark.parametrize(
    ("request_of", "flags"),
    [
        (lambda route: route.set_up("bai0"), "0100000001000000"),
        (lambda route: route.set_up("bai0", arp=False), "8100000081000000"),
    ],
)
def test_only_devices_of_the_host_are_silent(
    route: RecordingRoute, request_of: Callable[[RouteSocket], None], flags: str
) -> None:
    request_of(route)
    kind, sent, body = route.sent()
    assert (kind, sent) == (16, 0x5)
    assert body.hex() == "0000000007000000" + flags


def test_hardware_addresses_follow_from_addresses() -> None:
    assert mac_of("10.214.0.5") == "02:42:0a:d6:00:05"
