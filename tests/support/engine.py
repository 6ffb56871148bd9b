"""A server of OpenAI's interface for tests, with the faults that engines have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from tests.support.serving import serve

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


class FakeEngine:
    """Answers as ``mode`` says: ``ok``, ``hang``, ``trickle``, ``garbage``, ``busy`` (503), ``broken`` (500), ``cut``
    (in the middle of an answer), ``die`` (before it), ``lie`` (impossible usage)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mode = "ok"
        self.delay_s = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.open = 0
        self.aborted = asyncio.Event()
        self.released = asyncio.Event()
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        self.headers.append(dict(request.headers))
        data = await request.read()
        with suppress(ValueError):
            self.bodies.append(json.loads(data))
        self.open += 1
        try:
            return await self._answer(request, self.bodies[-1] if data and self.bodies else {})
        except asyncio.CancelledError:
            self.aborted.set()
            raise
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        match self.mode:
            case "hang":
                await self.released.wait()
            case "die":
                transport.abort()
                return web.Response()
            case "garbage":
                transport.write(b"\x00\xffthis is no answer\r\n\r\n")
                transport.close()
                return web.Response()
            case "busy" | "broken":
                return web.json_response({"error": "busy"}, status=503 if self.mode == "busy" else 500)
        if isinstance(body, dict) and body.get("stream") is True:
            return await self._stream(request, body)
        usage: dict[str, Any] = {"prompt_tokens": -7, "completion_tokens": 10**40} if self.mode == "lie" else USAGE
        return web.json_response({"id": self.name, "choices": [{"message": {"content": "hi"}}], "usage": usage})

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(3):
            delta = {"id": self.name, "choices": [{"delta": {"content": f"word{number} "}}]}
            await response.write(b"data: " + json.dumps(delta).encode() + b"\n\n")
            if self.mode == "trickle":
                await self.released.wait()
            if self.mode == "cut":
                assert request.transport is not None
                request.transport.abort()
                return response
        if (body.get("stream_options") or {}).get("include_usage"):
            last = {"id": self.name, "choices": [], "usage": USAGE}
            await response.write(b"data: " + json.dumps(last).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def running_engine(name: str) -> AsyncIterator[FakeEngine]:
    """Runs an engine on a port of this host."""
    engine = FakeEngine(name)
    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", engine.handle)
    runner, engine.port = await serve(application, "127.0.0.1", 0)
    runner._shutdown_timeout = 0.1
    try:
        yield engine
    finally:
        engine.released.set()
        await runner.cleanup()
