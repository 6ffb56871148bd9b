"""The scheduler as a resource group sets it, and the commands that look at it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ai.backend.common.errors import InvalidInput
from ai.backend.common.states import KernelEventReason, KernelStatus, SessionStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import PluginReport
from ai.backend.core.scheduling.ordering.fair_share import scope_prefixes
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import load_json
from ai.backend.infra.clock import Clock
from ai.backend.manager.main import main
from ai.backend.manager.scheduling.fair_share import FairShareAccounting
from ai.backend.manager.scheduling.reading import group_policy
from ai.backend.manager.scheduling.snapshot import scope_of
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent


async def setting(cluster: Cluster, scheduler: str, **options: Any) -> None:
    groups = cluster.manager.stores.resource_groups
    group = await groups.resource_group("default")
    assert group is not None
    await groups.put_resource_group(replace(group, scheduler=scheduler, scheduler_opts=options))


async def enqueue(cluster: Cluster, name: str, **quantities: int) -> Session:
    reply = await cluster.manager.services.sessions.create(
        cluster.user,
        CreateSession(image="python", name=name, enqueue_only=True, resources={"mem": "64m", **quantities}),
    )
    return reply.session


async def reaches(cluster: Cluster, sessions: Sequence[Session], wanted: Callable[[set[SessionStatus]], bool]) -> None:
    """Until the statuses of the sessions are as wanted; no event tells of all of them."""
    async with asyncio.timeout(30):
        while True:
            if wanted({await status(cluster, s) for s in sessions}):
                return
            await asyncio.sleep(0.02)


async def status(cluster: Cluster, session: Session) -> SessionStatus:
    found = await cluster.manager.stores.sessions.get(session.id)
    assert found is not None
    return found.status


@pytest.mark.parametrize(
    ("scheduler", "options", "expected"),
    [
        ("fifo", {}, Policy()),
        ("lifo", {"agent_selection_strategy": "concentrated"}, Policy(order="lifo", placement="concentrated")),
        ("drf", {"agent_selection_strategy": "ROUNDROBIN"}, Policy(order="drf", placement="round-robin")),
        ("fair_share", {"agent_selection_strategy": "legacy"}, Policy(order="fair-share")),
        ("no such", {"agent_selection_strategy": 7, "preemption": "yes"}, Policy()),
        ("fifo", {"preemption": {"enabled": True}}, Policy(preempts=True)),
    ],
)
async def test_a_resource_group_names_its_policy(
    cluster: Cluster, scheduler: str, options: Mapping[str, Any], expected: Policy
) -> None:
    await setting(cluster, scheduler, **options)
    assert group_policy(await cluster.manager.stores.resource_groups.resource_group("default")) == expected


@pytest.mark.parametrize(("scheduler", "first"), [("fifo", "older"), ("lifo", "newer"), ("fair-share", "older")])
async def test_the_order_decides_who_gets_the_place(
    cluster: Cluster, agent: FakeAgent, scheduler: str, first: str
) -> None:
    await setting(cluster, scheduler)
    holder = await enqueue(cluster, "holder", cpu=8)
    await reaches(cluster, [holder], lambda seen: seen == {SessionStatus.RUNNING})
    waiting = {name: await enqueue(cluster, name, cpu=8) for name in ("older", "newer")}
    await cluster.manager.services.sessions.destroy(cluster.user, "holder")
    await reaches(cluster, list(waiting.values()), lambda seen: seen != {SessionStatus.PENDING})
    assert [name for name, s in waiting.items() if await status(cluster, s) is not SessionStatus.PENDING] == [first]


async def test_what_the_scheduler_sees_is_dumped_replayed_and_explained(
    cluster: Cluster, agent: FakeAgent, tmp_path: Path
) -> None:
    await setting(cluster, "drf")
    holder = await enqueue(cluster, "holder", cpu=6)
    await reaches(cluster, [holder], lambda seen: seen == {SessionStatus.RUNNING})
    await enqueue(cluster, "waiting", cpu=4)

    async def mgr(*words: str) -> Result:
        environ = {"BACKEND_MANAGER_DATABASE__URL": str(cluster.database.location)}
        return await asyncio.to_thread(CliRunner(env=environ).invoke, main, ["scheduler", *words])

    dumped = await mgr("dump")
    assert dumped.exit_code == 0, dumped.output
    snapshot = load_json(dumped.stdout.encode())
    assert [s.name for s in snapshot.pending] == ["waiting"]
    owner = "/".join(snapshot.pending[0].scope)
    assert snapshot.occupied[owner].to_json() == {"cpu": "6", "mem": "67108864"}

    path = tmp_path / "snapshot.json"
    path.write_text(dumped.stdout)
    told = "waiting  waiting: needs 4 cpu on one node; most free is 2 on agent-1 [insufficient-resource]\n"
    assert Policy.of(snapshot.policy) == Policy(order="drf"), "the dump says how the group schedules"
    replayed = await mgr("replay", str(path), "--order", "fair-share")
    assert replayed.stdout == told + "reserved agent-1 for waiting\n"
    explained = await mgr("explain", "waiting")
    assert explained.stdout == told
    assert "no live session is called nobody" in (await mgr("explain", "nobody")).output
    assert (await mgr("explain", "holder")).stdout == "holder does not wait: it is RUNNING on agent-1\n"
    assert (
        "no resource group elsewhere; there are: default" in (await mgr("dump", "--resource-group", "elsewhere")).output
    )
    path.write_text(json.dumps({"format": 99}))
    assert "Error: not a snapshot" in (await mgr("replay", str(path))).output


def test_a_database_without_a_manager_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    told = CliRunner(env={"BACKEND_MANAGER_DATABASE__URL": url}).invoke(main, ["scheduler", "dump"])
    assert told.exit_code == 1
    assert f"{url} is no database of a manager" in told.output


async def test_a_session_of_smaller_priority_makes_way(cluster: Cluster, agent: FakeAgent) -> None:
    await setting(cluster, "fifo", preemption={"enabled": True})
    holder = await enqueue(cluster, "holder", cpu=8)
    await reaches(cluster, [holder], lambda seen: seen == {SessionStatus.RUNNING})
    running = await cluster.manager.stores.sessions.get(holder.id)
    assert running is not None
    await cluster.manager.services.writer.commit(
        [Change(old=running, new=replace(running, priority=1))], point="commit-schedule"
    )
    urgent = await enqueue(cluster, "urgent", cpu=8)
    await reaches(cluster, [urgent], lambda seen: seen == {SessionStatus.RUNNING})
    ended = await cluster.manager.stores.sessions.get(holder.id)
    assert ended is not None
    assert (ended.status, ended.reason) == (SessionStatus.TERMINATED, KernelEventReason.PREEMPTED)
    assert (await cluster.manager.stores.sessions.audit()).is_clean


async def as_batch(cluster: Cluster, name: str, priority: int | None = None, **options: str) -> Session:
    request = CreateSession(
        image="python",
        name=name,
        enqueue_only=True,
        type=SessionType.BATCH,
        startup_command="./train",
        resources={"mem": "64m", "cpu": 8},
        priority=priority,
        resource_opts=options,
    )
    return (await cluster.manager.services.sessions.create(cluster.user, request)).session


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("reschedule", {}, SessionStatus.RUNNING),
        ("terminate", {"restartable": "yes"}, SessionStatus.RUNNING),
        ("reschedule", {"restartable": "false"}, SessionStatus.TERMINATED),
    ],
)
async def test_a_batch_session_that_made_way_starts_over(
    cluster: Cluster, agent: FakeAgent, mode: str, options: dict[str, str], expected: SessionStatus
) -> None:
    await setting(cluster, "fifo", preemption={"enabled": True, "mode": mode})
    victim = await as_batch(cluster, "victim", 1, **options)
    await reaches(cluster, [victim], lambda seen: seen == {SessionStatus.RUNNING})
    urgent = await enqueue(cluster, "urgent", cpu=8)
    await reaches(cluster, [urgent], lambda seen: seen == {SessionStatus.RUNNING})
    await reaches(cluster, [victim], lambda seen: seen <= {SessionStatus.PENDING, SessionStatus.TERMINATED})
    await cluster.manager.services.sessions.destroy(cluster.user, "urgent")
    await reaches(cluster, [victim], lambda seen: seen == {expected})
    after = await cluster.manager.stores.sessions.get(victim.id)
    assert after is not None
    attempts = [spec.attempt for spec in agent.created if spec.kernel_id == str(victim.id)]
    assert attempts == ([1, 2] if expected is SessionStatus.RUNNING else [1])
    if expected is SessionStatus.RUNNING:
        assert after.status_data["started_over"] == {"times": 1, "attempts": 1}
    assert (await cluster.manager.stores.sessions.audit()).is_clean


async def test_only_batch_sessions_start_over_and_flags_are_true_or_false(cluster: Cluster, agent: FakeAgent) -> None:
    with pytest.raises(InvalidInput, match="preemptible is true or false"):
        await as_batch(cluster, "odd-one", preemptible="maybe")
    request = CreateSession(image="python", name="never", resource_opts={"restartable": "true"})
    with pytest.raises(InvalidInput, match="Only a batch session can start over"):
        await cluster.manager.services.sessions.create(cluster.user, request)


async def test_where_agents_are_and_how_many_kernels_they_take_reaches_the_scheduler(
    cluster: Cluster, agent: FakeAgent
) -> None:
    assert agent.reports is not None
    await agent.reports.heartbeat(agent.report(location=["zone-a", "rack-7"], kernel_limit=1))
    first, second = [await enqueue(cluster, name, cpu=1) for name in ("first", "second")]
    await reaches(cluster, [first], lambda seen: seen == {SessionStatus.RUNNING})
    snapshot, _ = await cluster.manager.loops.schedule.dump("default")
    assert (snapshot.agents[0].location, snapshot.agents[0].kernel_limit) == (("zone-a", "rack-7"), 1)

    told: str | None = None
    async with asyncio.timeout(30):
        while told is None:
            await asyncio.sleep(0.02)
            waiting = await cluster.manager.stores.sessions.get(second.id)
            told = waiting.status_data.get("scheduler", {}).get("message") if waiting is not None else None
    assert told == "needs room for another kernel; no agent may hold so many (agent-1 1 now)"


class Later:
    """The clock of a manager that is started some time later."""

    def __init__(self, clock: Clock, delay_s: float) -> None:
        self._clock = clock
        self._delay_s = delay_s

    def now(self) -> datetime:
        return self._clock.now() + timedelta(seconds=self._delay_s)

    def monotonic(self) -> float:
        return self._clock.monotonic()


async def test_the_next_manager_goes_on_from_what_was_used_lately(cluster: Cluster, agent: FakeAgent) -> None:
    await setting(cluster, "fair-share", half_life=3600)
    kept = cluster.manager.stores
    group = await kept.resource_groups.resource_group("default")
    assert group is not None

    def book(delay_s: float) -> FairShareAccounting:
        return FairShareAccounting(
            kept.shares, kept.sessions, kept.agents, kept.resource_groups, Later(cluster.clock, delay_s)
        )

    await book(0).sample()
    session = await enqueue(cluster, "holder", cpu=4)
    await reaches(cluster, [session], lambda seen: seen == {SessionStatus.RUNNING})
    await book(3600).sample()
    history = await kept.shares.history("default")
    assert history is not None
    assert set(history.used) == {"default", *scope_prefixes(scope_of(session))}
    assert float(history.used["default"]["cpu"]) == pytest.approx(2, abs=0.1), "one half-life of holding four"
    at = history.at + timedelta(hours=1)
    assert float((await book(0).decayed_usage(group, {}, at))["default"]["cpu"]) == pytest.approx(1, abs=0.05)


async def seen(cluster: Cluster, session: Session) -> dict[str, Any]:
    found = await cluster.manager.stores.sessions.get(session.id)
    assert found is not None
    return dict(found.status_data.get("scheduler", {}))


async def test_a_session_starts_at_its_time_and_its_program_has_its_bound(cluster: Cluster, agent: FakeAgent) -> None:
    request = CreateSession(
        image="python",
        name="later",
        enqueue_only=True,
        type=SessionType.BATCH,
        startup_command="./train",
        batch_timeout_s=90,
        starts_at="1h",
    )
    session = (await cluster.manager.services.sessions.create(cluster.user, request)).session
    await cluster.manager.loops.schedule.once()
    assert (await seen(cluster, session))["reason"] == "not-yet"
    cluster.clock.passed += 3601
    cluster.manager.loops.schedule.wake()
    await reaches(cluster, [session], lambda seen: seen == {SessionStatus.RUNNING})
    (spec,) = [spec for spec in agent.created if spec.kernel_id == str(session.id)]
    assert (spec.batch_timeout_s, spec.startup_command) == (90, "./train")


async def test_an_administrator_names_the_agents(cluster: Cluster, agent: FakeAgent) -> None:
    other = await cluster.join(FakeAgent(agent_id="agent-2"))
    request = CreateSession(image="python", agent_list=("agent-2",), resources={"cpu": 4})
    create = cluster.manager.services.sessions.create
    named = [(await create(cluster.admin, replace(request, name=f"here-{n}"))).session for n in range(2)]
    waiting = (await create(cluster.admin, replace(request, name="here-too", enqueue_only=True))).session
    assert {spec.kernel_id for spec in other.created} == {str(s.id) for s in named}
    await cluster.manager.loops.schedule.once()
    told = await seen(cluster, waiting)
    assert told["message"] == "needs 4 cpu on one node; most free is 0 on agent-2", "although agent-1 is empty"
    await cluster.leave(other)
    await other.close()


async def test_who_depends_on_a_failure_is_cancelled_with_the_reason(cluster: Cluster, agent: FakeAgent) -> None:
    first = await as_batch(cluster, "first")
    await reaches(cluster, [first], lambda seen: seen == {SessionStatus.RUNNING})
    request = CreateSession(image="python", name="second", enqueue_only=True, dependencies=("first",))
    second = (await cluster.manager.services.sessions.create(cluster.user, request)).session
    await agent.tell(
        str(first.id), 1, KernelStatus.TERMINATED, reason=KernelEventReason.TASK_FAILED, exit_code=1, log_tail=b""
    )
    await reaches(cluster, [second], lambda seen: seen == {SessionStatus.CANCELLED})
    assert (await seen(cluster, second))["message"] == "depends on session first, which did not succeed"


@pytest.mark.parametrize("amount", ["nonsense", "NaN", "-1", "1e999999", ""])
async def test_nonsense_of_an_agent_about_a_kernel_stops_nobody_s_scheduling(
    cluster: Cluster, agent: FakeAgent, amount: str
) -> None:
    sessions = cluster.manager.services.sessions
    kernel = (await sessions.create(cluster.user, CreateSession(image="python"))).session.main
    devices = {"mock.device": {"mock-0": amount}}
    await agent.tell(str(kernel.id), kernel.attempt, KernelStatus.RUNNING, devices=devices)
    reply = await sessions.create(cluster.user, CreateSession(image="python", max_wait_s=5))
    assert reply.status == "RUNNING"


@pytest.mark.parametrize(
    "slot",
    [{"amount": "NaN"}, {"amount": "sNaN"}, {"amount": "-1"}, {"amount": "1e999999"}, {"quantum": "0"}],
)
async def test_a_device_of_no_amount_stops_nobody_s_scheduling(
    cluster: Cluster, agent: FakeAgent, slot: dict[str, str]
) -> None:
    other = await cluster.join(FakeAgent(agent_id="agent-2"))
    (device, *devices) = other.report().devices
    device = {**device, "slots": [{**each, **slot} for each in device["slots"]]}
    assert cluster.manager.reports is not None
    await cluster.manager.reports.heartbeat(other.report(devices=[device, *devices], number=0))
    resources = {device["slots"][0]["slot_name"]: 1}
    sessions = cluster.manager.services.sessions
    reply = await sessions.create(cluster.user, CreateSession(image="python", resources=resources, max_wait_s=5))
    assert reply.status == "RUNNING"


@pytest.mark.parametrize("slot_type", ["count", "unique"])
async def test_devices_that_contradict_each_other_keep_nobody_from_sound_agents(
    cluster: Cluster, agent: FakeAgent, slot_type: str
) -> None:
    other = await cluster.join(FakeAgent(agent_id="agent-0"))  # it is looked at first
    report = other.report(number=0)
    devices = [
        {**device, "slots": [{**each, "slot_type": slot_type} for each in device["slots"]]} for device in report.devices
    ]
    plugin = PluginReport(name="mock", version="1", alloc_map={"kind": "discrete" if slot_type == "unique" else "?"})
    assert cluster.manager.reports is not None
    await cluster.manager.reports.heartbeat(replace(report, devices=devices, plugins=[plugin]))
    resources = {"mock.device": 2}
    sessions = cluster.manager.services.sessions
    reply = await sessions.create(cluster.user, CreateSession(image="python", resources=resources, max_wait_s=5))
    assert (reply.status, reply.session.main.agent) == ("RUNNING", agent.agent_id)
