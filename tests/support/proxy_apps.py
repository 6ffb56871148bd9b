"""Apps, circuits and set-up codes for tests of the app proxy's worker."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from uuid import UUID, uuid4

import jwt
from aiohttp import web

from ai.backend.common.wire.appproxy import (
    INFERENCE_KEY,
    SETUP_AUDIENCE,
    SETUP_KEY,
    AppMode,
    Circuit,
    FrontendMode,
    ProxyProtocol,
    RouteInfo,
    purpose_key,
)
from tests.support.serving import serve

SECRET = "a secret of at least thirty-two characters"
PERMIT_SECRET = "another secret of thirty-two characters"


def free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class FakeApp:
    """An app of a session. It keeps the requests that it got, and streams until it is released."""

    def __init__(self, name: str = "app") -> None:
        self.name = name
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.close_codes: list[int | None] = []
        self.aborted = asyncio.Event()
        self.released = asyncio.Event()
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        action = request.path.strip("/")
        if action == "ws":
            return await self._echo(request)
        if action in ("events", "cut"):
            return await self._stream(request, is_cut=action == "cut")
        if action == "hang":
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.aborted.set()
                raise
        self.bodies.append(await request.read())
        if action == "large":
            return web.Response(body=bytes(5_000_000))
        if action == "cookies":
            response = web.Response(text=self.name)
            for value in request.query.getall("set"):
                response.headers.add("Set-Cookie", value)
            return response
        if action == "empty":
            return web.Response(status=204)
        return web.Response(text=self.name, headers={"X-Path": request.raw_path})

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("chat",))
        await socket.prepare(request)
        async for message in socket:
            if message.type is web.WSMsgType.TEXT:
                await socket.send_str(f"{self.name}: {message.data}")
            elif message.type is web.WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        self.close_codes.append(socket.close_code)
        return socket

    async def _stream(self, request: web.Request, *, is_cut: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        if is_cut:
            assert request.transport is not None
            request.transport.abort()
            return response
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.aborted.set()
            raise
        await response.write(b"data: last\n\n")
        return response


@asynccontextmanager
async def running_app(name: str = "app", port: int = 0) -> AsyncIterator[FakeApp]:
    """Runs an app on a port of this host."""
    app = FakeApp(name)
    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", app.handle)
    runner, app.port = await serve(application, "127.0.0.1", port)
    runner._shutdown_timeout = 0.1
    try:
        yield app
    finally:
        app.released.set()
        await runner.cleanup()


@asynccontextmanager
async def tcp_app() -> AsyncIterator[int]:
    """Runs a TCP app that answers with everything it got once the client has ended its side."""

    writers: set[asyncio.StreamWriter] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
            writer.write(b" end")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # the transports close in the next round of the event loop


def route_to(port: int, *, ratio: float = 1.0, session: UUID | None = None, host: str = "127.0.0.1") -> RouteInfo:
    return RouteInfo(
        session_id=session or uuid4(),
        kernel_host=host,
        kernel_port=port,
        protocol=ProxyProtocol.HTTP,
        traffic_ratio=ratio,
    )


def circuit_to(
    *routes: RouteInfo,
    port: int | None = None,
    subdomain: str | None = None,
    mode: AppMode = AppMode.INTERACTIVE,
    protocol: ProxyProtocol = ProxyProtocol.HTTP,
    public: bool = True,
    networks: str | None = None,
) -> Circuit:
    return Circuit(
        id=uuid4(),
        app="app",
        protocol=protocol,
        worker=uuid4(),
        app_mode=mode,
        frontend_mode=FrontendMode.PORT if port is not None else FrontendMode.WILDCARD,
        open_to_public=public,
        allowed_client_ips=networks,
        port=port,
        subdomain=subdomain,
        user_id=uuid4(),
        endpoint_id=uuid4() if mode is AppMode.INFERENCE else None,
        route_info=list(routes),
        created_at="2026-11-23T00:00:00+00:00",
        updated_at="2026-11-23T00:00:00+00:00",
    )


def setup_code(circuit: Circuit, *, redirect: str = "/", expires_in_s: float = 60.0, secret: str = SECRET) -> str:
    """Returns a code as coordinators sign them."""
    claims = {
        "aud": SETUP_AUDIENCE,
        "circuit": str(circuit.id),
        "sub": str(circuit.user_id),
        "redirect": redirect,
        "jti": uuid4().hex,
        "exp": int(time.time() + expires_in_s),
    }
    return jwt.encode(claims, purpose_key(secret, SETUP_KEY), algorithm="HS256")


def inference_token(circuit: Circuit, *, expires_in_s: float = 60.0, **other: object) -> str:
    """Returns a token of an endpoint as coordinators sign them."""
    claims = {
        "typ": "inference",
        "aud": str(circuit.endpoint_id),
        "sub": str(uuid4()),
        "jti": uuid4().hex,
        "exp": int(time.time() + expires_in_s),
    }
    return jwt.encode({**claims, **other}, purpose_key(SECRET, INFERENCE_KEY), algorithm="HS256")


async def until(condition: Callable[[], bool], *, timeout_s: float = 5.0) -> None:
    """Waits until a condition holds. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # the planes under test have no events of their own
            await asyncio.sleep(0.01)
