from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.core.proxy.hosts import client_address, is_same_origin, split_host, subdomain_of

DOMAIN = ".apps.example.net"


@pytest.mark.parametrize(
    ("host", "label"),
    [
        ("a1.apps.example.net", "a1"),
        ("A1.Apps.Example.NET", "a1"),
        ("a1.apps.example.net:8443", "a1"),
        ("a1.apps.example.net.", None),
        ("apps.example.net", None),
        (".apps.example.net", None),
        ("b.a1.apps.example.net", None),
        ("a1.apps.example.net.evil.com", None),
        ("a1.apps.example.net:8443@evil.com", None),
        ("user@a1.apps.example.net", None),
        ("a1.apps.example.net:0", None),
        ("a1.apps.example.net:70000", None),
        ("a1.apps.example.net:", None),
        ("a1xapps.example.net", None),
        ("-a.apps.example.net", None),
        ("a_b.apps.example.net", None),
        ("ａ1.apps.example.net", None),
        ("a1.apps.example.net\x00", None),
        ("", None),
    ],
)
def test_a_host_is_exactly_one_label_below_the_domain(host: str, label: str | None) -> None:
    assert subdomain_of(host, DOMAIN) == label


@given(st.text(max_size=40))
def test_no_text_is_taken_for_more_than_one_label(text: str) -> None:
    label = subdomain_of(text + DOMAIN, DOMAIN)
    assert label is None or (label == text.lower() and "." not in label)


@given(st.text(max_size=60))
def test_hosts_never_raise(text: str) -> None:
    parts = split_host(text)
    assert parts is None or parts[0].isascii()


@pytest.mark.parametrize(
    ("origin", "host", "is_same"),
    [
        ("http://app.example:8080", "app.example:8080", True),
        ("https://app.example", "app.example", True),
        ("https://app.example:443", "app.example", True),
        ("http://APP.example", "app.example", True),
        ("http://[::1]:10205", "[::1]:10205", True),
        ("http://127.0.0.1:10206", "127.0.0.1:10205", False),
        ("http://evil.example", "app.example", False),
        ("http://app.example.evil", "app.example", False),
        ("http://app.example@evil", "app.example", False),
        ("null", "app.example", False),
        ("", "app.example", False),
        ("file://", "app.example", False),
        ("ftp://app.example", "app.example", False),
    ],
)
def test_an_origin_is_the_host_of_the_request(origin: str, host: str, is_same: bool) -> None:
    assert is_same_origin(origin, host) is is_same


@pytest.mark.parametrize(
    ("peer", "hops", "address"),
    [
        ("203.0.113.9", ["192.0.2.1"], "203.0.113.9"),
        ("10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["198.51.100.1, 192.0.2.1, 10.0.0.2"], "192.0.2.1"),
        ("10.0.0.1", ["198.51.100.1", "192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["192.0.2.1, nonsense"], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
    ],
)
def test_only_configured_proxies_say_who_the_client_is(peer: str, hops: list[str], address: str) -> None:
    assert client_address(peer, hops, lambda hop: hop.startswith("10.")) == address
