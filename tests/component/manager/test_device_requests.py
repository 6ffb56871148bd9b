"""Sessions that ask for devices by expressions, from the request to the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.common.states import SessionStatus
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.sessions.model import CreateSession
from tests.component.manager.conftest import SETTINGS, Cluster, start_manager
from tests.component.manager.test_variants import GpuAgent, waits_for


def request(*device_requests: str, **values: Any) -> CreateSession:
    given = {"resources": {"cuda.device": 1}, "max_wait_s": 10, **values}
    return CreateSession(image="python", device_requests=device_requests, **given)


@pytest.fixture
async def old(cluster: Cluster) -> GpuAgent:
    agent = GpuAgent(agent_id="i-01", gpus=[("8.0", "A100"), ("8.0", "A100")])
    await cluster.join(agent)
    return agent


async def test_alternatives_go_from_the_request_to_the_agent(cluster: Cluster, old: GpuAgent, tmp_path: Path) -> None:
    sessions = cluster.manager.services.sessions
    alternatives = ('model == "H100"', 'model == "A100" && compute_capability >= 8.0')
    session = (await sessions.create(cluster.user, request(*alternatives))).session
    assert (session.status, session.main.agent) == (SessionStatus.RUNNING, "i-01")
    (spec,) = old.created
    assert spec.device_requests == list(alternatives)
    await cluster.join(GpuAgent(agent_id="i-02", gpus=[("9.0", "H100")]))
    session = (await sessions.create(cluster.user, request(*alternatives))).session
    assert session.main.agent == "i-02", "the first alternative is there now"
    manager, database = await start_manager(tmp_path / "manager.db", MemoryLink(), SETTINGS)
    read = await manager.services.sessions.get(cluster.user, str(session.id))
    assert read.device_requests == alternatives
    await manager.stop()
    await database.close()


async def test_the_wait_says_how_many_devices_there_are(cluster: Cluster, old: GpuAgent) -> None:
    sessions = cluster.manager.services.sessions
    await sessions.create(cluster.user, request("compute_capability >= 8.0", resources={"cuda.device": 2}))
    waiting = await sessions.create(cluster.user, request("compute_capability >= 8.0", max_wait_s=0.3))
    reason, message = waits_for(await sessions.get(cluster.user, str(waiting.session.id)))
    assert reason == "insufficient-resource"
    assert message.endswith("2 of 2 devices have compute_capability >= 8.0, none of them is free")


@pytest.mark.parametrize(
    ("device_requests", "problem"),
    [
        (("memory >=",), "the expression ends too early at column 10"),
        (("memory >= 1g", "open('/etc')"), "alternative 2: there is no function open"),
        (("memory >= 1g\n",), "does not print at column 13"),
        (("(" * 2048,), "ends too early at column 2049"),
        (tuple(f"units >= {n}" for n in range(9)), "8 alternative device requests at most"),
    ],
)
async def test_a_malformed_request_names_field_and_column(
    cluster: Cluster, old: GpuAgent, device_requests: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await cluster.manager.services.sessions.create(cluster.user, request(*device_requests))
    assert "config.device_requests" in caught.value.data
    assert problem in caught.value.message
    assert caught.value.message.isprintable()


async def test_a_request_without_an_accelerator_is_refused(cluster: Cluster, old: GpuAgent) -> None:
    with pytest.raises(InvalidInput, match="concern accelerators"):
        await cluster.manager.services.sessions.create(
            cluster.user, request("memory >= 1g", resources={"cpu": 1, "mem": "1g"})
        )
