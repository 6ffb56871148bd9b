"""How large networks of sessions are, and what of the host they keep away from."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from ai.backend.node.network.overlay import addresses_of, busy_networks, prefix_for


@pytest.mark.parametrize(("hosts", "prefix"), [(1, 28), (2, 28), (13, 28), (14, 27), (61, 26), (64, 25), (253, 24)])
def test_a_network_has_room_for_its_hosts(hosts: int, prefix: int) -> None:
    subnet = IPv4Network(("10.213.0.0", prefix_for(hosts)))
    names = [f"sub{number}" for number in range(hosts)]
    addresses = addresses_of(subnet, names)
    assert subnet.prefixlen == prefix
    assert len(set(addresses.values())) == hosts
    usable = {str(address) for address in subnet.hosts()} - {str(subnet[1])}
    assert set(addresses.values()) <= usable


def test_routes_of_the_host_are_read(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    routes.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t0000D50A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    )
    assert busy_networks(routes) == [IPv4Network("10.213.0.0/16")]
    assert busy_networks(tmp_path / "none") == []
