"""An agent is lost after its own silence; where a process speaks for many, that one's silence is not the nodes'."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ai.backend.common.ids import AgentId
from ai.backend.common.wire.reports import AgentReport
from ai.backend.manager.agents.registration import AgentRegistry
from ai.backend.manager.agents.settings import AgentSettings

ALONE, FIRST, SECOND = AgentId("i-1"), AgentId("prod.n1"), AgentId("prod.n2")


class StoppedClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
def registry(clock: StoppedClock) -> AgentRegistry:
    nothing: Any = None
    return AgentRegistry(
        agents=nothing,
        resource_groups=nothing,
        slots=nothing,
        presence=nothing,
        bus=nothing,
        clock=cast(Any, clock),
        settings=AgentSettings(heartbeat_timeout_s=15, speaker_interval_s=5, speaker_timeout_s=120),
        assignments=nothing,
    )


def silent(registry: AgentRegistry) -> list[str]:
    return [agent for agent in (ALONE, FIRST, SECOND) if registry.is_silent(agent, since=0.0)]


def beat(registry: AgentRegistry, *agents: AgentId) -> None:
    for agent in agents:
        registry.record_contact(agent, "" if agent == ALONE else "prod.*")


def test_a_node_of_which_its_speaker_says_nothing_is_lost(registry: AgentRegistry, clock: StoppedClock) -> None:
    beat(registry, ALONE, FIRST, SECOND)
    for _ in range(6):
        clock.seconds += 3
        beat(registry, ALONE, FIRST)
    assert silent(registry) == [SECOND]


def test_a_silent_speaker_loses_no_node_until_its_own_timeout(registry: AgentRegistry, clock: StoppedClock) -> None:
    beat(registry, ALONE, FIRST, SECOND)
    clock.seconds += 119
    assert silent(registry) == [ALONE]
    clock.seconds += 2
    assert silent(registry) == [ALONE, FIRST, SECOND]


def test_after_a_speaker_came_back_each_node_has_the_whole_timeout(
    registry: AgentRegistry, clock: StoppedClock
) -> None:
    beat(registry, FIRST, SECOND)
    clock.seconds += 20
    beat(registry, FIRST)  # of a new leader
    assert silent(registry) == [ALONE]
    for _ in range(6):
        clock.seconds += 3
        beat(registry, FIRST)
    assert silent(registry) == [ALONE, SECOND]


def test_an_agent_that_speaks_for_itself_again_is_judged_by_itself(
    registry: AgentRegistry, clock: StoppedClock
) -> None:
    beat(registry, FIRST)
    registry.record_contact(FIRST, "")
    clock.seconds += 16
    assert FIRST in silent(registry)


def test_the_sleep_of_the_manager_is_nobodys_silence(registry: AgentRegistry, clock: StoppedClock) -> None:
    beat(registry, ALONE, FIRST)
    clock.seconds += 500
    assert not registry.is_silent(ALONE, since=clock.seconds - 1)
    assert not registry.is_silent(FIRST, since=clock.seconds - 1)


def loss_report(number: int, loss: str) -> AgentReport:
    return AgentReport(
        agent_id=FIRST,
        epoch=1,
        number=number,
        version="99.1",
        architecture="",
        resource_group="",
        speaker="prod.*",
        loss=loss,
    )


async def test_a_node_that_its_speaker_calls_lost_is_lost_at_once(registry: AgentRegistry) -> None:
    beat(registry, FIRST, SECOND)
    reply = await registry.heartbeat(loss_report(2, "its kubelet is silent"))
    assert reply.interval_s == registry.settings.speaker_interval_s
    assert registry.loss_of(FIRST) == "its kubelet is silent"
    assert silent(registry) == [ALONE, FIRST]


async def test_a_late_report_from_before_a_loss_changes_nothing(registry: AgentRegistry) -> None:
    beat(registry, FIRST)
    await registry.heartbeat(loss_report(2, "its kubelet is silent"))
    await registry.heartbeat(loss_report(1, ""))
    assert FIRST in silent(registry)
