"""The manager's real application on a port, over the real services, SQLite and a scripted agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from yarl import URL

from ai.backend.common.errors import RunError
from ai.backend.common.states import RunMode, RunStatus
from ai.backend.common.wire.execution import (
    Complete,
    DownloadFiles,
    Execute,
    FileEntry,
    FileListing,
    KernelRef,
    ListFiles,
    OpenPty,
    PtyFrame,
    RunResult,
    TarFile,
)
from ai.backend.common.wire.link import PtyStream
from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.http.errors import PROBLEM_TYPE
from ai.backend.infra.http.openapi import problem_statuses
from ai.backend.infra.http.routes import ROUTED
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.composition.app import build_app
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.sessions.settings import SessionSettings
from tests.component.manager.api.shell import Shell
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent
from tests.support.fake_artifacts import FakeDepot, FakeReservoirs
from tests.support.fake_storage import FakeStorage
from tests.support.migrated import migrated
from tests.support.serving import serve
from tests.support.signed_http import RawClient, RawReply


class EchoPty:
    """A terminal that says what it hears; ``exit`` closes it."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[PtyFrame] = asyncio.Queue()
        self.heard: list[PtyFrame] = []
        self.closed = asyncio.Event()

    async def send(self, frame: PtyFrame) -> None:
        self.heard.append(frame)
        if frame.kind == "stdin":
            kind = "closed" if frame.data == b"exit" else "out"
            code = 7 if kind == "closed" else None
            await self.frames.put(PtyFrame(kind=kind, data=frame.data, exit_code=code))  # type: ignore[arg-type]  # one of two literals

    async def __aiter__(self) -> AsyncIterator[PtyFrame]:
        while True:
            yield await self.frames.get()

    async def close(self) -> None:
        self.closed.set()


@dataclass
class ApiAgent(FakeAgent):
    """``code`` scripts a run: words are its steps (``sleep``, ``ask``, ``out:TEXT``, ``hang``, ``boom``)."""

    executed: list[Execute] = field(default_factory=list)
    interrupted: int = 0
    began: asyncio.Event = field(default_factory=asyncio.Event)
    was_interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    completions: list[Complete] = field(default_factory=list)
    downloads: list[DownloadFiles] = field(default_factory=list)
    ptys: list[EchoPty] = field(default_factory=list)
    pty_requests: list[OpenPty] = field(default_factory=list)
    steps: dict[str, list[str]] = field(default_factory=dict)
    input_times_out: bool = False

    async def execute(self, req: Execute) -> RunResult:
        self.executed.append(req)
        self.began.set()
        if req.mode is RunMode.BATCH:
            self.steps[req.run_id] = ["clean", "build", "out:run"]
        elif req.mode is RunMode.QUERY:
            self.steps[req.run_id] = req.code.split(" ")
        steps = self.steps[req.run_id]
        if steps[:1] == ["asked"] and (req.mode is RunMode.INPUT or self.input_times_out):
            steps.pop(0)
        step = steps.pop(0) if steps else "end"
        told: dict[str, Any] = {"run_id": req.run_id, "status": RunStatus.CONTINUED, "console": []}
        if req.mode is RunMode.INPUT:
            told["console"] = [["stdout", f"got {req.code}"]]
        if step.startswith("out:"):
            told["console"].append(["stdout", step[4:]])
        if step.startswith("big:"):
            told["console"].append(["stdout", "\0" * int(step[4:])])
        if step == "hang":
            steps.insert(0, "hang")
            await asyncio.sleep(0.01)
        if step == "boom":
            raise RunError("the run is gone")
        told["status"] = {
            "clean": RunStatus.CLEAN_FINISHED,
            "build": RunStatus.BUILD_FINISHED,
            "ask": RunStatus.WAITING_INPUT,
            "asked": RunStatus.WAITING_INPUT,
        }.get(step, RunStatus.CONTINUED if steps else RunStatus.FINISHED)
        if step in ("ask", "asked"):
            steps.insert(0, "asked")
            told["options"] = {"is_password": False}
        if told["status"] is RunStatus.FINISHED:
            told["exit_code"] = 0
        return RunResult(**told)

    async def interrupt(self, req: KernelRef) -> None:
        self.interrupted += 1
        self.was_interrupted.set()

    async def complete(self, req: Complete) -> list[str]:
        self.completions.append(req)
        return ["print", "printf"]

    async def download_files(self, req: DownloadFiles) -> list[TarFile]:
        self.downloads.append(req)
        return [TarFile(name=path.rpartition("/")[2], tar=b"tar of " + path.encode()) for path in req.paths]

    async def list_files(self, req: ListFiles) -> FileListing:
        entries = [FileEntry(filename="a.txt", size=3, mode="-rw-r--r--", mtime=1700000000.5)]
        return FileListing(entries=entries, folder_path=f"/home/work/{req.path}")

    async def open_pty(self, req: OpenPty) -> PtyStream:
        self.pty_requests.append(req)
        self.ptys.append(EchoPty())
        return self.ptys[-1]


async def check_declared(undeclared: list[str], request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Notes a reply whose status, media type or fields its endpoint does not declare, and so openapi.json neither."""
    routed = request.get(ROUTED)
    call = routed.call if routed is not None else None
    if call is None:
        return
    endpoint, what = call.endpoint, f"{call.endpoint.template}: {response.status}"
    if response.content_type == PROBLEM_TYPE:
        if response.status not in problem_statuses(endpoint):
            undeclared.append(f"{what} is no status of its problems")
        return
    if response.status not in endpoint.statuses:
        undeclared.append(f"{what} is none of {endpoint.statuses}")
    if response.status == 204 or endpoint.kind in ("stream", "socket"):
        return
    if response.content_type not in endpoint.produces:
        undeclared.append(f"{what} is {response.content_type}, none of {endpoint.produces}")
    if endpoint.reply is None or response.content_type != "application/json":
        return
    if isinstance(response, web.Response) and isinstance(response.body, bytes):
        told = msgspec.json.decode(response.body)
        try:
            declared = msgspec.json.decode(msgspec.json.encode(msgspec.convert(told, endpoint.reply)))
        except msgspec.ValidationError as error:
            undeclared.append(f"{what}: {error}")
        else:
            if declared != told:
                undeclared.append(f"{what}: {told} is not {declared}")


@dataclass
class Api:
    """The served manager; ``user``, ``other`` and ``admin`` are clients with keypairs."""

    cluster: Cluster
    agent: ApiAgent
    port: int
    user: RawClient
    other: RawClient
    admin: RawClient
    storage: FakeStorage

    async def create(self, client: RawClient | None = None, **body: Any) -> dict[str, Any]:
        reply = await (client or self.user).request("POST", "/session", json={"image": "python", **body})
        assert reply.status in (200, 201), reply.body
        told: dict[str, Any] = reply.json()
        return told

    async def gql(self, query: str, client: RawClient | None = None, **variables: Any) -> dict[str, Any]:
        """The whole reply to a query, which always has status 200."""
        reply: RawReply = await (client or self.user).request(
            "POST", "/admin/gql", json={"query": query, "variables": variables}
        )
        assert reply.status == 200, reply.body
        told: dict[str, Any] = reply.json()
        return told

    async def socket(
        self, session: aiohttp.ClientSession, target: str, client: RawClient | None = None
    ) -> aiohttp.ClientWebSocketResponse:
        head = (client or self.user).head("GET", target, content_type=None).decode().split("\r\n")[1:-2]
        headers = {name: value for name, _, value in (line.partition(": ") for line in head)}
        return await session.ws_connect(URL(f"http://127.0.0.1:{self.port}{target}", encoded=True), headers=headers)


@pytest.fixture
def storage(tmp_path: Path) -> FakeStorage:
    return FakeStorage(tmp_path / "storage", "local:volume1", "local:volume2", "far:away")


@pytest.fixture
def depot(tmp_path: Path) -> FakeDepot:
    return FakeDepot(tmp_path / "depot")


@pytest.fixture
async def cluster(tmp_path: Path, storage: FakeStorage, depot: FakeDepot) -> AsyncIterator[Cluster]:
    """As for the services, but with agents that may be silent for a while."""
    link, database = MemoryLink(), Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
    settings = ManagerSettings(sessions=SessionSettings(retry_backoff_s=0.05, destroy_wait_s=5.0))
    manager = Manager(
        settings,
        database,
        Bus(),
        link.manager,
        storage=storage,
        artifacts=depot,
        reservoirs=FakeReservoirs(),
        hash_password=lambda password: password,
        verify_password=lambda kept, given: kept == given,
    )
    await manager.start()
    await link.manager.start(manager.reports)
    made = await manager.bootstrap.run(vfolder_hosts=["local:volume1", "far:away"])
    callers = []
    for pair in (made.admin, made.user):
        assert pair is not None
        credentials = await manager.services.identity.credentials(pair.access_key)
        assert credentials is not None
        callers.append(credentials.caller)
    try:
        yield Cluster(manager=manager, link=link, database=database, admin=callers[0], user=callers[1])
    finally:
        await link.manager.stop()
        await manager.stop()
        await database.close()


@pytest.fixture
async def api(cluster: Cluster, storage: FakeStorage) -> AsyncIterator[Api]:
    agent = ApiAgent()
    await cluster.join(agent)
    identity = cluster.manager.services.identity
    _, pair = await cluster.manager.services.users.create_user(cluster.admin, "other@local", "a long password", {})
    app = build_app(cluster.manager)
    undeclared: list[str] = []
    app.on_response_prepare.append(partial(check_declared, undeclared))
    runner, port = await serve(app, "127.0.0.1", 0)

    async def client(access_key: str) -> RawClient:
        credentials = await identity.credentials(access_key)
        assert credentials is not None
        return RawClient(port=port, access_key=access_key, secret_key=credentials.secret_key)

    try:
        yield Api(
            cluster=cluster,
            agent=agent,
            port=port,
            user=await client(cluster.user.access_key),
            other=await client(pair.access_key),
            admin=await client(cluster.admin.access_key),
            storage=storage,
        )
    finally:
        await runner.cleanup()
        await agent.close()
    assert undeclared == [], "replies that openapi.json does not declare"


@pytest.fixture
def shell(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Shell(api, monkeypatch)
