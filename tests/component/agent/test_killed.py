"""An agent in a process of its own, killed with SIGKILL at every point of a kernel's life, and what is left then."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from ai.backend.agent.lifecycle.step_runner import KERNEL_CRASH_POINTS
from ai.backend.common.errors import Unavailable
from ai.backend.common.states import KernelEventReason, KernelStatus, RunMode
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, KernelSpec, RestartKernel
from ai.backend.common.wire.execution import Execute, OpenPort, RunResult
from ai.backend.common.wire.link import ByteStream
from tests.component.agent.conftest import Bench
from tests.support.agent_node import Node
from tests.support.audit import leftovers

S = KernelStatus
CREATE = [point for point in KERNEL_CRASH_POINTS if point.startswith("create.")]
DESTROY = [point for point in KERNEL_CRASH_POINTS if point.startswith("destroy.")]
RESTART = [point for point in KERNEL_CRASH_POINTS if point.startswith("restart.")]


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
    async with asyncio.timeout(30):
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


ECHO = """
import socketserver, threading
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
server = socketserver.ThreadingTCPServer(("127.0.0.1", 9911), Echo)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""


@pytest.mark.needs("isolation")
async def test_killed_while_a_connection_is_open(tmp_path: Path) -> None:
    """It is cut, and the service can be reached again by way of the agent that comes after."""
    node = Node(tmp_path, settings='[runtime]\nnetwork = "none"')
    await node.open()
    try:
        await node.start()
        spec = replace(await _spec(node), preopen_ports=[9911])
        await node.insist(lambda: node.commands.create_kernels(CreateKernels(kernels=[spec])))
        await node.until(spec.kernel_id, 1, S.RUNNING)
        step = Execute(kernel_id=spec.kernel_id, run_id="r", mode=RunMode.QUERY, code=ECHO, flush_timeout_s=10.0)
        await node.insist(lambda: node.commands.execute(step))

        async def echoed() -> ByteStream:
            stream = await node.commands.open_port(OpenPort(kernel_id=spec.kernel_id, port=9911))
            async with asyncio.timeout(30):
                await stream.write(b"hello")
                assert await stream.read() == b"hello"
            return stream

        stream = await node.insist(echoed)
        assert len(node.data._connections) == 1, "it is carried beside the link"
        assert node.process is not None
        node.process.send_signal(signal.SIGKILL)
        await node.has_died()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(30):
                await stream.read()
        assert not node.data._connections
        await node.start()
        again = await node.insist(echoed)
        await again.close()
        await _end(node, spec)
    finally:
        await node.close()
