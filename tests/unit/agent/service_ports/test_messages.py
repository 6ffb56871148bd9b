"""What users read whose services are refused."""

from __future__ import annotations

import pytest

from ai.backend.agent.service_ports.services import shared_network_message


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("/dev/net/tun is not open to the user of sessions: chmod 0666 /dev/net/tun", "chmod 0666 /dev/net/tun; or"),
        ("", "the settings of the runtime want it; or"),
    ],
)
def test_a_shared_network_is_refused_with_what_helps_on_that_node(reason: str, remedy: str) -> None:
    assert remedy in shared_network_message(reason)
