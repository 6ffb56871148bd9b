"""The shipped manager and agents in simulated time under faults, with a thousand seeds: see story.py.

Messages are lost, repeated, delayed and reordered; managers and agents are killed at any await and at any durable
write, lose their power at a commit, and are stopped; nodes reboot; disks are full; the database is slow, refuses, and
loses its answers; the runtime and the plugins fail, hang and lie; every machine has a clock of its own that is wrong.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ai.backend.agent.devices.cut_devices import CutDevices
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.kernels.kept_devices import KeptDevices
from ai.backend.common.errors import Unavailable
from ai.backend.common.ids import AgentId, DeviceId
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import AgentReport, HeartbeatReply
from ai.backend.manager.agents.registration import AgentRegistry
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.scheduling.loop import ScheduleLoop
from ai.backend.manager.sessions.model import CreateSession, Session
from ai.backend.simulator.cluster import Cluster, Plan
from ai.backend.simulator.daemons import ManagerDaemon
from ai.backend.simulator.durable import Disk
from ai.backend.simulator.running import run
from ai.backend.simulator.world import NO_FAULTS
from tests.simulation.__main__ import main
from tests.simulation.mutations import Mutation, NoSuchText, applied, find
from tests.simulation.planted import MUTATIONS
from tests.simulation.story import cluster_of, partitioned_cluster_of, tell

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "1000"))
"""``python -m tests.simulation`` runs many more, and one again."""
BLOCKS = 20
ROTATING = 5
CALM = Plan(mean_manager_steps=None, mean_agent_steps=None)


@pytest.mark.timeout(max(120, SEEDS))
@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_control_plane_comes_to_rest_and_leaves_nothing(block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        tell(seed)


@pytest.mark.timeout(900)
def test_sessions_come_to_rest_in_every_status_that_lasts() -> None:
    missing = {SessionStatus.RUNNING, SessionStatus.TERMINATED, SessionStatus.ERROR, SessionStatus.PENDING}
    for seed in range(300):
        missing -= tell(seed)[1]
        if not missing:
            break
    assert not missing


@pytest.mark.timeout(900)
def test_no_acknowledged_transaction_is_lost_with_the_power() -> None:
    """Managers lose it much more often than in the other stories."""
    lines: list[str] = []
    for seed in range(4):
        cluster = cluster_of(seed)
        cluster.world.faults = replace(cluster.world.faults, lose_power=0.004)
        tell(seed, cluster)
        lines += cluster.world.lines
    for when in ("before", "after"):
        assert any(f"power lost {when} the commit" in line for line in lines)


@pytest.mark.parametrize("first", range(0, 16, 4))
def test_devices_are_cut_and_joined_under_faults(first: int) -> None:
    """No partition is joined under a workload, and none has two owners, whatever dies, hangs and lies meanwhile."""
    for seed in range(first, first + 4):
        tell(seed, partitioned_cluster_of(seed))


async def nothing_kept(self: KeptDevices) -> list[DeviceId]:
    """An answer that leaves out what claims keep."""
    return []


@pytest.mark.parametrize(
    ("place", "method", "instead", "violation"),
    [
        (CutDevices, "cut_devices_held_whole", lambda self, kernel_id: [], r"whole, of which g\d/\d is cut"),
        (KeptDevices, "ids", nothing_kept, r"which the claim claim-\d keeps"),
        (Inventory, "_holders_of", lambda self, device_ids, slot_names: [], r"is given \d times|which a workload has"),
    ],
)
def test_a_fault_of_partitions_is_found(
    monkeypatch: pytest.MonkeyPatch, place: type, method: str, instead: Callable[..., Any], violation: str
) -> None:
    monkeypatch.setattr(place, method, instead)
    found: list[str] = []
    for seed in range(20):
        try:
            tell(seed, partitioned_cluster_of(seed))
        except AssertionError as e:
            found.append(str(e))
            break
    assert re.search(violation, " ".join(found)), found


# ---- stories without dice


def play(cluster: Cluster, story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        await cluster.begin()
        await cluster.come_to_rest()
        await story(cluster)
        cluster.invariants.check_at_rest(cluster)

    run(cluster, whole)


async def created(cluster: Cluster, count: int, **resources: int | str) -> list[Session]:
    """Sessions, once they had time to start."""
    request = CreateSession(image="python", enqueue_only=True, resources=resources)
    first = len(cluster.sessions())
    made = [await cluster.create(request, f"made-{first + n}") for n in range(count)]
    await cluster.come_to_rest()
    return [session for session in made if session is not None]


def statuses(cluster: Cluster) -> list[SessionStatus]:
    return [session.status for session in cluster.sessions()]


def test_without_faults_every_session_that_fits_runs() -> None:
    async def story(cluster: Cluster) -> None:
        await created(cluster, 6, cpu=4, **{"mock.shares": 1})
        assert statuses(cluster) == [SessionStatus.RUNNING] * 6
        await created(cluster, 1, cpu=4)
        assert statuses(cluster)[6] is SessionStatus.PENDING

    play(Cluster(7, NO_FAULTS, CALM), story)


@pytest.mark.parametrize("seed", range(2))
def test_clocks_that_are_hours_apart_change_nothing_but_times(seed: int) -> None:
    """Manager and agents differ by up to eight hours: no agent is given up, and every session runs and ends."""

    async def story(cluster: Cluster) -> None:
        sessions = await created(cluster, 6, cpu=4, **{"mock.shares": 1})
        assert statuses(cluster) == [SessionStatus.RUNNING] * 6
        await asyncio.sleep(300.0)
        assert statuses(cluster) == [SessionStatus.RUNNING] * 6, "as with clocks that agree"
        for session in sessions:
            await cluster.change(session.id, "destroy")
        await cluster.come_to_rest()
        assert statuses(cluster) == [SessionStatus.TERMINATED] * 6
        ended = cluster.sessions()
        assert all(s.terminated_at is not None and s.terminated_at >= s.created_at for s in ended), (
            "times are one machine's"
        )

    play(Cluster(seed, replace(NO_FAULTS, skew_s=4 * 3600.0), CALM), story)


def test_an_agent_given_up_frees_its_sessions_and_its_leftovers_are_destroyed_when_it_returns() -> None:
    async def story(cluster: Cluster) -> None:
        first, *_ = await created(cluster, 3, cpu=8)
        place = cluster.memory.sessions[first.id].main.agent
        lost = next(agent for agent in cluster.agents if agent.agent_id == place)
        lost.process.stop()
        await asyncio.sleep(120.0)
        assert cluster.memory.sessions[first.id].status is SessionStatus.ERROR
        assert lost.node.live(), "it runs on, and nobody counts on it"
        lost.process.go_on()
        await cluster.come_to_rest()
        assert not lost.node.fake.workloads

    play(Cluster(11, NO_FAULTS, CALM), story)


def test_another_manager_goes_on_when_the_leader_stands_still_and_the_fence_holds() -> None:
    async def story(cluster: Cluster) -> None:
        leader = next(m for m in cluster.managers.values() if m.leads)
        leader.process.stop()
        await asyncio.sleep(30.0)
        assert [m.leads for m in cluster.managers.values()] == [True, True], "both believe that they lead"
        await created(cluster, 1, cpu=1)
        leader.process.go_on()
        await asyncio.sleep(30.0)
        assert sum(m.leads for m in cluster.managers.values()) == 1
        assert not leader.leads
        assert statuses(cluster) == [SessionStatus.RUNNING]

    play(Cluster(13, NO_FAULTS, CALM), story)


def test_workloads_and_records_outlive_every_daemon() -> None:
    async def story(cluster: Cluster) -> None:
        made = await created(cluster, 3, cpu=4)
        before = {agent.agent_id: agent.node.live() for agent in cluster.agents}
        for daemon in (*cluster.managers.values(), *cluster.agents):
            daemon.process.kill()
        await cluster.come_to_rest()
        assert {agent.agent_id: agent.node.live() for agent in cluster.agents} == before
        assert [cluster.memory.sessions[s.id].status for s in made] == [SessionStatus.RUNNING] * 3

    play(Cluster(17, NO_FAULTS, CALM), story)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[AgentReport]:
    """The heartbeats that managers were sent."""
    reports: list[AgentReport] = []
    heartbeat = AgentRegistry.heartbeat

    async def recorded(self: AgentRegistry, report: AgentReport) -> HeartbeatReply:
        reports.append(report)
        return await heartbeat(self, report)

    monkeypatch.setattr(AgentRegistry, "heartbeat", recorded)
    return reports


async def first_leader(cluster: Cluster) -> ManagerDaemon:
    """Starts all managers anew; the first one that leads."""
    for daemon in cluster.managers.values():
        daemon.process.kill()
    for _ in range(600):
        await asyncio.sleep(0.1)  # simulated time: leading is a state that nobody announces
        for daemon in cluster.managers.values():
            if daemon.leads:
                return daemon
    raise AssertionError("no manager leads after a minute")


async def hear(report: AgentReport, manager: Manager) -> HeartbeatReply:
    return await manager.reports.heartbeat(report)


@pytest.mark.timeout(300)
def test_late_heartbeats_of_a_dead_process_end_no_kernel_that_began_after_it(heard: list[AgentReport]) -> None:
    """The manager was started anew, too, and hears of the dead process before it hears of the living one."""

    async def story(cluster: Cluster) -> None:
        agent = cluster.agents[0]
        dead = [report for report in heard if report.agent_id == agent.agent_id][-1]
        agent.process.kill()
        await cluster.come_to_rest()
        await created(cluster, len(cluster.agents), cpu=8)
        await asyncio.sleep(30.0)  # simulated: the kernels run and heartbeats have passed
        assert agent.node.live()
        agent.process.stop()
        leader = await first_leader(cluster)
        for later in (1, 2, 3):
            report = replace(dead, number=dead.number + later)
            await leader.ask(partial(hear, report))
        agent.process.go_on()
        await cluster.come_to_rest()
        assert statuses(cluster) == [SessionStatus.RUNNING] * len(cluster.agents)

    play(Cluster(19, NO_FAULTS, CALM), story)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_new", [True, False], ids=["with-a-new-manager", "with-the-same-manager"])
def test_kernels_of_an_agent_without_its_earlier_data_are_lost_and_it_takes_others(is_new: bool) -> None:
    """Its epochs begin anew, as if it were a dead process of the agent."""

    async def story(cluster: Cluster) -> None:
        agent = cluster.agents[0]
        agent.process.kill()
        await cluster.come_to_rest()
        await created(cluster, len(cluster.agents), cpu=8)
        await asyncio.sleep(30.0)  # simulated: the kernels run and heartbeats have passed
        agent_id = AgentId(agent.agent_id)
        assert cluster.memory.acks[agent_id].epoch == 2
        agent.process.kill()
        agent.disk = Disk(cluster.world)
        agent.node.reboot()
        if is_new:
            await first_leader(cluster)
        await asyncio.sleep(60.0)  # simulated: longer than an agent may be silent
        await cluster.come_to_rest()
        assert agent.disk.epoch == 1
        assert sorted(statuses(cluster)) == ["ERROR", *["RUNNING"] * (len(cluster.agents) - 1)]
        (replacement,) = await created(cluster, 1, cpu=8)
        assert cluster.memory.sessions[replacement.id].status is SessionStatus.RUNNING
        assert cluster.memory.sessions[replacement.id].main.agent == agent_id
        assert cluster.memory.acks[agent_id].epoch == 1

    play(Cluster(23, NO_FAULTS, CALM), story)


def test_a_cluster_rests_when_each_session_that_waits_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that was slow and failed has said nothing, and the next pass comes some seconds later."""

    async def fail_late(self: ScheduleLoop, *_: object) -> None:
        monkeypatch.undo()
        await asyncio.sleep(8.0)  # simulated
        raise Unavailable("nobody knows whether it was committed")

    async def story(cluster: Cluster) -> None:
        await created(cluster, 6, cpu=4)
        monkeypatch.setattr(ScheduleLoop, "_schedule", fail_late)
        await created(cluster, 1, cpu=4)
        assert statuses(cluster)[6] is SessionStatus.PENDING

    play(Cluster(29, NO_FAULTS, CALM), story)


# ---- the simulation itself


def test_the_same_seed_is_the_same_trace_in_any_process() -> None:
    """Hashes of text differ between processes, and nothing may depend on them, nor on what ran before."""
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "3"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=False,
            text=True,
        )
        for seed in ("1", "77")
    ]
    tell(5)
    digest, _ = tell(3)
    assert [output.stdout.strip() for output in outputs] == [f"seed 3 holds: {digest}"] * 2, outputs[0].stderr


def test_a_fault_is_shown_with_its_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def check_at_rest(_: object, cluster: Cluster) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr("ai.backend.simulator.invariants.Invariants.check_at_rest", check_at_rest)
    assert main(["--seed", "4"]) == 1
    shown = capsys.readouterr().err
    assert "planted" in shown
    assert "once more: python -m tests.simulation --seed 4" in shown
    monkeypatch.undo()
    assert main(["--seed", "4"]) == 0


# ---- planted faults


@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", range(ROTATING))
def test_a_planted_fault_is_found(place: int) -> None:
    """Five others each day; ``python -m tests.simulation --mutations`` looks for all of them."""
    day = datetime.now(UTC).toordinal()
    mutations = [mutation for mutation in MUTATIONS if not mutation.why_not]
    mutation = mutations[(day * ROTATING + place) % len(mutations)]
    assert find(mutation, seeds=300)[1] is not None, f"no seed finds: {mutation.name}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name.replace(" ", "-"))
def test_a_planted_fault_can_be_planted(mutation: Mutation) -> None:
    with applied(mutation):
        pass


def test_a_planted_fault_whose_text_is_gone_fails() -> None:
    mutation = Mutation("gone", "agent.kernels.observer", "no such text", "")
    with pytest.raises(NoSuchText, match="occurs 0 times"), applied(mutation):
        pass
