"""Plugins that deny, defer and overrun, from a user's request through manager and agent and back to the user."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest_asyncio

from ai.backend.agent.composition import Agent
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import CreationDeferred, CreationDenied
from ai.backend.common.states import KernelStatus, SessionStatus
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.sessions.model import CreateSession, Session
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.plugin.accelerator import TerminationDeferred
from ai.backend.plugin.discovery import PluginSource
from tests.component.manager.conftest import start_manager
from tests.support.agent_fakes import FakePlugin, FakeRuntime, fake_plugin

S = SessionStatus


class Cluster:
    """A manager on SQLite and agents on fake runtimes, joined in memory."""

    def __init__(self, manager: Manager, link: MemoryLink, user: Caller, directory: Path) -> None:
        self.manager = manager
        self.user = user
        self._link = link
        self._directory = directory
        self._agents: list[Agent] = []
        self.runtimes: list[FakeRuntime] = []

    async def join(self, name: str, *plugins: type[FakePlugin], **lifecycles: Any) -> None:
        raw = {
            "agent": {"id": name, "data-dir": str(self._directory / name)},
            "kernel-lifecycles": {"stop-grace": 0.0, "plugin-timeout": 1.0, **lifecycles},
            "intervals": {"heartbeat": 0.05},
        }
        endpoint = self._link.agent_endpoint(name)
        sources = [PluginSource(plugin.key, partial(_itself, plugin)) for plugin in plugins]
        self.runtimes.append(FakeRuntime())
        settings = AgentSettings.model_validate(raw)
        agent = Agent(settings, self.runtimes[-1], endpoint.reports, plugins=sources)
        self._agents.append(agent)
        await agent.start()
        await endpoint.start(agent.commands)

    async def create(self, slot: str, size: int = 1) -> Session:
        async with asyncio.timeout(30):
            while len(self.manager.registry.registered) < len(self._agents):  # noqa: ASYNC110  # a book has no event
                await asyncio.sleep(0.02)
        request = CreateSession(
            image="python", resources={"cpu": "1", "mem": "1", slot: "1"}, enqueue_only=True, cluster_size=size
        )
        return (await self.manager.services.sessions.create(self.user, request)).session

    async def until(self, session: Session, *statuses: SessionStatus) -> Session:
        found = await self.manager.services.writer.wait_until(session.id, lambda s: s.status in statuses, timeout_s=45)
        assert found is not None, f"not {statuses}"
        return found

    async def close(self) -> None:
        for agent in self._agents:
            await agent.stop()


def _itself(plugin: type[FakePlugin]) -> type[FakePlugin]:
    return plugin


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    link = MemoryLink()
    settings = ManagerSettings(sessions=SessionSettings(retry_backoff_s=0.05, destroy_wait_s=5.0))
    manager, database = await start_manager(tmp_path / "manager.db", link, settings)
    made = await manager.bootstrap.run()
    assert made.user is not None
    user = await manager.services.identity.credentials(made.user.access_key)
    assert user is not None
    cluster = Cluster(manager, link, user.caller, tmp_path)
    yield cluster
    await cluster.close()
    await link.manager.stop()
    await manager.stop()
    await database.close()


def intrinsic() -> tuple[type[FakePlugin], type[FakePlugin]]:
    return fake_plugin("cpu"), fake_plugin("mem")


async def test_a_denial_reaches_the_user_and_is_not_tried_again(cluster: Cluster) -> None:
    gpu = fake_plugin("gpu", hook_errors={"pre_create": CreationDenied("the licence server says no")})
    await cluster.join("i-1", *intrinsic(), gpu)
    failed = await cluster.until(await cluster.create("gpu"), S.ERROR)
    assert failed.status_info == "creation-denied"
    assert failed.status_data["error"]["message"] == "the licence server says no"
    assert failed.main.attempt == 1
    assert gpu.journal == ["gpu.pre_create", "gpu.post_terminate"]
    assert (await cluster.manager.stores.sessions.audit()).is_clean


async def test_one_deferral_sends_the_whole_session_back(cluster: Cluster) -> None:
    gpu = fake_plugin("gpu", hook_errors={"pre_create": CreationDeferred("the fabric is busy", retry_after=0.7)})
    await cluster.join("i-1", *intrinsic(), gpu)
    begin = time.monotonic()
    session = await cluster.create("gpu", size=2)
    back = await cluster.manager.services.writer.wait_until(
        session.id, lambda s: s.status is S.PENDING and s.main.attempt > 0, timeout_s=15
    )
    assert back is not None
    assert back.status_data["error"]["message"] == "the fabric is busy"
    assert {kernel.status for kernel in back.kernels} == {KernelStatus.PENDING}
    gpu.hook_errors.clear()
    running = await cluster.until(session, S.RUNNING)
    assert time.monotonic() - begin >= 0.7
    assert min(kernel.attempt for kernel in running.kernels) >= 2
    assert len(cluster.runtimes[0].specs) == 2
    assert (await cluster.manager.stores.sessions.audit()).is_clean


async def test_deferring_for_ever_ends_with_the_last_reason(cluster: Cluster) -> None:
    gpu = fake_plugin("gpu", hook_errors={"pre_create": CreationDeferred("the fabric is busy", retry_after=0.01)})
    await cluster.join("i-1", *intrinsic(), gpu)
    failed = await cluster.until(await cluster.create("gpu"), S.ERROR)
    assert failed.status_info == "creation-deferred"
    assert failed.status_data["error"]["message"] == "the fabric is busy"
    assert gpu.journal == ["gpu.pre_create", "gpu.post_terminate"] * 5


async def test_an_overrun_is_found_with_the_kernel(cluster: Cluster) -> None:
    gpu = fake_plugin("gpu", hook_errors={"pre_terminate": TerminationDeferred("flushing", retry_after=0.05)})
    await cluster.join("i-1", *intrinsic(), gpu, **{"termination-deferral": 0.2})
    session = await cluster.until(await cluster.create("gpu"), S.RUNNING)
    await cluster.manager.services.sessions.destroy(cluster.user, str(session.id), forced=False)
    ended = await cluster.until(session, S.TERMINATED)
    told = ended.main.status_data["hooks"]["gpu.pre_terminate"]
    assert (told["state"], told["message"]) == ("overrun", "flushing")
    assert "error" not in ended.status_data
