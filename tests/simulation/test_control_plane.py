"""The machines and the planner under faults, with a thousand seeds: see story.py.

Messages are lost, repeated and reordered; managers and agents are killed, managers are stopped; the database is slow
and leaves transactions unanswered; every manager has a clock of its own that is wrong.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from ai.backend.common.ids import SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClusterMode, SessionStatus, SessionType
from ai.backend.core.scheduling.policy import Policy
from ai.backend.simulator.network import NO_FAULTS, Faults
from tests.simulation.__main__ import main
from tests.simulation.story import Cluster, tell

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "1000"))
"""``python -m tests.simulation`` tells many more, and one again."""
BLOCKS = 8


@pytest.mark.timeout(max(120, SEEDS))
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_control_plane_comes_to_rest_and_leaves_nothing(block: int) -> None:
    seen: set[SessionStatus] = set()
    for seed in range(block, SEEDS, BLOCKS):
        seen |= tell(seed)
    assert {SessionStatus.RUNNING, SessionStatus.TERMINATED, SessionStatus.ERROR} <= seen, "the dice reach every end"


def running(cluster: Cluster, count: int, priority: int = 10, **slots: int | str) -> list[SessionId]:
    """Sessions that have been requested, once they had time to start."""
    made = [
        cluster.manager.enqueue(
            cluster.created + n + 1,
            [ResourceSlot.parse(slots)],
            ClusterMode.SINGLE_NODE,
            SessionType.BATCH,
            priority=priority,
        )
        for n in range(count)
    ]
    cluster.created += count
    cluster.run(800, users=False)
    return made


def statuses(cluster: Cluster) -> list[SessionStatus]:
    return [s.status for s in cluster.database.sessions.values()]


def test_without_faults_every_session_that_fits_runs() -> None:
    cluster = Cluster(7, NO_FAULTS)
    running(cluster, 6, cpu=4, **{"mock.shares": 1})
    assert set(statuses(cluster)) == {SessionStatus.RUNNING}


def test_an_agent_given_up_frees_its_sessions_and_its_leftovers_are_destroyed_when_it_returns() -> None:
    cluster = Cluster(11, NO_FAULTS)
    ids = running(cluster, 3, cpu=8)
    lost = cluster.database.sessions[ids[0]].kernels[0].agent_id
    assert lost is not None
    cluster.agents[lost].crash()
    cluster.manager.give_up(lost)
    assert cluster.database.sessions[ids[0]].status is SessionStatus.ERROR
    cluster.settle()
    cluster.run(800, users=False)
    assert cluster.agents[lost].is_idle


def test_who_made_way_starts_over_once_there_is_room_again() -> None:
    cluster = Cluster(5, NO_FAULTS, Policy(preempts=True))
    victims = running(cluster, 3, priority=1, cpu=8)
    urgent = running(cluster, 3, priority=20, cpu=8)
    even = [s for s in victims if cluster.database.requests[s].may_start_over]
    assert [cluster.database.sessions[s].status for s in even] == [SessionStatus.PENDING] * len(even)
    for session_id in urgent:
        cluster.manager.give_up(cluster.database.taken[next(iter(cluster.database.requests[session_id].slots))])
    cluster.run(1500, users=False)
    assert [cluster.database.sessions[s].status for s in even] == [SessionStatus.RUNNING] * len(even)
    assert all(cluster.database.sessions[s].status.is_final for s in set(victims) - set(even))


def test_another_manager_goes_on_when_the_leader_is_killed_and_the_fence_holds() -> None:
    cluster = Cluster(13, NO_FAULTS)
    cluster.run(100, users=False)
    leader = next(m for m in cluster.managers if m.leads)
    token = cluster.database.lease.token
    leader.crash()
    running(cluster, 2, cpu=4)
    assert set(statuses(cluster)) == {SessionStatus.RUNNING}
    assert cluster.database.lease.token > token
    answers: list[bool | None] = []
    cluster.database.submit([], answers.append, token=token)
    assert answers == [False], "what the old leader still had on its way changes nothing"


def digest(seed: int) -> str:
    cluster = Cluster(seed, Faults(), Policy(order="drf", preempts=True))
    cluster.run(1200, users=True)
    assert len(cluster.database.events) > 20
    return hashlib.sha256(repr(cluster.database.events).encode()).hexdigest()


def test_the_same_seed_tells_the_same_story_in_any_process() -> None:
    """Hashes of text differ between processes, and nothing may depend on them."""
    here = Path(__file__).parents[2]
    code = "from tests.simulation.test_control_plane import digest; print(digest(3))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here,
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert told.stdout.strip() == digest(3), told.stderr


def test_a_fault_is_told_with_its_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    whole = Cluster.user

    def user(cluster: Cluster) -> None:
        whole(cluster)
        cluster.known.add(SessionId(UUID(int=7)))  # there never was one

    monkeypatch.setattr(Cluster, "user", user)
    assert main(["--seed", "4"]) == 1
    told = capsys.readouterr().err
    assert "00000007 is lost" in told
    assert "once more: python -m tests.simulation --seed 4" in told
    monkeypatch.undo()
    assert main(["--seed", "4"]) == 0
