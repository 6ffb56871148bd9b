"""The service gateway refuses strangers, clients of other authorities, silent clients and too many of them."""

from __future__ import annotations

import asyncio
import random
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from ai.backend.agent.composition import Agent
from ai.backend.agent.gateway.model import Traffic
from ai.backend.common.errors import Unavailable
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.execution import RouteOpened
from ai.backend.infra.tls.certificates import (
    TlsIdentity,
    create_authority,
    create_request,
    create_server_identity,
    issue_client_certificate,
)
from ai.backend.infra.tls.contexts import unverified_client_context
from tests.component.agent.conftest import Bench
from tests.component.agent.gateway.test_gateway import destroy
from tests.support.gateway_clients import (
    AUTHORITY,
    CLIENT,
    HANGS,
    ServingRuntime,
    client_of,
    dial,
    echoes,
    gateway_of,
    is_cut,
    open_route,
    talk,
)
from tests.support.proxy_apps import until


def traffic_of(agent: Agent) -> Traffic:
    return gateway_of(agent).traffic


def expired_client() -> TlsIdentity:
    key, request = create_request("worker")
    yesterday = datetime.now(UTC) - timedelta(days=2)
    return TlsIdentity(key, issue_client_certificate(AUTHORITY, request, "worker-1", now=yesterday))


async def refused_until(agent: Agent, reason: str, count: int) -> None:
    """Waits until so many were refused for a reason: HAProxy tells of it after the client knows."""
    await until(lambda: traffic_of(agent).refused[reason] >= count)
    assert traffic_of(agent).refused[reason] == count


async def is_refused(route: RouteOpened, client: TlsIdentity, **changes: str) -> bool:
    """Returns True if a client receives nothing but the end of its connection."""
    try:
        reader, writer = await dial(route, client, **changes)
    except Unavailable:
        return True
    writer.write(b"hello")
    try:
        return await is_cut(reader)
    finally:
        writer.transport.abort()


async def test_strangers_reach_no_service(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    route = await open_route(agent, await bench.run(agent))
    for stranger in (client_of(create_authority()), create_server_identity(), expired_client()):
        assert await is_refused(route, stranger)
    assert runtime.opened == []
    await refused_until(agent, "handshake", 3)
    assert await echoes(route)


async def test_a_client_without_a_certificate_reaches_no_service(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    route = await open_route(agent, await bench.run(agent))
    context = unverified_client_context()
    reader, writer = await asyncio.open_connection(route.host, route.port, ssl=context, server_hostname=route.name)
    with pytest.raises(ssl.SSLError, match="certificate required"):
        await reader.read()
    writer.close()
    assert runtime.opened == []


async def test_a_client_of_one_authority_reaches_no_route_of_another(
    bench: Bench, runtime: ServingRuntime, plane: str
) -> None:
    """Both authorities are valid at this gateway; the certificate is of the other one."""
    other = create_authority()
    agent = await bench.start()
    spec, spec_of_other = await bench.run(agent), await bench.run(agent)
    route, route_of_other = await open_route(agent, spec), await open_route(agent, spec_of_other, authority=other)
    assert await is_refused(route, client_of(other))
    assert await is_refused(route_of_other, CLIENT)
    await refused_until(agent, "authority" if plane == "embedded" else "handshake", 2)
    assert runtime.opened == []
    assert await echoes(route)
    assert await echoes(route_of_other, client_of(other))
    assert [str(key.kernel_id) for key, _ in runtime.opened] == [spec.kernel_id, spec_of_other.kernel_id]


async def test_names_are_exact(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    route = await open_route(agent, await bench.run(agent))
    names = (
        "r" + "0" * 32,
        route.name[:-1],
        route.name + "0",
        f"{route.name}.x",
        "localhost",
        "x" * 60,
        route.name[1:],
    )
    for name in names:
        assert await is_refused(route, CLIENT, server_name=name), name
    context = unverified_client_context()
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(route.host, route.port, ssl=context, server_hostname="")
    assert traffic_of(agent).refused["route"] == len(names) + 1
    assert runtime.opened == []


# CPython reports a name that is not ASCII as unraisable, and refuses it with an alert.
@pytest.mark.filterwarnings("ignore:Exception ignored in. b'r:pytest.PytestUnraisableExceptionWarning")
async def test_plain_text_and_noise_get_no_answer(
    bench: Bench, runtime: ServingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await bench.start()
    route = await open_route(agent, await bench.run(agent))
    hello = await client_hello(route)
    chance = random.Random(7)
    beginnings = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-x\r\n", b"\x00" * 400, b"\x16\x03\x01\xff\xff", b""]
    for _ in range(60):
        beginnings.append(chance.randbytes(chance.randrange(1, 2000)))
        mutated = bytearray(hello)
        for _ in range(chance.randrange(1, 8)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        beginnings += [bytes(mutated), hello[: chance.randrange(len(hello))]]
    for beginning in beginnings:
        reader, writer = await asyncio.open_connection(route.host, route.port)
        writer.write(beginning)
        writer.write_eof()
        async with asyncio.timeout(20):
            try:
                assert b"HTTP" not in await reader.read()
            except ConnectionResetError:
                pass
        writer.close()
    assert runtime.opened == []
    assert await echoes(route)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def client_hello(route: RouteOpened) -> bytes:
    """The first message of a client."""
    outgoing = ssl.MemoryBIO()
    client = unverified_client_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=route.name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def test_who_is_slow_is_cut(bench: Bench, runtime: ServingRuntime) -> None:
    bench.options = {"gateway": {"handshake-timeout": 0.3}}
    agent = await bench.start()
    route = await open_route(agent, await bench.run(agent))
    hello = await client_hello(route)
    reader, writer = await asyncio.open_connection(route.host, route.port)
    began = asyncio.get_running_loop().time()

    async def drip() -> None:
        for byte in hello:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(20):
        with suppress(ConnectionError):  # bytes that nobody has read become a reset
            assert await reader.read() == b""
    assert asyncio.get_running_loop().time() - began < 5
    dripping.cancel()
    writer.close()
    assert traffic_of(agent).refused["handshake"] == 1


async def test_the_silent_hold_nobody(bench: Bench, runtime: ServingRuntime) -> None:
    bench.options = {"gateway": {"handshake-timeout": 60.0}}
    agent = await bench.start()
    route = await open_route(agent, await bench.run(agent))
    silent = [await asyncio.open_connection(route.host, route.port) for _ in range(700)]
    async with asyncio.timeout(20):
        assert await silent[0][0].read() == b""  # the oldest has lost its place
    assert await echoes(route)
    assert traffic_of(agent).refused["handshake"] >= 188
    for _, writer in silent:
        writer.transport.abort()


async def test_a_route_has_so_many_connections(bench: Bench, runtime: ServingRuntime) -> None:
    bench.options = {"gateway": {"max-connections-per-route": 2, "max-connections": 3}}
    agent = await bench.start()
    route, other = [await open_route(agent, await bench.run(agent)) for _ in range(2)]
    held = [await talk(route) for _ in range(2)]
    assert not await echoes(route)
    held.append(await talk(other))
    assert not await echoes(other)
    assert traffic_of(agent).refused["limit"] == 2
    for _, writer in held:
        writer.close()
        await writer.wait_closed()
    await asyncio.sleep(0.1)
    assert await echoes(route)


async def test_a_connection_without_a_byte_is_cut(bench: Bench, runtime: ServingRuntime) -> None:
    bench.options = {"gateway": {"idle-timeout": 0.4}}
    agent = await bench.start()
    spec = await bench.run(agent)
    reader, writer = await dial(await open_route(agent, spec, HANGS))
    assert await is_cut(reader)
    writer.close()


async def test_an_old_route_reaches_no_later_session(bench: Bench, runtime: ServingRuntime) -> None:
    """The next session has the same port and the same gateway, but another name."""
    agent = await bench.start()
    spec = await bench.run(agent)
    old = await open_route(agent, spec)
    await destroy(bench, agent, spec)
    new = await open_route(agent, await bench.run(agent))
    assert (new.host, new.port) == (old.host, old.port)
    assert await is_refused(old, CLIENT)
    assert await echoes(new)


async def test_a_service_that_is_not_there_is_a_cut(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    assert await is_refused(await open_route(agent, spec, 9999), CLIENT)
    assert traffic_of(agent).refused["service"] == 1
    assert KernelStatus.RUNNING in bench.statuses(spec)
