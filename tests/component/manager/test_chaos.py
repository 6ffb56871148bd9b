"""Many users at once on agents that refuse, flap and lose their reports: afterwards nothing is held and nothing
lives."""

from __future__ import annotations

import asyncio
import random

import pytest

from ai.backend.common.errors import BackendError, CreationDeferred, CreationDenied
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.manager.sessions.model import CreateSession
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_left_after_chaos(cluster: Cluster, seed: int) -> None:
    dice = random.Random(seed)
    sessions = cluster.manager.services.sessions

    def refuse(_: KernelSpec) -> BackendError | None:
        roll = dice.random()
        return (
            CreationDeferred("later", retry_after=0.01) if roll < 0.2 else CreationDenied("no") if roll < 0.25 else None
        )

    agents = [FakeAgent(agent_id=f"agent-{i}", refuse=refuse) for i in range(3)]
    for agent in agents:
        await cluster.join(agent)

    async def user() -> None:
        for _ in range(5):
            reply = await sessions.create(
                cluster.user,
                CreateSession(
                    image="python",
                    max_wait_s=0.01 + dice.random() / 2,
                    cluster_size=dice.choice([1, 1, 2]),
                    resources={"cpu": dice.choice([1, 2]), "mock.device": dice.choice([0, 1])},
                ),
            )
            await asyncio.sleep(dice.random() / 20)
            await sessions.destroy(cluster.user, str(reply.session.id), forced=dice.random() < 0.3)

    async def flap() -> None:
        while True:
            await asyncio.sleep(dice.random() / 4)
            agent = dice.choice(agents)
            await cluster.leave(agent)
            await asyncio.sleep(dice.random() / 10)
            await cluster.link.agent_endpoint(agent.agent_id).start(agent)
            await agent.beat()

    flapping = asyncio.create_task(flap())
    await asyncio.gather(*(user() for _ in range(8)))
    flapping.cancel()
    for agent in agents:
        await cluster.link.agent_endpoint(agent.agent_id).start(agent)
    for _ in range(100):
        for agent in agents:
            await agent.beat()
        if await sessions.count_active() == 0 and not any(a.kernels for a in agents):
            break
        await asyncio.sleep(0.1)
    assert await sessions.count_active() == 0
    assert (await cluster.manager.stores.sessions.audit()).is_clean
    assert [a.kernels for a in agents] == [{}, {}, {}]
    for agent in agents:
        await agent.close()
