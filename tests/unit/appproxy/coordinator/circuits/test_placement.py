"""Requests of browsers are checked, and circuits go to workers that may serve them."""

from __future__ import annotations

import pytest

from ai.backend.appproxy.coordinator.circuits.placement import (
    check_networks,
    check_redirect,
    check_subdomain,
    random_name,
)
from ai.backend.common.errors import InvalidInput


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/", "/"),
        ("/lab?token=a%20b#top", "/lab?token=a%20b#top"),
        ("/a b", "/a%20b"),
        ("/é", "/%C3%A9"),
        ("/a//b", "/a//b"),
        ("/?next=//evil.example", "/?next=//evil.example"),
    ],
)
def test_a_path_of_the_app_is_kept(target: str, path: str) -> None:
    assert check_redirect(target) == path


@pytest.mark.parametrize(
    "target",
    [
        "", "x", "//evil.example", "///evil.example", "/\\evil.example", "\\/evil.example", "/a\\b", "http://evil.example",
        "javascript:alert(1)", "/\tevil", "/a\r\nLocation: /", "/\x00", "/\x7f", "/" + "x" * 2048, " /a", "/\udcff",
    ],
)  # fmt: skip
def test_any_other_target_is_refused(target: str) -> None:
    with pytest.raises(InvalidInput):
        check_redirect(target)


def test_names_are_one_label_that_nobody_guesses() -> None:
    names = {random_name() for _ in range(100)}
    assert len(names) == 100
    assert all(check_subdomain(name) == name and len(name) == 21 for name in names)
    for name in ("", "-a", "a-", "A", "a.b", "a_b", "ä", "xn--4ca", "a" * 64, "a\n"):
        with pytest.raises(InvalidInput):
            check_subdomain(name)


def test_networks_are_read_in_any_form() -> None:
    assert check_networks("192.0.2.7, 10.1.2.3/8,2001:db8::1/64") == "192.0.2.7/32,10.0.0.0/8,2001:db8::/64"
    for text in ("", ",", "x", "1.2.3.4/33", ",".join(["10.0.0.1"] * 33)):
        with pytest.raises(InvalidInput):
            check_networks(text)
