"""An agent on a fake runtime, with its files in a temporary directory."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from ai.backend.agent.composition import Agent, this_host
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.directory.directory import RecordDatabase
from ai.backend.common.states import KernelStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import CreateKernels, KernelSpec
from ai.backend.common.wire.reports import KernelObservation
from ai.backend.plugin.discovery import PluginSource
from tests.support.agent_fakes import FakeManager, FakePlugin, FakeRuntime, fake_plugin

PLANES = ("embedded", pytest.param("haproxy", marks=pytest.mark.needs("haproxy")))


def _same(plugin: type[FakePlugin]) -> type[FakePlugin]:
    return plugin


def read_records(data_dir: Path, table: str) -> dict[str, bytes]:
    """The records that an agent with this data directory has written, also while it runs."""
    database = RecordDatabase(data_dir / "records.db")
    database.open()
    try:
        return database.table(table).items()
    finally:
        database.close()


class Bench:
    """The node of a test with its agents; ``agent()`` makes another one on the same node, whose wall clock is
    ``wall_clock`` as that is at each look."""

    gateway_plane = "embedded"

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.runtime = FakeRuntime()
        self.manager = FakeManager()
        self.plugins: list[type[FakePlugin]] = [fake_plugin("cpu")]
        self.options: dict[str, Any] = {}
        self.wall_clock: Callable[[], float] = time.time
        self.agents: list[Agent] = []
        """The agents that are stopped with the bench."""

    def settings(self) -> AgentSettings:
        raw: dict[str, Any] = {
            "agent": {"id": "i-test", "data-dir": str(self.data_dir)},
            "kernel-lifecycles": {"ready-timeout": 1.0, "plugin-timeout": 1.0, "stop-grace": 0.0},
            "intervals": {"sync": 0.05, "statistics": 0.05, "heartbeat": 0.05},
            "gateway": {"plane": self.gateway_plane},
        }
        for table, values in self.options.items():
            raw[table] = {**raw.get(table, {}), **values}
        return AgentSettings.model_validate(raw)

    def _now(self) -> float:
        return self.wall_clock()

    def agent(self) -> Agent:
        sources = [PluginSource(plugin.key, partial(_same, plugin)) for plugin in self.plugins]
        host = replace(this_host(self.settings()), wall_clock=self._now)
        agent = Agent(self.settings(), self.runtime, self.manager, plugins=sources, host=host)
        self.agents.append(agent)
        return agent

    async def start(self) -> Agent:
        agent = self.agent()
        await agent.start()
        return agent

    @staticmethod
    def spec(**changes: Any) -> KernelSpec:
        fields: dict[str, Any] = {
            "kernel_id": str(uuid4()),
            "session_id": str(uuid4()),
            "attempt": 1,
            "session_name": "test-session",
            "session_type": SessionType.INTERACTIVE,
            "image": "python",
            "architecture": "x86_64",
            "access_key": "AK",
            "user_id": str(uuid4()),
            "user_email": "user@example.com",
            "slots": {"cpu": "1"},
        }
        return KernelSpec(**{**fields, **changes})

    async def run(self, agent: Agent, **changes: Any) -> KernelSpec:
        """Create a kernel and wait until it runs."""
        spec = self.spec(**changes)
        await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
        await self.until(spec, KernelStatus.RUNNING)
        return spec

    async def until(self, spec: KernelSpec, status: KernelStatus) -> KernelObservation:
        def is_it(o: KernelObservation) -> bool:
            return (o.kernel_id, o.attempt, o.status) == (spec.kernel_id, spec.attempt, status)

        found: KernelObservation = await self.manager.wait_for(is_it)
        return found

    def statuses(self, spec: KernelSpec) -> list[KernelStatus]:
        return [o.status for o in self.manager.observations if o.kernel_id == spec.kernel_id]

    async def close(self) -> None:
        for agent in self.agents:
            await agent.stop()


@pytest.fixture(params=PLANES)
def plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The plane of the service gateways of a test, which runs once for each."""
    kind: str = request.param
    monkeypatch.setattr(Bench, "gateway_plane", kind)
    return kind


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path / "agent")
    yield made
    await made.close()


@pytest.fixture
def spec_of() -> Callable[..., KernelSpec]:
    return Bench.spec
