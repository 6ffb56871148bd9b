"""Which addresses and URLs requests may lead to."""

from __future__ import annotations

import ipaddress
import socket

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.errors import AddressRefused
from ai.backend.infra.http.outbound import NOT_PUBLIC, AddressGuard, OutboundClient, parse_networks, parse_url

PUBLIC_ONLY = AddressGuard(NOT_PUBLIC)


@pytest.mark.parametrize(
    ("address", "is_refused"),
    [
        ("8.8.8.8", False),
        ("2606:4700::1", False),
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("100.64.0.1", True),
        ("169.254.169.254", True),
        ("0.0.0.0", True),
        ("224.0.0.1", True),
        ("255.255.255.255", True),
        ("::1", True),
        ("::", True),
        ("fe80::1%eth0", True),
        ("fd00::1", True),
        ("fd00:ec2::254", True),
        ("ff02::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:8.8.8.8", False),
        ("::127.0.0.1", True),
        ("2002:7f00:1::1", True),
        ("2001:0:4136:e378:8000:63bf:80ff:fffe", True),
        ("64:ff9b::7f00:1", True),
        ("64:ff9b::808:808", False),
        ("64:ff9b:1::808:808", True),
        ("2130706433", True),
        ("0177.0.0.1", True),
        ("127.1", True),
        ("localhost", True),
    ],
)
def test_only_public_addresses(address: str, is_refused: bool) -> None:
    assert PUBLIC_ONLY.refuses(address) is is_refused


@given(st.ip_addresses())
def test_nothing_is_public_that_the_standard_library_calls_private(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if PUBLIC_ONLY.refuses(str(address)):
        return
    if not any(address in ipaddress.ip_network(network) for network in ("64:ff9b::/96", "2002::/16")):
        assert address.is_global
        assert not address.is_multicast


@pytest.mark.parametrize("name", ["PRIVATE", "LOOPBACK"])
def test_an_embedded_address_is_judged_by_any_list(name: str) -> None:
    guard = AddressGuard(parse_networks("10.0.0.0/8", "127.0.0.0/8"))
    inner = {"PRIVATE": "10.0.0.1", "LOOPBACK": "127.0.0.1"}[name]
    number = int(ipaddress.IPv4Address(inner))
    for address in (
        f"::ffff:{inner}",
        str(ipaddress.IPv6Address((0x2002 << 112) | (number << 80))),
        f"64:ff9b::{inner}",
    ):
        assert guard.refuses(address), address
    assert not guard.refuses("::ffff:192.0.2.1")


def test_a_refused_socket_is_never_opened() -> None:
    info = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("10.0.0.1", 80))
    with pytest.raises(OSError, match="refused address"):
        PUBLIC_ONLY.open_socket(info)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/", "file:///etc/passwd", "//example.com", "relative", "", "http://", "gopher://x/"),
        *("http://user@example.com/", "http://:secret@example.com", "http://8.8.8.8@127.0.0.1/", "http://[::1"),
        "http://x:99999/",
    ],
)
def test_urls_that_are_not_used(url: str) -> None:
    with pytest.raises(AddressRefused):
        parse_url(url)


def test_credentials_are_taken_where_they_are_expected() -> None:
    assert parse_url("http://user@example.com/", with_credentials=True).user == "user"


def test_allowed_hosts() -> None:
    client = OutboundClient(
        refused=(),
        timeout=aiohttp.ClientTimeout(),
        allowed_hosts=("Hub.example.com", "*.cdn.example.com", "10.0.0.7"),
    )
    for host in ("hub.example.com.", "HUB.example.com", "eu.cdn.example.com", "10.0.0.7"):
        assert client.is_allowed(host)
    for host in ("cdn.example.com", "xhub.example.com", "10.0.0.71", "evilcdn.example.com", "localhost"):
        assert not client.is_allowed(host)
