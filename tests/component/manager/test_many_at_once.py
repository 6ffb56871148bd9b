"""A thousand submitters at once, and an agent that reports ten thousand images and devices."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select

from ai.backend.common.errors import BackendError
from ai.backend.common.wire.reports import ImageReport
from ai.backend.manager.sessions import tables as sessions_tables
from ai.backend.manager.sessions.model import CreateSession
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent

SUBMITTERS = 1_000
MANY = 10_000


@pytest.mark.timeout(300)
async def test_a_thousand_submitters_at_once_get_a_session_each_or_a_reason(cluster: Cluster, agent: FakeAgent) -> None:
    sessions = cluster.manager.services.sessions

    async def submit(number: int) -> str | BackendError:
        request = CreateSession(image="python", enqueue_only=True, name=f"one-of-many-{number}")
        try:
            return str((await sessions.create(cluster.user, request)).session.id)
        except BackendError as e:
            return e

    answers = await asyncio.gather(*(submit(number) for number in range(SUBMITTERS)))
    accepted = [answer for answer in answers if isinstance(answer, str)]
    assert accepted
    assert all("\n" not in str(answer) for answer in answers), "one line that says why"
    rows = await cluster.database.fetch(select(sessions_tables.sessions.c.id))
    assert sorted(str(row.id) for row in rows) == sorted(accepted), (
        "nothing acknowledged is lost, nothing refused is stored"
    )


@pytest.mark.timeout(300)
async def test_an_agent_that_reports_ten_thousand_images_and_devices_is_used_as_any(
    cluster: Cluster, agent: FakeAgent
) -> None:
    agent.images += [
        ImageReport(name=f"registry.example/image:{number}", architecture="x86_64", labels={}) for number in range(MANY)
    ]
    agent.slots["mock.device"] = str(MANY)
    agent.epoch += 1
    for resources in ({"cpu": "1"}, {"cpu": "1", "mock.device": "1"}):
        await agent.beat()
        request = CreateSession(image="python", max_wait_s=60, resources=resources)
        reply = await cluster.manager.services.sessions.create(cluster.user, request)
        assert reply.status == "RUNNING"
