"""Agents of earlier releases are refused with what to do."""

from __future__ import annotations

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.manager.agents.registration import check_version


@pytest.mark.parametrize("version", ["26.11", "26.11.0", "26.11.0rc1", "26.12.3", "27.2.0", "0", "", "1", "main-26.1"])
def test_agents_that_are_taken(version: str) -> None:
    check_version("i-1", version)


@pytest.mark.parametrize("version", ["26.10.9", "26.9", "25.12.1", "20.09.0"])
def test_agents_that_are_refused(version: str) -> None:
    with pytest.raises(InvalidInput, match=rf"i-1 is of version {version}, this manager takes 26\.11 and newer"):
        check_version("i-1", version)


def test_no_agent_makes_the_message_long() -> None:
    with pytest.raises(InvalidInput) as raised:
        check_version("i-1", "25.1." + "9" * 10_000)
    assert len(raised.value.message) < 300
