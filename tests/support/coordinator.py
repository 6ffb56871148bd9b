"""A real coordinator of the app proxy, its callers, and a worker that acknowledges what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import aiohttp
import jwt
import msgspec

from ai.backend.appproxy.coordinator.composition import Coordinator
from ai.backend.appproxy.coordinator.config.settings import CoordinatorSettings
from ai.backend.common.wire.appproxy import (
    SETUP_AUDIENCE,
    SETUP_KEY,
    TOKEN_HEADER,
    Ack,
    Change,
    Circuit,
    CircuitUsage,
    Counted,
    InferenceUsage,
    State,
    ToWorker,
    UsageReport,
    purpose_key,
)
from ai.backend.infra.database import Database

SECRET = "s" * 40
_decode = msgspec.json.Decoder(ToWorker).decode


def settings_of(folder: Path, **process: Any) -> CoordinatorSettings:
    """Settings of a coordinator on any free port."""
    table = {"bind-addr": {"host": "127.0.0.1", "port": 0}, "data-dir": str(folder), **process}
    return CoordinatorSettings.model_validate({"proxy-coordinator": table, "secrets": {"api-secret": SECRET}})


@asynccontextmanager
async def running(settings: CoordinatorSettings, url: str | None = None) -> AsyncIterator[Coordinator]:
    """A coordinator that serves; ``url`` names another database than the one in its folder."""
    coordinator = Coordinator(settings, database=Database(url) if url is not None else None)
    try:
        await coordinator.start()
        yield coordinator
    finally:
        await coordinator.stop()


@dataclass
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        return str(self.body.get("msg"))


@dataclass
class Caller:
    """Sends requests of managers and workers (with the secret), and of browsers (without)."""

    http: aiohttp.ClientSession
    url: str
    secret: str = SECRET

    async def __call__(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        sent = {TOKEN_HEADER: self.secret} if headers is None else headers
        async with self.http.request(
            method, self.url + path, json=body, headers=sent, allow_redirects=False
        ) as response:
            raw = await response.read()
            parsed = msgspec.json.decode(raw) if "json" in response.headers.get("Content-Type", "") else raw
            return Answer(response.status, parsed, dict(response.headers))

    async def conf(self, session: UUID, user: UUID, **changes: Any) -> str:
        body = {
            "login_session_token": None,
            "kernel_host": "127.0.0.1",
            "kernel_port": 6100,
            "session": {"id": str(session), "user_uuid": str(user), "group_id": "g", "domain_name": "default"},
            **changes,
        }
        answer = await self("POST", "/v2/conf", body)
        assert answer.status == 200, answer.body
        return str(answer.body["token"])

    async def browse(self, token: str, session: UUID, query: str = "app=jupyterlab&protocol=http") -> Answer:
        """Opens the address as a browser does, and returns the answer."""
        return await self("GET", f"/v2/proxy/{token}/{session}/add?{query}", headers={"Accept": "text/html,*/*"})


def registration(authority: str = "worker-1", **changes: Any) -> dict[str, Any]:
    return {
        "authority": authority,
        "frontend_mode": "port",
        "protocol": "http",
        "hostname": "apps.example.com",
        "use_tls": False,
        "api_port": 10201,
        "port_range": [10205, 10214],
        "wildcard_domain": None,
        "filtered_apps_only": False,
        "accepted_traffics": ["interactive", "inference"],
        "app_filters": [],
        **changes,
    }


def code_of(url: str) -> dict[str, Any]:
    """The claims of the set-up code in a URL, verified as workers do."""
    code = parse_qs(urlsplit(url).query)["code"][0]
    return dict(jwt.decode(code, purpose_key(SECRET, SETUP_KEY), algorithms=["HS256"], audience=SETUP_AUDIENCE))


@dataclass
class FakeWorker:
    """A worker with a link that acknowledges each version, and refuses the ports of ``broken``."""

    call: Caller
    document: dict[str, Any]
    node: str = field(default_factory=lambda: uuid4().hex)
    broken: set[int] = field(default_factory=set)
    acknowledges: bool = True
    id: UUID | None = None
    version: int = -1
    circuits: dict[UUID, Circuit] = field(default_factory=dict)
    counted: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _socket: aiohttp.ClientWebSocketResponse | None = None
    _task: asyncio.Task[None] | None = None

    async def register(self) -> dict[str, Any]:
        answer = await self.call("PUT", "/api/worker", {**self.document, "node": self.node})
        assert answer.status == 200, answer.body
        self.id = UUID(answer.body["id"])
        return dict(answer.body)

    async def link(self) -> None:
        url = f"{self.call.url}/api/worker/{self.id}/link?node={self.node}"
        self._socket = await self.call.http.ws_connect(url, headers={TOKEN_HEADER: self.call.secret})
        self._task = asyncio.ensure_future(self._run(self._socket))

    async def _run(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            frame = _decode(message.data)
            if isinstance(frame, Counted):
                self.counted = frame.sequence
            else:
                await self._apply(socket, frame)
            self.changed.set()
            self.changed = asyncio.Event()

    async def _apply(self, socket: aiohttp.ClientWebSocketResponse, frame: State | Change) -> None:
        if isinstance(frame, State):
            self.circuits = {each.id: each for each in frame.circuits}
            new = frame.circuits
        else:
            self.circuits |= {each.id: each for each in frame.set}
            for removed in frame.removed:
                self.circuits.pop(removed, None)
            new = frame.set
        self.version = frame.version
        if self.acknowledges:
            failed = {each.id: "the port is in use" for each in new if each.port in self.broken}
            await socket.send_str(msgspec.json.encode(Ack(version=frame.version, failed=failed)).decode())

    async def report(
        self, sequence: int, time: float, *uses: CircuitUsage, inference: Sequence[InferenceUsage] = ()
    ) -> None:
        assert self._socket is not None
        frame = UsageReport(sequence=sequence, time=time, circuits=list(uses), inference=list(inference))
        await self._socket.send_str(msgspec.json.encode(frame).decode())
        await self.until(lambda: self.counted >= sequence)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                changed = self.changed
                if not condition():
                    await changed.wait()

    async def unlink(self) -> None:
        if self._socket is not None:
            await self._socket.close()
        if self._task is not None:
            await self._task


@asynccontextmanager
async def linked_worker(call: Caller, **changes: Any) -> AsyncIterator[FakeWorker]:
    worker = FakeWorker(call, registration(**changes))
    await worker.register()
    await worker.link()
    try:
        yield worker
    finally:
        await worker.unlink()
