"""A small API on a real port, to try the kit without any daemon, on asyncio's loop and on uvloop's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pytest
from aiohttp import WSMsgType, web
from msgspec import Meta

from ai.backend.common.errors import NotFound
from ai.backend.infra.http.health import HealthApi, VersionApi
from ai.backend.infra.http.multipart import UploadedFile, read_files, send_archives
from ai.backend.infra.http.openapi import OpenApiApi
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Reply, Schema, endpoints_of, route
from ai.backend.infra.http.server import HttpOptions, HttpServer
from ai.backend.infra.http.signature import Authenticator, SigningKey
from ai.backend.infra.http.streams import SseEvent, open_socket, send_events
from ai.backend.infra.telemetry import Metrics, log_context
from tests.support.event_loops import both_loops
from tests.support.serving import serve
from tests.support.signed_http import RawClient

ACCESS, SECRET = "AKTEST", "secret-of-test"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return both_loops()


class Thing(Schema, frozen=True):
    name: str
    size: Annotated[int, Meta(ge=1, le=10)] = 1


class Find(Schema, frozen=True):
    path: str = "/"
    files: list[str] = msgspec.field(default_factory=list)


class ThingReply(msgspec.Struct):
    name: str


@dataclass
class Keys:
    keys: dict[str, SigningKey] = field(default_factory=dict)
    lookups: int = 0
    asked: list[set[str]] = field(default_factory=list)
    fails: bool = False

    async def find_key(self, access_key: str) -> SigningKey | None:
        self.lookups += 1
        return self.keys.get(access_key)

    async def active(self, access_keys: Collection[str]) -> set[str]:
        self.asked.append(set(access_keys))
        if self.fails:
            raise RuntimeError("the store is away")
        return {key for key in access_keys if key in self.keys and self.keys[key].is_active}

    def put(
        self, access_key: str = ACCESS, *, active: bool = True, limit: int | None = None, networks: tuple[str, ...] = ()
    ) -> None:
        self.keys[access_key] = SigningKey(
            secret_key=SECRET,
            is_active=active,
            rate_limit=limit,
            identity={"who": access_key},
            networks=networks,
        )


class Trail:
    def __init__(self) -> None:
        self.notes: list[tuple[str, str, Any]] = []
        self.noted = asyncio.Event()

    async def record(self, call: Call[Any, Any], outcome: str) -> None:
        self.notes.append((call.endpoint.name, outcome, call.identity))
        self.noted.set()


class DemoApi:
    owner_key = OwnerKey.NAMED

    def __init__(self) -> None:
        self.events: list[SseEvent] = [SseEvent("one", {"n": 1}, "1"), SseEvent("two", {"n": 2}, "2")]
        self.hold = asyncio.Event()
        self.hold.set()
        self.source_closed = asyncio.Event()
        self.entered = asyncio.Event()

    @route("POST", "/things", body=Thing, body_aliases={"title": "name"}, reply=ThingReply, status=201)
    async def make(self, call: Call[Thing]) -> Thing:
        """Make a thing."""
        return call.body

    @route("GET", "/things/{t}", query=Find)
    async def find(self, call: Call[Nothing, Find]) -> dict[str, Any]:
        """Find."""
        return {
            "t": call.params["t"],
            "path": call.query.path,
            "files": call.query.files,
            "owner": call.owner_access_key,
            "method": call.request.method,
            "request_id": log_context()["request_id"],
        }

    @route("DELETE", "/things/{t}", query=Find)
    async def delete(self, call: Call[Nothing, Find]) -> None:
        """Delete."""

    @route("PATCH", "/things/{t}")
    async def fail(self, call: Call) -> None:
        """Fail."""
        if call.params["t"] == "missing":
            raise NotFound(data={"t": "missing"})
        raise RuntimeError("secret detail")

    @route("PUT", "/slow")
    async def slow(self, call: Call) -> None:
        """Take one's time."""
        self.entered.set()
        await self.hold.wait()

    @route("GET", "/open", auth=False)
    async def open(self, call: Call) -> Reply:
        """Anyone."""
        return Reply({"open": True}, 200, {"X-Extra": "1"})

    @route("POST", "/files", kind="upload", max_body=3 * (64 + 1024))
    async def upload(self, call: Call) -> dict[str, Any]:
        """Upload."""
        files = await read_files(call, max_files=2, max_file_bytes=64)
        return {f.name: len(f.data) for f in files}

    @route("GET", "/files")
    async def download(self, call: Call) -> web.StreamResponse:
        """Download."""
        return await send_archives(call.request, [UploadedFile("a b.tar", b"\r\n--x" * 9), UploadedFile("e.tar", b"")])

    @route("GET", "/events", kind="stream", auth=False)
    async def stream(self, call: Call) -> web.StreamResponse:
        """Events."""

        async def source() -> AsyncIterator[SseEvent]:
            try:
                for event in self.events:
                    yield event
                await self.hold.wait()
            finally:
                self.source_closed.set()

        return await send_events(call.request, source(), heartbeat_s=0.05)

    @route("GET", "/events/signed", kind="stream")
    async def signed(self, call: Call) -> web.StreamResponse:
        """The same."""
        return await self.stream(call)

    @route("GET", "/socket/flood", kind="socket")
    async def flood(self, call: Call) -> web.StreamResponse:
        """Never read, and write for ever."""
        async with open_socket(call.request, heartbeat_s=None) as socket:
            try:
                while not socket.closed:
                    await socket.send_bytes(bytes(65_536))
            finally:
                self.source_closed.set()
        return socket

    @route("GET", "/events/refused", kind="stream", auth=False)
    async def refused(self, call: Call) -> web.StreamResponse:
        """No events."""

        async def source() -> AsyncIterator[SseEvent]:
            if self.events:
                raise NotFound("no such source")
            yield SseEvent("never", {})

        return await send_events(call.request, source())

    @route("GET", "/socket", kind="socket")
    async def socket(self, call: Call) -> web.StreamResponse:
        """Echo."""
        async with open_socket(call.request) as socket:
            async for message in socket:
                if message.type is WSMsgType.TEXT and message.data == "boom":
                    raise NotFound("nothing here")
                await socket.send_str(f"echo {message.data}")
        return socket


@dataclass
class Demo:
    api: DemoApi
    keys: Keys
    trail: Trail
    port: int
    runner: web.AppRunner
    ready: dict[str, bool]
    server: HttpServer

    def client(self, **how: Any) -> RawClient:
        return RawClient(**{"port": self.port, "access_key": ACCESS, "secret_key": SECRET, **how})


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    api, keys, trail, metrics, ready = DemoApi(), Keys(), Trail(), Metrics("demo"), {"database": True}
    keys.put()

    async def readiness() -> Mapping[str, bool]:
        return ready

    endpoints = [
        *endpoints_of(api),
        *endpoints_of(HealthApi(metrics, readiness)),
        *endpoints_of(VersionApi(manager="23.09", build="1")),
    ]
    server = HttpServer(
        [*endpoints, *endpoints_of(OpenApiApi(endpoints, title="Demo", version="1"))],
        metrics=metrics,
        authenticator=Authenticator(keys, key_ttl_s=0.3, trusted_proxies=frozenset({"127.0.0.1"})),
        audit=trail,
        options=HttpOptions(anonymous_rate_limit=8, trusted_proxies=frozenset({"127.0.0.1"})),
        active_keys=keys.active,
    )
    runner, port = await serve(server.application(), "127.0.0.1", 0)
    try:
        yield Demo(api, keys, trail, port, runner, ready, server)
    finally:
        api.hold.set()
        await runner.cleanup()
