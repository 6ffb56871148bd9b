"""The same gateway leads to services of every runtime, and outlasts a killed agent."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from ai.backend.agent.composition import Agent
from ai.backend.common.errors import Unavailable
from ai.backend.common.states import KernelStatus, RunMode
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import CreateKernels, KernelSpec
from ai.backend.common.wire.execution import Execute, OpenRoute, RouteOpened
from tests.component.agent.test_killed import ECHO, _end, _spec
from tests.component.agent.test_process_runtime import RealBench, real
from tests.component.agent.test_services import build_image, docker, started
from tests.support.agent_node import Node
from tests.support.audit import processes
from tests.support.docker_engine import DockerEngine
from tests.support.gateway_clients import AUTHORITY, dial, echoes, is_cut, open_route, talk

__all__ = ["docker", "real"]


async def page_of(agent: Agent, spec: KernelSpec, port: int, path: str) -> bytes:
    """The answer to a request through the gateway."""
    reader, writer = await dial(await open_route(agent, spec, port))
    writer.write(f"GET /{path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.needs("bwrap")
async def test_a_service_in_a_network_of_its_own(real: RealBench, plane: str) -> None:
    real.options = {"runtime": {"network": "none"}}
    agent = await real.start()
    spec = await real.run(agent)
    port = await started(real, agent, spec, "http")
    assert b"ssh-ed25519 " in await page_of(agent, spec, port, "id_container.pub")


@pytest.mark.needs("bwrap")
async def test_a_service_on_a_unix_socket(real: RealBench, plane: str) -> None:
    """In a shared network: ours without consent, those of users with it alone, and only at the session's own ports."""
    real.options = {"runtime": {"network": "host"}}
    agent = await real.start()
    spec = await real.run(agent)
    port = await started(real, agent, spec, "ttyd")
    assert b"200" in await page_of(agent, spec, port, "")
    with pytest.raises(Exception, match="share the host's network"):
        await open_route(agent, spec, 8000)


@pytest.mark.needs("bwrap")
async def test_a_service_on_the_host_with_consent(real: RealBench) -> None:
    real.options = {"runtime": {"network": "host"}, "services": {"shared-network": True}}
    agent = await real.start()
    spec = await real.run(agent)
    port = await started(real, agent, spec, "http")
    assert b"ssh-ed25519 " in await page_of(agent, spec, port, "id_container.pub")
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as of_somebody_else:
        reader, writer = await dial(await open_route(agent, spec, of_somebody_else.sockets[0].getsockname()[1]))
        assert await is_cut(reader)
        writer.close()


@pytest.mark.needs("docker")
async def test_a_service_of_a_container(docker: RealBench, docker_engine: DockerEngine, tmp_path: Path) -> None:
    build_image(docker_engine, "services:1", tmp_path)
    agent = await docker.start()
    spec = await docker.run(agent, image="services:1")
    port = await started(docker, agent, spec, "files")
    assert b"on 9001" in await page_of(agent, spec, port, "made.txt")


@pytest.mark.needs("isolation")
async def test_routes_of_a_killed_agent(tmp_path: Path, plane: str) -> None:
    """A route works again at the same address; that of a session that ended meanwhile is gone."""
    node = Node(tmp_path, settings=f'[gateway]\nplane = "{plane}"\n[runtime]\nnetwork = "none"')
    await node.open()
    try:
        await node.start()
        specs = [replace(await _spec(node), preopen_ports=[9911]) for _ in range(2)]
        await node.insist(lambda: node.commands.create_kernels(CreateKernels(kernels=specs)))
        routes = [await route_to_echo(node, spec) for spec in specs]
        reader, writer = await talk(routes[0])
        assert node.process is not None
        node.process.send_signal(signal.SIGKILL)
        await node.has_died()
        # HAProxy sees the ends of the streams of a killed agent before its own, and may end them in order (0630).
        is_known_as_cut = await is_cut(reader)
        writer.close()
        assert is_known_as_cut or plane == "haproxy"
        for pid in processes(specs[1].kernel_id):
            with suppress(ProcessLookupError):  # it has ended with one that was killed before it
                os.kill(pid, signal.SIGKILL)
        await node.start()
        await node.until(specs[1].kernel_id, 1, KernelStatus.TERMINATED)
        assert await node.insist(lambda: again(routes[0]))
        with pytest.raises(Unavailable):
            await dial(routes[1])
        await _end(node, specs[0])
        with pytest.raises(Unavailable):
            await dial(routes[0])
    finally:
        await node.close()


async def route_to_echo(node: Node, spec: KernelSpec) -> RouteOpened:
    await node.until(spec.kernel_id, 1, KernelStatus.RUNNING)
    step = Execute(kernel_id=spec.kernel_id, run_id="r", mode=RunMode.QUERY, code=ECHO, flush_timeout_s=10.0)
    await node.insist(lambda: node.commands.execute(step))
    request = OpenRoute(kernel_id=spec.kernel_id, port=9911, authority=AUTHORITY.certificate)
    return await node.insist(lambda: node.commands.open_route(request))


async def again(route: RouteOpened) -> bool:
    if not await echoes(route):
        raise Unavailable("not yet")
    return True
