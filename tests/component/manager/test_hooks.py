"""What the hooks of plugins say, as the manager takes it: deferrals, denials after a while, troubles."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from ai.backend.common.states import KernelEventReason, KernelStatus, SessionStatus
from ai.backend.common.wire.reports import HookTrouble
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent

S, R = SessionStatus, KernelEventReason
DEFERRED = {"reason": R.CREATION_DEFERRED, "message": "the partition is still in use"}


async def _until(cluster: Cluster, session: Session, *statuses: SessionStatus) -> Session:
    reached = await cluster.manager.services.writer.wait_until(session.id, lambda s: s.status in statuses, timeout_s=8)
    assert reached is not None, f"not {statuses}"
    return reached


async def _begun(cluster: Cluster, agent: FakeAgent, size: int = 1) -> Session:
    agent.stall = True
    request = CreateSession(image="python", enqueue_only=True, cluster_size=size)
    queued = await cluster.manager.services.sessions.create(cluster.user, request)
    return await _until(cluster, queued.session, S.PREPARING)


async def test_a_session_waits_as_long_as_the_plugin_says(cluster: Cluster, agent: FakeAgent) -> None:
    session = await _begun(cluster, agent, size=2)
    first, second = session.kernels
    before = time.monotonic()
    await agent.tell(str(second.id), 1, KernelStatus.PENDING, retry_after_s=0.8, **DEFERRED)
    waiting = await _until(cluster, session, S.PENDING)
    assert all(kernel.status is KernelStatus.PENDING and not kernel.occupied_slots for kernel in waiting.kernels)
    assert waiting.status_data["error"]["message"] == DEFERRED["message"]
    assert waiting.not_before is not None
    again = await _until(cluster, session, S.PREPARING)
    assert time.monotonic() - before >= 0.8
    assert [kernel.attempt for kernel in again.kernels] == [2, 2]
    forced = [request for request in agent.destroyed if request.kernel_id == str(first.id)]
    assert [(request.attempt, request.forced) for request in forced] == [(1, True)]


@pytest.mark.parametrize("asked", [1e12, float("inf")])
async def test_nobody_waits_for_ever(cluster: Cluster, agent: FakeAgent, asked: float) -> None:
    session = await _begun(cluster, agent)
    await agent.tell(str(session.main.id), 1, KernelStatus.PENDING, retry_after_s=asked, **DEFERRED)
    waiting = await _until(cluster, session, S.PENDING)
    assert waiting.not_before is not None
    assert waiting.not_before - waiting.status_changed <= timedelta(hours=1)


async def test_after_the_last_deferral_the_last_reason_counts(cluster: Cluster, agent: FakeAgent) -> None:
    session = await _begun(cluster, agent)
    for attempt in range(1, 6):
        told = {**DEFERRED, "message": f"busy, {attempt}"}
        await agent.tell(str(session.main.id), attempt, KernelStatus.PENDING, retry_after_s=0.0, **told)
        if attempt < 5:
            async with asyncio.timeout(20):
                while len(agent.created) <= attempt:  # noqa: ASYNC110  # the fake has no event
                    await asyncio.sleep(0.02)
            assert agent.created[-1].relocated_from is None
    failed = await _until(cluster, session, S.ERROR)
    assert failed.status_info == "creation-deferred"
    assert failed.status_data["error"]["message"] == "busy, 5"
    assert (await cluster.manager.stores.sessions.audit()).is_clean


async def test_the_next_agent_hears_where_the_kernel_was(cluster: Cluster, agent: FakeAgent) -> None:
    session = await _begun(cluster, agent)
    await cluster.leave(agent)
    other = FakeAgent(agent_id="agent-2")
    await cluster.join(other)
    cluster.hush(agent)
    await cluster.manager.loops.watchdog.once()
    await _until(cluster, session, S.RUNNING)
    assert [(spec.attempt, spec.relocated_from) for spec in other.created] == [(2, "agent-1")]
    await other.close()


async def test_a_deferral_that_comes_too_late_is_an_end(cluster: Cluster, agent: FakeAgent) -> None:
    session = await _begun(cluster, agent)
    agent.deaf = True
    await cluster.manager.services.sessions.destroy(cluster.user, str(session.id), forced=False)
    await agent.tell(str(session.main.id), 1, KernelStatus.PENDING, **DEFERRED)
    assert (await _until(cluster, session, S.TERMINATED)).main.status is KernelStatus.TERMINATED


async def test_troubles_are_kept_with_the_kernel_also_after_its_end(cluster: Cluster, agent: FakeAgent) -> None:
    reply = await cluster.manager.services.sessions.create(cluster.user, CreateSession(image="python"))
    kernel_id = str(reply.session.main.id)
    trouble = HookTrouble(plugin="mock", method="post_terminate", state="retrying", message="busy", since=5.0)
    await agent.tell(kernel_id, 1, KernelStatus.TERMINATED, hook_troubles=[trouble])
    ended = await _until(cluster, reply.session, S.TERMINATED)
    assert ended.main.status_data["hooks"]["mock.post_terminate"] == {
        "state": "retrying",
        "message": "busy",
        "since": 5.0,
    }
    done = HookTrouble(plugin="mock", method="post_terminate", state="done", message="ok", since=5.0)
    await agent.tell(kernel_id, 1, KernelStatus.TERMINATING, hook_troubles=[done])
    kept = await cluster.manager.services.sessions.get(cluster.user, kernel_id)
    assert kept.status is S.TERMINATED
    assert kept.main.status_data["hooks"]["mock.post_terminate"]["state"] == "done"
