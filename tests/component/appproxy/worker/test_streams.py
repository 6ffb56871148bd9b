"""Bodies, streams and tunnels: at once, without buffering, and broken where they break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import cast

import aiohttp
import pytest

from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane
from ai.backend.appproxy.worker.planes.embedded.relay import reset
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import Circuit, ProxyProtocol
from ai.backend.core.proxy.changes import Changes
from ai.backend.infra.loop import cancel_all
from tests.component.appproxy.worker.conftest import PlaneFactory
from tests.component.appproxy.worker.raw import exchange, statuses_of
from tests.support.proxy_apps import FakeApp, circuit_to, route_to, until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
PIECE = bytes(1 << 20)


@pytest.fixture
async def plane(start_plane: PlaneFactory) -> EmbeddedPlane:
    plane = await start_plane()
    assert isinstance(plane, EmbeddedPlane)
    return plane


@pytest.fixture
async def circuit(plane: EmbeddedPlane, app: FakeApp, ports: list[int]) -> Circuit:
    circuit = circuit_to(route_to(app.port), port=ports[0])
    await plane.apply(Changes(version=1, circuits=(circuit,)))
    return circuit


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


@asynccontextmanager
async def raw_app(
    plane: EmbeddedPlane, port: int, handler: Handler, protocol: ProxyProtocol = ProxyProtocol.HTTP
) -> AsyncIterator[Circuit]:
    """A circuit whose app is a function of the bytes."""
    handling: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handling.add(task)
        try:
            await handler(reader, writer)
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            handling.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    circuit = circuit_to(route_to(server.sockets[0].getsockname()[1]), port=port, protocol=protocol)
    await plane.apply(Changes(version=1, circuits=(circuit,)))
    try:
        yield circuit
    finally:
        server.close()
        await cancel_all(*handling)


def url_of(circuit: Circuit, path: str = "/") -> str:
    return f"http://127.0.0.1:{circuit.port}{path}"


def answering(reply: bytes, *, resets: bool = False) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        if resets:
            await asyncio.sleep(0.1)
            reset(cast("asyncio.Transport", writer.transport))
        else:
            writer.close()

    return handle


async def test_the_first_event_comes_at_once(circuit: Circuit, app: FakeApp, browser: aiohttp.ClientSession) -> None:
    async with browser.get(url_of(circuit, "/events")) as response:
        assert await asyncio.wait_for(response.content.readline(), 2) == b"data: first\n"
        app.released.set()
        assert (await response.read()).endswith(b"data: last\n\n")


async def test_large_bodies_pass_both_ways(circuit: Circuit, app: FakeApp, browser: aiohttp.ClientSession) -> None:
    body = bytes(range(256)) * 20_000
    async with browser.post(url_of(circuit, "/large"), data=BytesIO(body)) as response:
        assert len(await response.read()) == 5_000_000
    assert app.bodies == [body]


async def test_a_client_that_goes_away_ends_the_work_of_the_app(
    circuit: Circuit, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    request = asyncio.ensure_future(browser.get(url_of(circuit, "/hang")))
    await until(lambda: bool(app.requests))
    request.cancel()
    await asyncio.wait_for(app.aborted.wait(), 1)


async def test_connections_to_apps_are_used_again(
    circuit: Circuit, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    for method in ("GET", "HEAD", "GET", "POST", "GET"):
        async with browser.request(method, url_of(circuit)) as response:
            assert response.status == 200
    async with browser.get(url_of(circuit, "/empty")) as response:
        assert response.status == 204
    assert len({request.transport for request in app.requests}) == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nnonsense\r\n",
    ],
)
@pytest.mark.parametrize("resets", [False, True])
async def test_a_response_that_breaks_looks_broken(
    plane: EmbeddedPlane, ports: list[int], browser: aiohttp.ClientSession, reply: bytes, resets: bool
) -> None:
    async with raw_app(plane, ports[0], answering(reply, resets=resets)) as circuit:
        with pytest.raises(aiohttp.ClientError):
            async with browser.post(url_of(circuit)) as response:
                await response.read()


async def test_a_response_until_the_end_is_whole_unless_it_is_reset(
    plane: EmbeddedPlane, ports: list[int], browser: aiohttp.ClientSession
) -> None:
    reply = b"HTTP/1.0 200 OK\r\n\r\nto the end"
    async with raw_app(plane, ports[0], answering(reply)) as circuit, browser.get(url_of(circuit)) as response:
        assert await response.text() == "to the end"
    async with raw_app(plane, ports[1], answering(reply, resets=True)) as circuit:
        with pytest.raises(aiohttp.ClientError):
            async with browser.post(url_of(circuit)) as response:
                await response.read()


@pytest.mark.parametrize(
    "reply",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000,
        b"",
    ],
)
async def test_garbage_of_an_app_is_a_bad_gateway(
    plane: EmbeddedPlane, ports: list[int], browser: aiohttp.ClientSession, reply: bytes
) -> None:
    async with raw_app(plane, ports[0], answering(reply)) as circuit, browser.post(url_of(circuit)) as response:
        assert response.status == 502
        assert "nonsense" not in await response.text()


async def test_more_than_was_asked_for_reaches_nobody(plane: EmbeddedPlane, ports: list[int]) -> None:
    """An app that sends two responses to one request: the next request does not get the second one."""
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst"
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(reply + forged)

    async with raw_app(plane, ports[0], handle):
        received = await exchange(ports[0], HEAD, HEAD, pause_s=0.1)
    assert b"forged" not in received


async def test_a_switch_that_nobody_requested_opens_no_tunnel(plane: EmbeddedPlane, ports: list[int]) -> None:
    """A proxy in front of this one would go on using the connection: the app would read requests of other users."""
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        seen.append(await reader.read())

    async with raw_app(plane, ports[0], handle):
        received = await exchange(ports[0], HEAD, b"GET /secret HTTP/1.1\r\nHost: a\r\n\r\n", pause_s=0.2)
    assert statuses_of(received) == [502]
    assert set(seen) == {b""}


async def test_endless_trailers_of_an_app_end_the_response(plane: EmbeddedPlane, ports: list[int]) -> None:
    sent_bytes = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n")
        while sent_bytes < 64 << 20:
            writer.write(b"X: " + b"a" * 8_000 + b"\r\n")
            await writer.drain()
            sent_bytes += 8_000

    async with raw_app(plane, ports[0], handle):
        received = await exchange(ports[0], HEAD)
    assert received.endswith((b"<end>", b"<reset>"))
    assert not received.endswith(b"0\r\n\r\n<end>")
    assert sent_bytes < 64 << 20


async def test_informational_responses_are_left_out(plane: EmbeddedPlane, ports: list[int]) -> None:
    reply = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with raw_app(plane, ports[0], answering(reply)):
        assert statuses_of(await exchange(ports[0], HEAD)) == [200]


async def test_an_expectation_is_met_by_the_proxy(circuit: Circuit, app: FakeApp, ports: list[int]) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    assert statuses_of(await exchange(ports[0], head, b"body", pause_s=0.2)) == [100, 200]
    assert app.bodies == [b"body"]


async def test_an_old_client_gets_a_body_that_ends_with_the_connection(
    circuit: Circuit, app: FakeApp, ports: list[int]
) -> None:
    app.released.set()
    received = await exchange(ports[0], b"GET /events HTTP/1.0\r\nHost: a\r\n\r\n")
    assert b"chunked" not in received.lower()
    assert received.endswith(b"data: last\n\n<end>")


async def test_a_socket_is_accepted_only_when_the_app_accepts_it(
    plane: EmbeddedPlane, app: FakeApp, ports: list[int], browser: aiohttp.ClientSession
) -> None:
    refusing = answering(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    async with raw_app(plane, ports[0], refusing) as circuit:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await browser.ws_connect(url_of(circuit, "/ws"))
    assert refusal.value.status == 403


async def test_a_closed_socket_keeps_its_code(circuit: Circuit, app: FakeApp, browser: aiohttp.ClientSession) -> None:
    socket = await browser.ws_connect(url_of(circuit, "/ws"))
    await socket.send_bytes(PIECE)
    assert await socket.receive_bytes() == PIECE
    await socket.close(code=4001)
    await until(lambda: app.close_codes == [4001])


@pytest.mark.parametrize("protocol", [ProxyProtocol.HTTP, ProxyProtocol.TCP])
async def test_a_client_that_does_not_read_stops_the_app(
    plane: EmbeddedPlane, ports: list[int], protocol: ProxyProtocol
) -> None:
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(PIECE)
            written += len(PIECE)
            try:
                await writer.drain()
            except ConnectionError:
                return

    async with raw_app(plane, ports[0], flood, protocol):
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0], limit=65_536)
        writer.write(HEAD)
        await reader.readuntil(b"\r\n\r\n")
        written_before = -1
        while written != written_before:  # a busy machine fills the buffers slowly
            assert written < 64 * len(PIECE)
            written_before = written
            await asyncio.sleep(1.0)
        writer.close()


async def test_an_app_that_does_not_read_stops_the_client(plane: EmbeddedPlane, ports: list[int]) -> None:
    release = asyncio.Event()

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    async with raw_app(plane, ports[0], ignore):
        _, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
        sent, began = 0, time.monotonic()
        while time.monotonic() - began < 1.0:
            writer.write(PIECE)
            sent += len(PIECE)
            try:
                await asyncio.wait_for(writer.drain(), 0.3)
            except TimeoutError:
                break
        assert sent < 64 * len(PIECE)
        writer.transport.abort()
        release.set()


async def test_each_direction_of_tcp_ends_on_its_own(plane: EmbeddedPlane, ports: list[int]) -> None:
    async def answer_after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        everything = await reader.read()
        await asyncio.sleep(0.2)
        writer.write(everything[::-1])
        writer.close()

    async with raw_app(plane, ports[0], answer_after_the_end, ProxyProtocol.TCP) as circuit:
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(b"abc")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b"cba"
        writer.close()
        await until(lambda: plane.observe()[circuit.id].open == 0)


async def test_a_plane_that_stops_lets_requests_end(
    start_plane: PlaneFactory, app: FakeApp, ports: list[int], browser: aiohttp.ClientSession
) -> None:
    plane = await start_plane()
    circuit = circuit_to(route_to(app.port), port=ports[0])
    await plane.apply(Changes(version=1, circuits=(circuit,)))
    async with browser.get(url_of(circuit)):
        pass
    request = asyncio.ensure_future(browser.get(url_of(circuit, "/hang")))
    await until(lambda: len(app.requests) == 2)
    stopping = asyncio.ensure_future(plane.stop(drain_s=5))
    await asyncio.sleep(0.1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", ports[0])
    app.released.set()
    response = await request
    assert (response.status, response.headers["Connection"], await response.text()) == (200, "close", "app")
    await asyncio.wait_for(stopping, 2)


async def test_no_request_fails_while_routes_change(
    plane: EmbeddedPlane, app: FakeApp, circuit: Circuit, browser: aiohttp.ClientSession
) -> None:

    stop, statuses = asyncio.Event(), list[int]()

    async def churn() -> None:
        version = 2
        while not stop.is_set():
            routes = [route_to(app.port, ratio=1 + version % 3) for _ in range(1 + version % 3)]
            changed = replace(circuit, route_info=routes)
            await plane.apply(Changes(version=version, circuits=(changed,)))
            version += 1
            await asyncio.sleep(0.005)

    churning = asyncio.ensure_future(churn())
    for _ in range(40):
        responses = await asyncio.gather(*(browser.post(url_of(circuit), data=b"x") for _ in range(10)))
        statuses += [response.status for response in responses]
        for response in responses:
            await response.read()
    stop.set()
    await churning
    assert statuses == [200] * 400


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_connection_that_the_app_has_closed_costs_no_request(
    start_plane: PlaneFactory, ports: list[int], browser: aiohttp.ClientSession, method: str
) -> None:
    """Apps close unused connections after some seconds, while the next request is on its way."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read(1)  # the next request, or the end

    plane = await start_plane()
    async with raw_app(plane, ports[0], answer_once) as circuit:
        for _ in range(3):
            async with browser.request(method, url_of(circuit)) as response:
                assert response.status == 200
            await asyncio.sleep(1.1 if method == "POST" else 0)


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
async def test_a_client_that_does_not_read_is_cut(
    start_plane: PlaneFactory, ports: list[int], connection: bytes
) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            writer.write(PIECE)
            await writer.drain()

    plane = await start_plane(limits=Limits(unread_s=0.5))
    async with raw_app(plane, ports[0], flood):
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0], limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: %b\r\n\r\n" % connection)
        await reader.readuntil(b"\r\n\r\n")
        assert plane._shared.timed
        await until(lambda: not plane._shared.timed)
        writer.transport.abort()
