"""Servers of `bench/proxy.py`, each a process that prints its port: an app, a bare proxy on aiohttp, and our plane.

Usage: python -m bench.proxy_servers KIND [PORT], where KIND is bare, relay, plane, tcp, haproxy, engine or models.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import aiohttp
from aiohttp import web

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.access.tokens import Tokens
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane, Frontend
from ai.backend.appproxy.worker.planes.haproxy.plane import HaproxyOptions, HaproxyPlane
from ai.backend.appproxy.worker.upstreams import RouteDialer
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import (
    AppMode,
    Circuit,
    FrontendMode,
    InferenceLimits,
    ProxyProtocol,
    RequestWindow,
    RouteInfo,
    RoutingKind,
    ServingOptions,
    TokenWindow,
)
from ai.backend.core.proxy.changes import Changes
from ai.backend.infra.process.daemon import quickest_loop

ENDPOINT = UUID(int=1)
PIECE = 256 * 1024
SHARED_SECRET = "x" * 32
_ANSWER = (
    b'{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"Hello."}}],'
    b'"usage":{"prompt_tokens":500,"completion_tokens":3,"total_tokens":503}}'
)
COMPLETION = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_ANSWER),
    _ANSWER,
)
MESSAGE = b"\x82\xa0\0\0\0\0" + b"m" * 32
ECHO = b"\x82\x20" + b"m" * 32
_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_UPGRADED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %b\r\n\r\n"
)
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "host"}


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


async def _bare(port: int) -> None:
    """A reverse proxy without users, limits or routes, in the fewest lines."""
    logging.disable()  # a connection that the loader ends is an error with its traceback
    target = f"http://127.0.0.1:{port}"
    connector = aiohttp.TCPConnector(limit=0)
    session = aiohttp.ClientSession(connector=connector, auto_decompress=False)

    async def forward(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await _relay_messages(request, session, target)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        async with session.request(request.method, target + request.path_qs, headers=headers) as upstream:
            response = web.StreamResponse(status=upstream.status, headers={"Content-Type": upstream.content_type})
            response.content_length = upstream.content_length
            await response.prepare(request)
            async for data in upstream.content.iter_any():
                await response.write(data)
            return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    await _serve(app)


async def _relay_messages(request: web.Request, session: aiohttp.ClientSession, target: str) -> web.WebSocketResponse:
    client = web.WebSocketResponse(compress=False)
    await client.prepare(request)
    async with session.ws_connect(target + request.path_qs, compress=0) as upstream:

        async def inward() -> None:
            async for message in client:
                await upstream.send_bytes(message.data)

        task = asyncio.create_task(inward())
        async for message in upstream:
            await client.send_bytes(message.data)
        task.cancel()
    return client


async def start_plane(frontend: Frontend) -> EmbeddedPlane:
    """Returns a running plane."""
    gate = Gate(Tokens(shared_secret=SHARED_SECRET, permit_secret="y" * 32, started_at=0.0), is_secure=False)
    plane = EmbeddedPlane(frontend, gate, RouteDialer())
    await plane.start()
    return plane


async def start_haproxy_plane(frontend: Frontend, folder: Path, *, circuits: int) -> HaproxyPlane:
    """Returns a running plane on HAProxy."""
    gate = Gate(Tokens(shared_secret=SHARED_SECRET, permit_secret="y" * 32, started_at=0.0), is_secure=False)
    plane = HaproxyPlane(frontend, gate, RouteDialer(), HaproxyOptions(folder=folder, circuits=circuits))
    await plane.start()
    return plane


def circuit_to(
    port: int, *, slot: int | None = None, subdomain: str | None = None, protocol: ProxyProtocol = ProxyProtocol.HTTP
) -> Circuit:
    """Returns a public circuit to a port of this host."""
    route = RouteInfo(session_id=uuid4(), kernel_host="127.0.0.1", kernel_port=port, protocol=protocol)
    return Circuit(
        id=uuid4(),
        app="app",
        protocol=protocol,
        worker=uuid4(),
        app_mode=AppMode.INTERACTIVE,
        frontend_mode=FrontendMode.WILDCARD if slot is None else FrontendMode.PORT,
        open_to_public=True,
        port=slot,
        subdomain=subdomain,
        route_info=[route],
        created_at="",
        updated_at="",
    )


async def _plane(port: int, protocol: ProxyProtocol = ProxyProtocol.HTTP) -> None:
    own = free_port()
    plane = await start_plane(Frontend(host="127.0.0.1", ports={own: own}))
    await plane.apply(Changes(version=1, circuits=(circuit_to(port, slot=own, protocol=protocol),)))
    _print_port(own)


async def _tcp(port: int) -> None:
    await _plane(port, ProxyProtocol.TCP)


async def _relay_bytes(port: int) -> None:
    """A relay of bytes without users, limits or counts, in the fewest lines of asyncio's streams."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        app_reader, app_writer = await asyncio.open_connection("127.0.0.1", port, limit=PIECE)

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(PIECE):
                    sink.write(data)
                    await sink.drain()
                sink.write_eof()

        await asyncio.gather(copy(reader, app_writer), copy(app_reader, writer))
        for each in (app_writer, writer):
            each.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0, limit=PIECE, backlog=1024)
    asyncio.get_running_loop().server = server  # type: ignore[attr-defined]  # or it is collected
    _print_port(server.sockets[0].getsockname()[1])


async def _haproxy(port: int) -> None:
    own = free_port()
    folder = Path(tempfile.mkdtemp())
    plane = await start_haproxy_plane(Frontend(host="127.0.0.1", ports={own: own}), folder, circuits=96)
    await plane.apply(Changes(version=1, circuits=(circuit_to(port, slot=own),)))
    _print_port(own)


class _Engine(asyncio.Protocol):
    """Answers each request at once with one short completion, in one piece, and echoes the messages of a WebSocket.

    The messages are those of the bench: binary, of 32 bytes, by the mask of zeros.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self._transport = transport
        self._received = b""
        self._is_websocket = False

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._is_websocket:
            messages = len(self._received) // len(MESSAGE)
            self._received = self._received[messages * len(MESSAGE) :]
            self._transport.write(messages * ECHO)
            return
        while True:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            if end and (key := re.search(rb"(?i)^sec-websocket-key: *(\S+)", head, re.MULTILINE)):
                digest = base64.b64encode(hashlib.sha1(key[1] + _WEBSOCKET, usedforsecurity=False).digest())
                self._transport.write(_UPGRADED % digest)
                self._received, self._is_websocket = rest, True
                return
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            if not end or len(rest) < length:
                return
            self._received = rest[length:]
            self._transport.write(COMPLETION)


async def _engine(_port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Engine, "127.0.0.1", 0, backlog=1024)
    _print_port(server.sockets[0].getsockname()[1])


async def _models(port: int) -> None:
    """Our plane with an endpoint of two replicas, routed by prefixes, whose tokens are limited."""
    own = free_port()
    plane = await start_plane(Frontend(host="127.0.0.1", ports={own: own}))
    circuit = circuit_to(port, slot=own)
    [route] = circuit.route_info
    limits = InferenceLimits(requests=[RequestWindow(amount=10**9)], tokens=[TokenWindow(amount=10**12)])
    circuit = replace(
        circuit,
        app_mode=AppMode.INFERENCE,
        open_to_public=False,
        endpoint_id=ENDPOINT,
        route_info=[route, replace(route, session_id=uuid4())],
        serving=ServingOptions(name="m", routing=RoutingKind.PREFIX, limits=limits),
    )
    await plane.apply(Changes(version=1, circuits=(circuit,)))
    _print_port(own)


async def _serve(app: web.Application) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    _print_port(runner.addresses[0][1])


def _print_port(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


def main() -> None:
    servers: dict[str, Callable[[int], Awaitable[None]]] = {
        "bare": _bare,
        "relay": _relay_bytes,
        "plane": _plane,
        "tcp": _tcp,
        "haproxy": _haproxy,
        "engine": _engine,
        "models": _models,
    }

    async def run() -> None:
        await servers[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 0)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=quickest_loop()) as runner:  # as the daemon does
        runner.run(run())


if __name__ == "__main__":
    main()
