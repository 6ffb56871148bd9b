from __future__ import annotations

import pytest

from ai.backend.infra.http.addresses import MAX_NETWORK_LENGTH, may_come_from, parse_network


@pytest.mark.parametrize(
    ("address", "networks", "may"),
    [
        ("10.1.2.3", [], True),
        ("", [], True),
        ("10.1.2.3", ["10.0.0.0/8"], True),
        ("10.1.2.3", ["10.1.2.3"], True),
        ("11.1.2.3", ["10.0.0.0/8", "192.0.2.1"], False),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("10.1.2.3", ["::ffff:10.0.0.0/104"], True),
        ("10.1.2.3", ["::/0"], False),
        ("fe80::1%eth0", ["fe80::/10"], True),
        ("2001:db8::1", ["10.0.0.0/8", "2001:db8::/32"], True),
        ("", ["0.0.0.0/0"], False),
        ("unknown", ["0.0.0.0/0", "::/0"], False),
        ("10.1.2.3, 1.2.3.4", ["0.0.0.0/0"], False),
    ],
)
def test_who_may_come_from_where(address: str, networks: list[str], may: bool) -> None:
    assert may_come_from(address, networks) is may


@pytest.mark.parametrize(
    "text", ["", "10.0.0", "10.0.0.0/33", "example.org", "10.0.0.0/8 10.0.0.1", "::1/129", "10.0.0.1" + 99 * " "]
)
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="network"):
        parse_network(text)


def test_the_longest_network_is_read() -> None:
    text = f" {'0000:' * 5}ffff:255.255.255.255/128\n".rjust(MAX_NETWORK_LENGTH)
    assert str(parse_network(text)) == "255.255.255.255/32"
    assert may_come_from("255.255.255.255", [text])
    assert not may_come_from("255.255.255.255", [text + " "])
