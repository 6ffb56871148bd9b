"""At most one process leads at any time: through crashes, pauses longer than the lease, and servers that do not
answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.node.kube_api.election import Election
from ai.backend.simulator.virtual_time import Process
from ai.backend.simulator.world import NO_FAULTS, World
from tests.support.scripted_kube import ScriptedKube


class Contest:
    """Processes that want to lead by one Lease; ``terms`` are (time, process, term) of each start of work."""

    def __init__(self) -> None:
        self.world = World(1, NO_FAULTS)
        self.kube = ScriptedKube()
        self.terms: list[tuple[float, str, int]] = []
        self.ends: list[tuple[float, str]] = []
        self.elections: dict[str, Election] = {}

    def enter(self, name: str, *, is_patient: bool = False) -> Process:
        process = Process(name)
        election = self.elections[name] = Election(self.kube.api, "shard-a", "ours", name, is_patient=is_patient)

        async def work(term: int) -> None:
            self.terms.append((asyncio.get_running_loop().time(), name, term))
            try:
                await asyncio.sleep(1e9)
            finally:
                self.ends.append((asyncio.get_running_loop().time(), name))

        self.world.spawn(process, election.run(work))
        return process

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.world.loop.run_until_complete(self.world.spawn(None, story))
        self.world.loop.tear_down()

    @property
    def leaders(self) -> list[str]:
        return [name for name, election in self.elections.items() if election.is_leading()]


@pytest.fixture
def contest() -> Contest:
    return Contest()


async def until(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # in simulated time
            await asyncio.sleep(0.1)


def test_the_other_takes_over_after_the_lease_and_not_before(contest: Contest) -> None:
    async def story() -> None:
        first = contest.enter("a")
        await asyncio.sleep(1)
        contest.enter("b")
        await asyncio.sleep(60)
        assert [term[1:] for term in contest.terms] == [("a", 1)]
        killed_at = asyncio.get_running_loop().time()
        first.kill()
        await until(lambda: len(contest.terms) == 2, 60)
        at, name, term = contest.terms[1]
        assert (name, term) == ("b", 2)
        assert 13 <= at - killed_at <= 20

    contest.run(story())


def test_a_paused_leader_finds_that_it_leads_no_more_before_it_does_anything(contest: Contest) -> None:
    async def story() -> None:
        first = contest.enter("a")
        contest.enter("b")
        await asyncio.sleep(5)
        assert contest.leaders == ["a"]
        first.stop()
        await until(lambda: len(contest.terms) == 2, 60)
        first.go_on()
        assert contest.leaders == ["b"]
        await until(lambda: len(contest.ends) == 1, 5)
        await asyncio.sleep(100)
        assert contest.leaders == ["b"]
        assert [term[1:] for term in contest.terms] == [("a", 1), ("b", 2)]

    contest.run(story())


def test_a_leader_that_cannot_renew_stops_before_its_lease_ends(contest: Contest) -> None:
    async def story() -> None:
        contest.enter("a")
        await asyncio.sleep(5)
        cut_at = asyncio.get_running_loop().time()
        contest.kube.failures = [Unavailable("away")] * 8
        await until(lambda: len(contest.ends) == 1, 60)
        assert contest.ends[0][0] - cut_at <= 12
        await until(lambda: len(contest.terms) == 2, 60)
        assert contest.terms[1][1:] == ("a", 2)

    contest.run(story())


def test_a_patient_leader_outlives_the_servers_absence_and_yields_to_another_holder(contest: Contest) -> None:
    async def story() -> None:
        contest.enter("a", is_patient=True)
        await asyncio.sleep(5)
        contest.kube.failures = [Unavailable("away")] * 300
        await until(lambda: not contest.kube.failures, 900)
        await asyncio.sleep(5)
        assert contest.ends == []
        assert contest.leaders == ["a"]
        lease = contest.kube.stored["shard-a"]
        assert lease["spec"]["leaseTransitions"] == 1
        contest.kube.failures = [Unavailable("away")] * 3
        renewed = {**lease["spec"], "holderIdentity": "b", "renewTime": "later"}
        contest.kube.stored["shard-a"] = {**lease, "spec": renewed}
        await until(lambda: len(contest.ends) == 1, 15)

    contest.run(story())


def test_a_short_failure_changes_nothing(contest: Contest) -> None:
    async def story() -> None:
        contest.enter("a")
        await asyncio.sleep(5)
        contest.kube.failures = [Unavailable("away")] * 3
        await asyncio.sleep(60)
        assert contest.ends == []
        assert contest.leaders == ["a"]

    contest.run(story())


def test_a_leader_that_ends_gives_the_lease_back(contest: Contest) -> None:
    async def story() -> None:
        election = Election(contest.kube.api, "shard-a", "ours", "short")

        async def work(term: int) -> None:
            await asyncio.sleep(3)

        await election.run(work)
        ended_at = asyncio.get_running_loop().time()
        contest.enter("b")
        await until(lambda: len(contest.terms) == 1, 60)
        assert contest.terms[0][0] - ended_at <= 2.1
        assert contest.terms[0][1:] == ("b", 2)

    contest.run(story())
