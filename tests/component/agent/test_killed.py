"""An agent in a process of its own, killed with SIGKILL at every point of a kernel's life, and what is left then."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from ai.backend.agent.services.crash_points import CRASH_POINTS
from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.states import KernelEventReason, KernelStatus, RunMode
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, Execute, KernelSpec, RestartKernel, RunResult
from ai.backend.common.wire.link import AgentCommands
from ai.backend.infra.rpc.keys import AgentKeyDirectory, generate_keypair
from ai.backend.infra.rpc.zmq_manager import ZmqManagerEndpoint
from tests.component.agent.conftest import Bench
from tests.support.agent_fakes import FakeManager
from tests.support.audit import leftovers

S = KernelStatus
CREATE = [point for point in CRASH_POINTS if point.startswith("create.")]
DESTROY = [point for point in CRASH_POINTS if point.startswith("destroy.")]
RESTART = [point for point in CRASH_POINTS if point.startswith("restart.")]
START = "from ai.backend.agent.main import main; main()"


class Node:
    """An agent process and its manager. ``start(crash_at=...)`` makes it kill itself there."""

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        self.manager = FakeManager()
        self._config = directory / "agent.toml"
        self._log = directory / "agent.log"
        manager_keys, keys = generate_keypair(), generate_keypair(directory / "agent.key")
        bound = AgentKeyDirectory(directory / "agents")
        bound.allow("i-test", keys.public)
        address = f"ipc://{directory}/manager.sock"
        self._endpoint = ZmqManagerEndpoint(bind=address, keypair=manager_keys, agent_keys=bound, lost_after_s=3.0)
        self._config.write_text(
            f"""
            [agent]
            id = "i-test"
            data-dir = "{self.data_dir}"
            [link]
            manager-addr = "{address}"
            manager-key = "{manager_keys.public}"
            keypair-file = "{directory}/agent.key"
            [intervals]
            heartbeat = 0.2
            sync = 0.5
            [kernel-lifecycles]
            stop-grace = 0.5
            """
        )
        self.process: asyncio.subprocess.Process | None = None

    @property
    def commands(self) -> AgentCommands:
        return self._endpoint.agent("i-test")

    async def open(self) -> None:
        await self._endpoint.start(self.manager)

    async def start(self, *, crash_at: str = "") -> None:
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                START,
                "start-server",
                "-f",
                str(self._config),
                env={**os.environ, "BACKENDAI_CRASH_POINT": crash_at},
                stdout=log,
                stderr=log,
            )

    async def has_died(self) -> None:
        assert self.process is not None
        async with asyncio.timeout(30):
            assert await self.process.wait() == -signal.SIGKILL, self._log.read_text()[-3000:]

    async def insist(self, call: Callable[[], Awaitable[object]]) -> object:
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

    async def until(self, kernel_id: str, attempt: int, status: KernelStatus) -> None:
        await self.manager.wait_for(
            lambda o: (o.kernel_id, o.attempt, o.status) == (kernel_id, attempt, status), timeout_s=30
        )

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            await self.process.wait()
        await self._endpoint.stop()


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.open()
    yield made
    await made.close()


async def _spec(node: Node) -> KernelSpec:
    await node.manager.next_heartbeat()
    image = next(i.name for i in node.manager.heartbeats[-1].images if "python" in i.name)
    return Bench.spec(image=image, slots={"cpu": "1", "mem": str(256 * 1024 * 1024)})


async def _works(node: Node, spec: KernelSpec) -> None:
    step = Execute(
        kernel_id=spec.kernel_id, run_id="r", mode=RunMode.QUERY, code="print('alive')", flush_timeout_s=10.0
    )

    async def execute() -> RunResult:
        return await node.commands.execute(step)

    result = await node.insist(execute)
    assert isinstance(result, RunResult)
    assert result.console == [["stdout", "alive\n"]]


async def _end(node: Node, spec: KernelSpec, attempt: int = 1) -> None:
    destroy = DestroyKernel(kernel_id=spec.kernel_id, attempt=attempt)
    await node.insist(lambda: node.commands.destroy_kernel(destroy))
    await node.until(spec.kernel_id, attempt, S.TERMINATED)
    await _nothing_is_left(node, spec)


async def _nothing_is_left(node: Node, spec: KernelSpec) -> None:
    async with asyncio.timeout(10):
        while list(leftovers(node.data_dir, spec.kernel_id)):  # noqa: ASYNC110  # the machine has no event
            await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("point", CREATE)
async def test_killed_while_creating(node: Node, point: str) -> None:
    await node.start(crash_at=point)
    spec = await _spec(node)
    create = CreateKernels(kernels=[spec])
    await node.give_one(lambda: node.commands.create_kernels(create))
    await node.has_died()
    await node.start()
    await node.insist(lambda: node.commands.create_kernels(create))
    await node.until(spec.kernel_id, 1, S.RUNNING)
    await _works(node, spec)
    await _end(node, spec)


@pytest.mark.slow
@pytest.mark.parametrize("point", DESTROY)
async def test_killed_while_destroying(node: Node, point: str) -> None:
    await node.start(crash_at=point)
    spec = await _spec(node)
    await node.insist(lambda: node.commands.create_kernels(CreateKernels(kernels=[spec])))
    await node.until(spec.kernel_id, 1, S.RUNNING)
    destroy = DestroyKernel(kernel_id=spec.kernel_id, attempt=1, reason=KernelEventReason.USER_REQUESTED)
    await node.give_one(lambda: node.commands.destroy_kernel(destroy))
    await node.has_died()
    await node.start()
    await _end(node, spec)


@pytest.mark.slow
@pytest.mark.parametrize("point", RESTART)
async def test_killed_while_restarting(node: Node, point: str) -> None:
    await node.start(crash_at=point)
    spec = await _spec(node)
    await node.insist(lambda: node.commands.create_kernels(CreateKernels(kernels=[spec])))
    await node.until(spec.kernel_id, 1, S.RUNNING)
    await node.give_one(lambda: node.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=2)))
    await node.has_died()
    await node.start()
    await node.until(spec.kernel_id, 2, S.RUNNING)
    await _works(node, spec)
    await _end(node, spec, attempt=2)
