"""Links of one agent to several managers, as the list of them changes."""

from __future__ import annotations

from typing import cast

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.common.wire.reports import AgentReport, HeartbeatReply
from ai.backend.infra.rpc.endpoints import AgentEndpoint, ServedAgents
from ai.backend.infra.rpc.fanout import ManagerFanout

REPORT = AgentReport(agent_id="i-1", epoch=1, version="1", architecture="x86_64", resource_group="default")
COMMANDS = cast(AgentCommands, object())


class _End:
    """A manager that takes heartbeats while it lives."""

    def __init__(self) -> None:
        self.lives, self.is_open, self.heard = True, False, 0

    async def start(self, commands: ServedAgents) -> None:
        self.is_open = True

    async def stop(self) -> None:
        self.is_open = False

    @property
    def reports(self) -> ManagerReports:
        return cast(ManagerReports, self)

    async def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        if not self.lives:
            raise Unavailable("it is gone")
        self.heard += 1
        return HeartbeatReply()


@pytest.fixture
def made() -> dict[tuple[str, str], _End]:
    return {}


@pytest.fixture
def ends(made: dict[tuple[str, str], _End]) -> ManagerFanout:
    def make(address: str, key: str) -> AgentEndpoint:
        return made.setdefault((address, key), _End())

    return ManagerFanout(make, {"one": "k", "two": "k"})


async def test_links_follow_the_list(ends: ManagerFanout, made: dict[tuple[str, str], _End]) -> None:
    await ends.start(COMMANDS)
    await ends.change({"one": "k", "two": "other", "three": "k"})
    assert {place for place, end in made.items() if end.is_open} == {("one", "k"), ("two", "other"), ("three", "k")}
    await ends.change({})
    assert len(ends.endpoints) == 3, "a list that is empty has been lost"
    await ends.stop()
    assert not any(end.is_open for end in made.values())


async def test_who_is_not_listed_is_kept_while_it_answers(
    ends: ManagerFanout, made: dict[tuple[str, str], _End]
) -> None:
    await ends.start(COMMANDS)
    two = made["two", "k"]
    await ends.change({"one": "k"})
    await ends.reports.heartbeat(REPORT)
    assert (two.is_open, two.heard) == (True, 1)
    two.lives = False
    await ends.change({"one": "k", "two": "k"})
    await ends.reports.heartbeat(REPORT)
    assert set(ends.endpoints) == {"one", "two"}, "it is listed again, and waited for"
    await ends.change({"one": "k"})
    await ends.reports.heartbeat(REPORT)
    assert set(ends.endpoints) == {"one"}
    assert [end.is_open for end in made.values()] == [True, False]
