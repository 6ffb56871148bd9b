"""The service gateway leads the clients of an authority to a kernel's service, in both directions, until it ends."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from typing import cast

import pytest

from ai.backend.agent.composition import Agent
from ai.backend.common.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.agent import DestroyKernel, KernelSpec, RestartKernel
from ai.backend.common.wire.execution import CloseRoute, OpenRoute
from ai.backend.infra.tls.certificates import create_authority
from ai.backend.infra.tls.connection import TlsConnection
from tests.component.agent.conftest import Bench, read_records
from tests.support.gateway_clients import (
    AUTHORITY,
    LATE_REPLY,
    SINK,
    SIZE,
    SOURCE,
    ServingRuntime,
    client_of,
    dial,
    echoes,
    gateway_of,
    is_cut,
    open_route,
    talk,
)


async def destroy(bench: Bench, agent: Agent, spec: KernelSpec) -> None:
    request = DestroyKernel(kernel_id=spec.kernel_id, attempt=spec.attempt, reason=KernelEventReason.USER_REQUESTED)
    await agent.commands.destroy_kernel(request)
    await bench.until(spec, KernelStatus.TERMINATED)


async def test_bytes_go_both_ways(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    route = await open_route(agent, spec)
    assert len(route.name) >= 17
    assert route.host == "127.0.0.1"
    reader, writer = await dial(route)
    sent = bytes(range(256)) * (SIZE // 256)

    async def send() -> None:
        writer.write(sent)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    async with asyncio.timeout(60):
        received = await reader.read()
        await sending
    assert received == sent
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("has_socket", [True, False])
async def test_each_direction_ends_by_itself(bench: Bench, runtime: ServingRuntime, has_socket: bool) -> None:
    runtime.streams_without_socket = not has_socket
    agent = await bench.start()
    spec = await bench.run(agent)
    reader, writer = await dial(await open_route(agent, spec, LATE_REPLY))
    writer.write(bytes(100_000))
    writer.write_eof()
    async with asyncio.timeout(20):
        assert await reader.read() == b"100000"
    writer.close()
    reader, writer = await dial(await open_route(agent, spec, SOURCE))
    async with asyncio.timeout(20):
        assert len(await reader.read()) == SIZE  # the service has ended, and reads on
        writer.write(b"more")
        await writer.drain()
    writer.close()


async def test_the_same_request_opens_one_route(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    first, second = await asyncio.gather(open_route(agent, spec), open_route(agent, spec))
    assert first == second
    others = [await open_route(agent, spec, SINK), await open_route(agent, spec, authority=create_authority())]
    assert len({first.name, *(other.name for other in others)}) == 3


async def test_a_closed_route_is_cut_and_its_name_not_used_again(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    route = await open_route(agent, spec)
    reader, writer = await talk(route)
    for _ in range(2):
        await agent.commands.close_route(CloseRoute(name=route.name))
    assert await is_cut(reader)
    writer.close()
    again = await open_route(agent, spec)
    assert again.name != route.name
    assert await echoes(again)


async def test_what_cannot_be_routed_is_refused(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    for port, authority in ((0, AUTHORITY.certificate), (65_536, AUTHORITY.certificate), (80, ""), (80, "PEM")):
        with pytest.raises(InvalidInput):
            await agent.commands.open_route(OpenRoute(kernel_id=spec.kernel_id, port=port, authority=authority))
    with pytest.raises(InvalidInput):  # a client's certificate is no authority
        await agent.commands.open_route(OpenRoute(kernel_id=spec.kernel_id, port=80, authority=client_of().certificate))
    with pytest.raises(NotFound):
        await open_route(agent, bench.spec())
    for number in range(64):
        await open_route(agent, spec, 9000 + number)
    with pytest.raises(LimitExceeded):
        await open_route(agent, spec, 9999)
    await destroy(bench, agent, spec)
    with pytest.raises((NotFound, Conflict)):
        await open_route(agent, spec)


async def test_a_route_ends_with_its_kernel(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec, other = await bench.run(agent), await bench.run(agent)
    route, route_of_other = await open_route(agent, spec), await open_route(agent, other)
    reader, writer = await talk(route)
    await destroy(bench, agent, spec)
    assert await is_cut(reader)
    writer.close()
    with pytest.raises(Exception, match="cannot be reached"):
        await dial(route)
    assert await echoes(route_of_other)
    assert [key for key in read_records(bench.data_dir, "gateway") if key.startswith("route/")] == [
        f"route/{route_of_other.name}"
    ]


async def test_what_has_ended_but_is_not_read_is_cut_as_well(bench: Bench, runtime: ServingRuntime) -> None:
    """Both directions have ended; the gateway still holds what the client does not read."""
    agent = await bench.start()
    spec = await bench.run(agent)
    reader, writer = await dial(await open_route(agent, spec, LATE_REPLY))
    runtime.reply = bytes(SIZE)
    cast(TlsConnection, writer.transport).pause_reading()
    writer.write_eof()
    async with asyncio.timeout(20):
        await runtime.replied.wait()
    await asyncio.sleep(0.5)
    await destroy(bench, agent, spec)
    cast(TlsConnection, writer.transport).resume_reading()
    assert await is_cut(reader)
    writer.close()


async def test_a_route_outlasts_a_restart_in_place(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    route = await open_route(agent, spec)
    reader, writer = await talk(route)
    await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=2))
    assert await is_cut(reader)
    writer.close()
    await bench.manager.wait_for(lambda o: (o.attempt, o.status) == (2, KernelStatus.RUNNING))
    assert await echoes(route)
    assert {key.attempt for key, _ in runtime.opened} == {1, 2}


async def test_routes_outlast_the_agent(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec, ended = await bench.run(agent), await bench.run(agent)
    route, lost = await open_route(agent, spec), await open_route(agent, ended)
    reader, writer = await talk(route)
    await agent.stop()
    assert await is_cut(reader)
    writer.close()
    runtime.exits.pop(next(key for key in runtime.specs if str(key.kernel_id) == ended.kernel_id), None)
    runtime.specs = {key: value for key, value in runtime.specs.items() if str(key.kernel_id) == spec.kernel_id}
    agent = await bench.start()
    assert await echoes(route)
    await bench.until(ended, KernelStatus.TERMINATED)
    with pytest.raises(Exception, match="cannot be reached"):
        await dial(lost)
    assert await open_route(agent, spec) == route


async def test_a_slow_side_stops_the_other(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    reader, writer = await dial(await open_route(agent, spec, SINK))
    writer.transport.set_write_buffer_limits(high=1 << 16)
    written = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(2):
            while True:
                writer.write(bytes(1 << 18))
                written += 1 << 18
                await writer.drain()
    assert written < 64 << 20
    before = gateway_of(agent).traffic.to_service
    assert before < 64 << 20
    runtime.released.set()
    writer.write_eof()
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    assert gateway_of(agent).traffic.to_service == written
    writer.close()


async def test_a_client_that_reads_nothing_stops_the_service(bench: Bench, runtime: ServingRuntime) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    reader, writer = await dial(await open_route(agent, spec, SOURCE))
    cast(TlsConnection, writer.transport).pause_reading()
    await asyncio.sleep(1)
    gateway = gateway_of(agent)
    stopped_at = gateway.traffic.to_client
    assert 0 < stopped_at < SIZE
    cast(TlsConnection, writer.transport).resume_reading()
    async with asyncio.timeout(60):
        assert len(await reader.read()) == SIZE
    writer.close()


async def test_what_breaks_off_looks_broken_at_the_other_side(
    bench: Bench, runtime: ServingRuntime, plane: str
) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    _, writer = await talk(await open_route(agent, spec))
    if plane == "haproxy":  # it takes a connection without a reset for one that has ended
        writer.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
    writer.transport.abort()
    async with asyncio.timeout(20):
        assert await runtime.errors.get() is ConnectionResetError
    reader, writer = await talk(await open_route(agent, spec))
    runtime.connections[-1].transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
    runtime.connections[-1].transport.abort()
    assert await is_cut(reader)
    writer.close()


async def test_direct_addresses_need_no_tls_and_end_with_the_kernel(bench: Bench, runtime: ServingRuntime) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        first = free.getsockname()[1]
    ports = [first, min(first + 20, 65_535)]
    bench.options = {"gateway": {"direct": True}, "container": {"port-range": ports}}
    agent = await bench.start()
    spec = await bench.run(agent)
    route = await open_route(agent, spec)
    assert route.certificate is None
    assert ports[0] <= route.port <= ports[1]
    assert await open_route(agent, spec) == route
    await agent.stop()
    agent = await bench.start()
    reader, writer = await asyncio.open_connection(route.host, route.port)
    writer.write(b"hello")
    writer.write_eof()
    async with asyncio.timeout(20):
        assert await reader.read() == b"hello"
    writer.close()
    reader, writer = await asyncio.open_connection(route.host, route.port)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    await destroy(bench, agent, spec)
    assert await is_cut(reader)
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(route.host, route.port)
    assert (await open_route(agent, await bench.run(agent))).port != route.port


@pytest.mark.parametrize("has_socket", [True, False])
async def test_a_route_that_ends_while_its_service_is_connected(
    bench: Bench, runtime: ServingRuntime, has_socket: bool
) -> None:
    runtime.streams_without_socket = not has_socket
    runtime.gate = asyncio.Event()
    agent = await bench.start()
    spec = await bench.run(agent)
    route = await open_route(agent, spec)
    reader, writer = await dial(route)
    writer.write(b"hello")
    async with asyncio.timeout(20):
        await runtime.asked.wait()
    await agent.commands.close_route(CloseRoute(name=route.name))
    runtime.gate.set()
    assert await is_cut(reader)
    writer.close()
    async with asyncio.timeout(20):
        await runtime.served.wait()
    assert runtime.received == b""
