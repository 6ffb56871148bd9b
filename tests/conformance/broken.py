"""A proxy in front of the real manager that breaks one thing at a time.

Signatures survive it: it hands on the request target, the headers and the body byte for byte, the host among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web
from yarl import URL

_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "upgrade", "content-length", "content-encoding"})


@dataclass
class Answer:
    """A reply on its way to the client; a breakage changes it in place."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def set_json(self, value: Any) -> None:
        self.body = json.dumps(value).encode()


@dataclass(frozen=True)
class Breakage:
    """One fault.

    Attributes:
        check: the check that must notice it.
        method, path: a regular expression of the requests that it spoils.
        spoil: changes the whole reply.
        swallow: the request never reaches the server; the client gets this reply instead.
        message: changes a text message of a WebSocket from the server, or drops it (None).
        line: changes a line of an event stream.
        binary: comes in the place of each binary message of a WebSocket from the server.
    """

    name: str
    check: str
    path: str
    method: str = ".*"
    spoil: Callable[[Answer], None] | None = None
    swallow: tuple[int, str] | None = None
    message: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
    line: Callable[[bytes], bytes] | None = None
    binary: bytes | None = None

    def concerns(self, request: web.Request) -> bool:
        return bool(re.fullmatch(self.path, request.path) and re.fullmatch(self.method, request.method))


class BrokenServer:
    """The proxy as an application."""

    def __init__(self, upstream: str, breakage: Breakage | None) -> None:
        self._upstream = upstream
        self._breakage = breakage
        self._http: aiohttp.ClientSession | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        breakage = self._breakage if self._breakage is not None and self._breakage.concerns(request) else None
        if breakage is not None and breakage.swallow is not None:
            status, text = breakage.swallow
            return web.Response(status=status, text=text or None, content_type="application/json")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._relay_socket(request, breakage)
        return await self._relay(request, breakage)

    def _target(self, request: web.Request) -> URL:
        return URL(self._upstream + request.raw_path, encoded=True)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                auto_decompress=False, skip_auto_headers=["User-Agent", "Content-Type", "Accept-Encoding"]
            )
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def _relay(self, request: web.Request, breakage: Breakage | None) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        body = await request.read()
        async with self._session().request(
            request.method, self._target(request), headers=headers, data=body or None, allow_redirects=False
        ) as upstream:
            if upstream.content_type == "text/event-stream":
                return await self._relay_events(request, upstream, breakage)
            answer = Answer(upstream.status, upstream.headers.get("Content-Type", ""), await upstream.read())
            if breakage is not None and breakage.spoil is not None:
                breakage.spoil(answer)
            kept = {} if not answer.content_type else {"Content-Type": answer.content_type}
            return web.Response(status=answer.status, headers=kept, body=answer.body or None)

    async def _relay_events(
        self, request: web.Request, upstream: aiohttp.ClientResponse, breakage: Breakage | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for line in upstream.content:
            spoilt = breakage.line(line) if breakage is not None and breakage.line is not None else line
            await response.write(spoilt)
        return response

    async def _relay_socket(self, request: web.Request, breakage: Breakage | None) -> web.StreamResponse:
        kept = ("Authorization", "Date", "X-BackendAI-Version", "X-BackendAI-Domain", "User-Agent", "Host")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        async with self._session().ws_connect(self._target(request), headers=headers) as upstream:
            near = web.WebSocketResponse()
            await near.prepare(request)

            async def inward() -> None:
                async for message in near:
                    if message.type is WSMsgType.TEXT:
                        await upstream.send_str(message.data)
                    elif message.type is WSMsgType.BINARY:
                        await upstream.send_bytes(message.data)
                await upstream.close()

            reader = asyncio.create_task(inward())
            async for message in upstream:
                if message.type is WSMsgType.BINARY:
                    told_bytes = message.data if breakage is None or breakage.binary is None else breakage.binary
                    await near.send_bytes(told_bytes)
                if message.type is not WSMsgType.TEXT:
                    continue
                told: dict[str, Any] | None = json.loads(message.data)
                if told is not None and breakage is not None and breakage.message is not None:
                    told = breakage.message(told)
                if told is not None:
                    await near.send_json(told)
            await near.close()
            reader.cancel()
            return near


@contextlib.contextmanager
def broken_server(upstream: str, breakage: Breakage | None) -> Iterator[str]:
    """The proxy on a port of this machine, in a thread of its own; gives its endpoint."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    started = threading.Event()
    found: list[str] = []

    async def serve() -> None:
        server = BrokenServer(upstream, breakage)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        started.set()
        await stop.wait()
        await runner.cleanup()
        await server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
