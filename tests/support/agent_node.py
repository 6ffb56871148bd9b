"""An agent in a process of its own, which can be killed, and its manager."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.link import AgentCommands
from ai.backend.common.wire.reports import KernelObservation
from ai.backend.infra.rpc.data.server import DataServer
from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, generate_keypair
from ai.backend.infra.rpc.zmq.manager import ZmqManagerEndpoint
from tests.support.agent_fakes import FakeManager
from tests.support.forked import ForkedPopen

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
START = "from tests.support.warm_hosts import prepare; prepare(); from ai.backend.agent.main import main; main()"


class Node:
    """An agent process and its manager. ``start(crash_at=...)`` makes it kill itself there.

    ``settings`` are lines of TOML after those of every test.
    """

    def __init__(self, directory: Path, *, node: str = "", lifecycles: str = "", settings: str = "") -> None:
        self.data_dir = directory / "data"
        self.manager = FakeManager()
        self._config = directory / "agent.toml"
        self._log = directory / "agent.log"
        manager_keys, keys = generate_keypair(), generate_keypair(directory / "agent.key")
        bound = AgentKeyDirectory(directory / "agents")
        bound.allow("i-test", keys.public)
        address = f"ipc://{directory}/manager.sock"
        self.data = DataServer(path=directory / "link" / "data.sock")
        self._endpoint = ZmqManagerEndpoint(
            bind=address, keypair=manager_keys, agent_keys=bound, lost_after_s=3.0, data=self.data
        )
        self._config.write_text(
            f"""
            [agent]
            id = "i-test"
            data-dir = "{self.data_dir}"
            {node}
            [link]
            manager-addr = "{address}"
            manager-key = "{manager_keys.public}"
            keypair-file = "{directory}/agent.key"
            [intervals]
            heartbeat = 0.2
            sync = 0.5
            [kernel-lifecycles]
            stop-grace = 0.5
            {lifecycles}
            {settings}
            """
        )
        self.process: ForkedPopen | None = None

    @property
    def commands(self) -> AgentCommands:
        return self._endpoint.agent("i-test")

    async def open(self) -> None:
        await self._endpoint.start(self.manager)

    async def start(self, *, crash_at: str = "") -> None:
        with self._log.open("ab") as log:
            self.process = ForkedPopen(
                [sys.executable, "-c", START, "start-server", "-f", self._config],
                env={**os.environ, "BACKENDAI_CRASH_POINT": crash_at, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )

    async def has_died(self) -> None:
        assert self.process is not None
        async with asyncio.timeout(30):
            assert await self.process.ended() == -signal.SIGKILL, self._log.read_text()[-3000:]

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call as the manager does: again while nobody is there."""
        async with asyncio.timeout(30):
            while True:
                try:
                    return await call()
                except Unavailable:
                    await asyncio.sleep(0.05)

    async def give_one(self, call: Callable[[], Awaitable[object]]) -> None:
        """One command, whose answer may die with the agent."""
        with suppress(BackendError):
            await call()

    async def until(self, kernel_id: str, attempt: int, *statuses: KernelStatus) -> KernelObservation:
        def is_it(o: KernelObservation) -> bool:
            return (o.kernel_id, o.attempt) == (kernel_id, attempt) and o.status in statuses

        found: KernelObservation = await self.manager.wait_for(is_it, timeout_s=30)
        return found

    async def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            await self.process.ended()
        await self._endpoint.stop()
