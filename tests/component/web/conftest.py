"""A web server on a port, before a manager that checks signatures and answers as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ai.backend.common.signing import SignedParts, media_type, parse_authorization, sign
from ai.backend.web.composition import WebServer
from ai.backend.web.config.settings import WebSettings
from tests.support.serving import serve

ACCESS_KEY, SECRET_KEY = "AKIATESTTESTTESTTEST", "secret" * 8
PASSWORD = "correct horse battery"


@dataclass
class FakeManager:
    """Signs one user in; every other request must be signed by the user's keys unless it is the version probe."""

    requests: list[web.Request] = field(default_factory=list)
    sign_ins: list[dict[str, Any]] = field(default_factory=list)
    otp: str = ""
    role: str = "user"
    proof: dict[str, Any] | None = None
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    closed_sockets: asyncio.Event = field(default_factory=asyncio.Event)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/auth/authorize", self.authorize)
        app.router.add_post("/auth/update-password-no-auth", self.update_password)
        app.router.add_get("/", self.version)
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    async def version(self, _: web.Request) -> web.Response:
        if self.silent.is_set():
            await asyncio.sleep(60)  # longer than any probe waits
        return web.json_response({"version": "v7.20230615", "manager": "23.09.10"})

    async def authorize(self, request: web.Request) -> web.Response:
        fields = await request.json()
        self.sign_ins.append({**fields, "address": request.headers.get("X-Forwarded-For")})
        if fields["password"] != PASSWORD:
            problem = {"type": "p", "title": "Refused", "msg": "The address or the password is wrong."}
            return web.json_response(problem, status=401)
        if self.otp and fields.get("otp") != self.otp:
            kind = "wrong" if "otp" in fields else "missing"
            text = "Invalid TOTP code provided" if "otp" in fields else "OTP not provided"
            return web.json_response({"type": "p", "title": "Refused", "msg": text, "data": {"otp": kind}}, status=401)
        keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "role": "user", "status": "active"}
        return web.json_response({"data": {"response_type": "success", **keys}})

    async def update_password(self, request: web.Request) -> web.Response:
        fields = await request.json()
        self.sign_ins.append(fields)
        if fields["current_password"] != PASSWORD:
            return web.json_response({"type": "p", "title": "Refused"}, status=401)
        if len(fields["new_password"]) < 8:
            return web.json_response({"type": "p", "title": "Refused"}, status=400)
        return web.json_response({"error_msg": None})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        credential = parse_authorization(request.headers.get("Authorization", ""))
        parts = SignedParts(
            method=request.method,
            raw_target=request.raw_path,
            date=request.headers["Date"],
            host=request.headers["Host"],
            content_type=media_type(request.headers.get("Content-Type")),
            version=request.headers["X-BackendAI-Version"],
        )
        assert credential.access_key == ACCESS_KEY
        assert credential.signature == sign(parts, SECRET_KEY)
        return await self._answer(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/auth/role":
            return web.json_response({"global_role": self.role, "path": path})
        if path == "/auth/proof":
            given = await request.json()
            if given.get("password") not in (None, PASSWORD):
                return web.json_response({"type": "p", "title": "Refused"}, status=401)
            expires_at = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
            made = {"proof": "head.payload.signature", "expires_at": expires_at}
            return web.json_response(made if self.proof is None else self.proof)
        if path == "/stream/echo":
            return await self._echo(request)
        if path == "/unread":
            await asyncio.sleep(0.1)  # whatever will come of the body has come
            return web.json_response({})
        if path == "/broken":
            response = web.StreamResponse(headers={"Content-Length": request.query["bytes"]})
            await response.prepare(request)
            await response.write(b"half")
            assert request.transport is not None
            request.transport.close()
            return response
        if path == "/events":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"event: tick\ndata: {}\n\n")
                    await asyncio.sleep(0.05)
            finally:
                self.broken.set()
        body = await request.read()
        answer = {"path": request.raw_path, "method": request.method, "bytes": len(body)}
        headers = {"Set-Cookie": "a=b; Domain=example.com", "X-Extra": "kept", "Access-Control-Allow-Origin": "*"}
        return web.json_response({**answer, "headers": dict(request.headers)}, headers=headers)

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is web.WSMsgType.BINARY:
                await socket.send_bytes(message.data)
            elif message.data == "bye":
                await socket.close(code=4001)
            else:
                await socket.send_str(message.data)
        self.closed_sockets.set()
        return socket


@dataclass
class Site:
    """A web server, its manager, and a browser that logs in."""

    url: str
    manager: FakeManager
    http: aiohttp.ClientSession
    server: WebServer

    async def login(self, password: str = PASSWORD, **options: Any) -> dict[str, Any]:
        body = {"username": "User@Example.com", "password": password}
        async with self.http.post(f"{self.url}/server/login", json=body, **options) as response:
            return {"status": response.status, **(await response.json(content_type=None))}


MakeSite = Callable[..., Awaitable[Site]]


@asynccontextmanager
async def running_site(folder: Path, *, manager: FakeManager | None = None, **tables: Any) -> AsyncIterator[Site]:
    manager = manager or FakeManager()
    runner, port = await serve(manager.application(), "127.0.0.1", 0)
    given = {
        "service": {"port": 0, **tables.pop("service", {})},
        "session": {"file": str(folder / "logins.db"), **tables.pop("session", {})},
        "api": {"endpoint": f"http://127.0.0.1:{port}", **tables.pop("api", {})},
    }
    server = WebServer(WebSettings.model_validate({**given, **tables}))
    await server.start()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        yield Site(server.url, manager, http, server)
    await server.stop()
    await runner.cleanup()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as running:
        yield running
