"""Idle sessions end with their reason, and a new manager knows what the old one knew."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec

from ai.backend.common.states import RunMode, SessionStatus
from ai.backend.common.wire.reports import StatReport
from ai.backend.manager.execution.service import RunRequest
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import SETTINGS, Cluster, start_manager
from tests.component.manager.fakes import FakeAgent

POLICY = "default"
ENDING = (SessionStatus.TERMINATING, SessionStatus.TERMINATED)


async def start(cluster: Cluster, name: str) -> Session:
    reply = await cluster.manager.services.sessions.create(
        cluster.user, CreateSession(image="python", name=name, resources={"cpu": 1, "mem": "256m"})
    )
    assert reply.status == "RUNNING"
    return reply.session


async def limit(cluster: Cluster, **values: int) -> None:
    await cluster.manager.services.tenants.modify_policy(cluster.admin, None, POLICY, values)


async def checks(cluster: Cluster, session: Session) -> dict[str, object]:
    fresh = await cluster.manager.services.sessions.get(cluster.user, str(session.id))
    return dict((await cluster.manager.services.idle.reports([fresh])).get(session.id, {}))


async def judge(cluster: Cluster, session: Session, at: float) -> Session:
    """The session after a judgement ``at`` seconds after the beginning of the test."""
    cluster.clock.set_forward = at
    await cluster.manager.loops.idle.once()
    return await cluster.manager.services.sessions.get(cluster.user, str(session.id))


async def accessed(cluster: Cluster, session: Session) -> datetime | None:
    kept = await cluster.manager.stores.activities.activities([session.id])
    return kept[session.id].last_access if session.id in kept else None


async def test_a_quiet_session_ends_also_under_the_next_manager(
    cluster: Cluster, agent: FakeAgent, tmp_path: Path
) -> None:
    await limit(cluster, idle_timeout=600)
    session = await start(cluster, "quiet")
    assert (await judge(cluster, session, 500)).status is SessionStatus.RUNNING
    await cluster.manager.services.execution.execute(cluster.user, "quiet", RunRequest(mode=RunMode.QUERY, code="1+1"))
    told = (await checks(cluster, session))["network_timeout"]
    assert isinstance(told, dict)
    assert 580 <= told["remaining"] <= 600
    assert told["remaining_time_type"] == "expire_after"
    await cluster.manager.services.activity.flush()
    noted = await accessed(cluster, session)
    assert noted is not None

    # a second manager on the same database knows no more than is stored
    other, database = await start_manager(tmp_path / "manager.db", cluster.link, SETTINGS, cluster.clock)
    try:
        mine, cluster.manager = cluster.manager, other
        assert (await judge(cluster, session, 1000)).status is SessionStatus.RUNNING
        assert (await judge(cluster, session, 1200)).status in ENDING
        events = await other.stores.sessions.events_after(0)
        assert [e.payload["reason"] for e in events if e.name == "session_terminating"] == ["idle-timeout"]
    finally:
        cluster.manager = mine
        await other.stop()
        await database.close()


async def test_a_lifetime_ends_whoever_is_busy(cluster: Cluster, agent: FakeAgent) -> None:
    await limit(cluster, max_session_lifetime=3600)
    session = await start(cluster, "aged")
    assert (await judge(cluster, session, 3500)).status is SessionStatus.RUNNING
    cluster.manager.services.activity.touch(session.id)
    ended = await judge(cluster, session, 3700)
    assert ended.status in ENDING
    assert ended.reason == "idle-session-lifetime"


async def test_who_uses_too_little_of_what_they_have_ends(cluster: Cluster, agent: FakeAgent) -> None:
    manager = cluster.manager
    values = {"enabled": "utilization", "checkers": {"utilization": {"time-window": "10m"}}}
    thresholds = {"cpu_util": {"average": "30"}, "mem": {"average": "20"}}
    values["checkers"]["utilization"] |= {  # type: ignore[index]  # as the API takes it
        "resource-thresholds": thresholds,
        "thresholds-check-operator": "and",
        "initial-grace-period": "60s",
    }
    await manager.services.config.set(cluster.admin, "config/idle", values)
    idle, busy = await start(cluster, "lazy"), await start(cluster, "busy")

    async def use(at: float) -> None:
        def metrics(cpu: str) -> msgspec.Raw:
            told = {
                "cpu_util": {"current": cpu, "capacity": "100", "pct": "0", "unit_hint": "percent"},
                "mem": {"current": "1", "capacity": "100", "pct": "1", "unit_hint": "bytes"},
            }
            return msgspec.Raw(msgspec.msgpack.encode(told))

        kernels = {str(idle.main.id): metrics("2"), str(busy.main.id): metrics("80")}
        await manager.reports.report_stats(StatReport(agent_id=agent.agent_id, at=at, kernels=kernels))

    await use(0)
    await judge(cluster, idle, 30)
    young = (await checks(cluster, idle))["utilization"]
    assert isinstance(young, dict)
    assert young["remaining_time_type"] == "grace_period"
    for at in range(40, 500, 10):
        assert (await judge(cluster, idle, at)).status is SessionStatus.RUNNING, at
        if at == 300:  # as the next manager finds it
            await manager.services.idle.put_usage(manager.loops.idle._windows)
            manager.loops.idle._windows = {}
    ended = idle
    for at in range(500, 660, 10):
        ended = await judge(cluster, idle, at)
    assert ended.status in ENDING
    assert ended.reason == "idle-utilization"
    assert (await judge(cluster, busy, 660)).status is SessionStatus.RUNNING
    told = (await checks(cluster, busy)).get("utilization")
    assert isinstance(told, dict)
    assert told["extra"]["resources"]["cpu_util"][1] == 30
