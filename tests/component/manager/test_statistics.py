"""What agents report of their kernels, kept by the manager."""

from __future__ import annotations

import msgspec

from ai.backend.common.wire.reports import StatReport
from ai.backend.infra.bus import Bus
from ai.backend.manager.composition.manager import Manager
from tests.component.manager.conftest import SETTINGS, Cluster
from tests.component.manager.fakes import FakeAgent
from tests.component.manager.test_creation import request

STAT = {"mem": {"current": "5", "capacity": None, "pct": "0.00", "unit_hint": "bytes"}}
RAW = msgspec.Raw(msgspec.msgpack.encode(STAT))


async def test_a_manager_that_was_restarted_takes_statistics_at_once(cluster: Cluster, agent: FakeAgent) -> None:
    session = (await cluster.manager.services.sessions.create(cluster.user, request(name="mine"))).session
    fresh = Manager(SETTINGS, cluster.database, Bus(), cluster.link.manager)
    report = StatReport(agent_id=agent.agent_id, at=1.0, kernels={str(session.main.id): RAW, "nonsense": RAW})
    await fresh.reports.report_stats(report)
    assert (await fresh.services.sessions.get(cluster.user, "mine")).main.live_stat == STAT


async def test_an_agent_speaks_for_its_own_kernels_alone(cluster: Cluster, agent: FakeAgent) -> None:
    session = (await cluster.manager.services.sessions.create(cluster.user, request(name="mine"))).session
    await cluster.manager.reports.report_stats(
        StatReport(agent_id="somebody-else", at=1.0, kernels={str(session.main.id): RAW})
    )
    assert (await cluster.manager.services.sessions.get(cluster.user, "mine")).main.live_stat is None


async def test_nothing_is_kept_of_a_session_that_has_ended(cluster: Cluster, agent: FakeAgent) -> None:
    sessions, board = cluster.manager.services.sessions, cluster.manager.services.stats
    session = (await sessions.create(cluster.user, request(name="mine"))).session
    report = StatReport(agent_id=agent.agent_id, at=1.0, kernels={str(session.main.id): RAW})
    await cluster.manager.reports.report_stats(report)
    assert board.kernel_statistics(session.main.id) == STAT
    await sessions.destroy(cluster.user, "mine")
    await cluster.manager.reports.report_stats(report)
    assert board.kernel_statistics(session.main.id) is None


async def test_what_cannot_be_read_is_nothing(cluster: Cluster, agent: FakeAgent) -> None:
    session = (await cluster.manager.services.sessions.create(cluster.user, request(name="mine"))).session
    kernels = {str(session.main.id): msgspec.Raw(msgspec.msgpack.encode("no metrics"))}
    await cluster.manager.reports.report_stats(StatReport(agent_id=agent.agent_id, at=1.0, kernels=kernels))
    assert (await cluster.manager.services.sessions.get(cluster.user, "mine")).main.live_stat is None
    await cluster.manager.services.stats.flush()
