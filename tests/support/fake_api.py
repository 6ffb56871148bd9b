"""A manager's API in a few hundred lines: it verifies every signature and keeps sessions in memory.

For the tests of the client and the command line. It answers as the client wire contract says; code is "run" by
:func:`interpret`, which knows a handful of programs.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import tarfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from aiohttp import BodyPartReader, MultipartWriter, WSMsgType, web

from ai.backend.common.signing import SignedParts, media_type, parse_authorization, sign

ACCESS_KEY = "AKTESTTESTTESTTEST01"
SECRET_KEY = "secret-of-the-tests-0123456789abcdef"


DEVICES = {
    "cpu": [{"device_id": "0", "model_name": "CPU"}],
    "mock": [{"device_id": "mock-0", "model_name": "Mock Device"}],
}


@dataclass
class FakeSession:
    name: str
    body: dict[str, Any]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: str = "RUNNING"
    status_info: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    log: str = ""
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    restarts: int = 0
    result: str = "UNDEFINED"
    exit_code: int | None = None
    history: dict[str, str] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "main_kernel_id": self.id,
            "name": self.name,
            "image": self.body["image"],
            "type": self.body.get("type", "interactive"),
            "status": self.status,
            "status_info": self.status_info,
            "status_data": None,
            "result": self.result,
            "access_key": ACCESS_KEY,
            "group_name": self.body.get("group"),
            "domain_name": self.body.get("domain"),
            "tag": self.body.get("tag"),
            "occupying_slots": json.dumps(self.body["config"].get("resources") or {}),
            "agent_ids": ["i-fake"],
            "status_history": json.dumps(self.history),
            "containers": [
                {
                    "id": self.id,
                    "role": "master",
                    "cluster_role": "main",
                    "exit_code": self.exit_code,
                    "attached_devices": json.dumps(DEVICES),
                    "cluster_hostname": "main1",
                }
            ],
        }


Step = dict[str, Any]


def finished(exit_code: int = 0, *, console: list[list[Any]] | None = None, **more: Any) -> Step:
    return {"status": "finished", "exitCode": exit_code, "console": console or [], "options": None, "files": []} | more


class FakeApi:
    """The application, and what happened to it.

    Attributes:
        break_reply: called with every JSON answer; a test returns another one to break the server.
        fail_next: how many coming requests are cut off without an answer.
    """

    def __init__(self, *, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> None:
        self.keys = {access_key: secret_key}
        self.sessions: dict[str, FakeSession] = {}
        self.requests: list[web.Request] = []
        self.tokens: dict[str, Any] = {}
        self.fail_next = 0
        self.pending_creations = False
        self.announcement = ""
        self.break_reply: Callable[[str, Any], Any] = lambda _path, reply: reply
        self.events: list[tuple[str, dict[str, Any]]] = []

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=4 << 20)
        app.add_routes(
            [
                web.get("/", self._version),
                web.post("/session", self._create),
                web.get("/session/{s}", self._info),
                web.delete("/session/{s}", self._destroy),
                web.patch("/session/{s}", self._restart),
                web.post("/session/{s}", self._execute),
                web.post("/session/{s}/rename", self._rename),
                web.post("/session/{s}/interrupt", self._interrupt),
                web.post("/session/{s}/complete", self._complete),
                web.post("/session/{s}/upload", self._upload),
                web.get("/session/{s}/download", self._download),
                web.get("/session/{s}/files", self._list_files),
                web.get("/session/{s}/logs", self._logs),
                web.get("/session/{s}/processes", self._processes),
                web.get("/session/{s}/status-history", self._history),
                web.get("/stream/session/{s}/execute", self._stream),
                web.get("/events/session", self._session_events),
                web.get("/events/background-task", self._task_events),
                web.post("/admin/gql", self._graphql),
                web.get("/manager/announcement", self._announcement),
                web.get("/manager/status", self._status),
                web.get("/config/resource-slots", self._slots),
                web.get("/arrays", self._arrays),
            ]
        )
        return app

    # ---- what every request goes through

    @web.middleware
    async def _guard(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        self.requests.append(request)
        if self.fail_next:
            self.fail_next -= 1
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if request.path != "/" and (why := self._refusal(request)):
            return problem(401, "auth-failed", why)
        try:
            response: web.StreamResponse = await handler(request)
        except KeyError as missing:
            return problem(404, "session-not-found", f"There is no session {missing}.")
        return response

    def _refusal(self, request: web.Request) -> str | None:
        header = request.headers.get("Authorization")
        if header is None:
            return "The Authorization header is missing."
        credential = parse_authorization(header)
        secret = self.keys.get(credential.access_key)
        parts = SignedParts(
            method=request.method,
            raw_target=request.raw_path,
            date=request.headers["Date"],
            host=request.headers["Host"],
            content_type=media_type(request.headers.get("Content-Type")),
            version=request.headers["X-BackendAI-Version"],
        )
        if secret is None or sign(parts, secret, hash_name=credential.hash_name) != credential.signature:
            return "The signature does not match."
        return None

    def _json(self, request: web.Request, reply: Any, status: int = 200) -> web.Response:
        return web.json_response(self.break_reply(request.path, reply), status=status)

    def find(self, ref: str) -> FakeSession:
        living = [one for one in self.sessions.values() if one.id == ref or one.name == ref]
        if not living:
            raise KeyError(ref)
        return living[-1]

    def _of(self, request: web.Request) -> FakeSession:
        return self.find(unquote(request.match_info["s"]))

    # ---- sessions

    async def _version(self, request: web.Request) -> web.Response:
        return self._json(request, {"version": "v7.20230615", "manager": "26.11.0"})

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        token = request.headers.get("X-BackendAI-Client-Token", "")
        if token and token in self.tokens:
            return self._json(request, self.tokens[token], 201)
        if not str(body.get("image")):
            return problem(400, "invalid-api-params", "malformed", data={"image": "required"})
        for session in self.sessions.values():
            if session.name == body["name"] and session.status != "TERMINATED":
                if not body.get("reuseIfExists"):
                    return problem(409, "session-already-exists", "", data={"existingSessionId": session.id})
                return self._json(request, self._created(session, created=False))
        session = FakeSession(body["name"], body)
        now = datetime.now(UTC).isoformat()
        session.history = {"pending": now, "running": now}
        if self.pending_creations or body.get("enqueueOnly"):
            session.status, session.status_info = "PENDING", "no-available-instances"
        self.sessions[session.id] = session
        reply = self._created(session, created=True)
        if session.status == "PENDING" and not body.get("enqueueOnly"):
            reply["status"] = "TIMEOUT"
        self.tokens[token] = reply
        return self._json(request, reply, 201)

    def _created(self, session: FakeSession, *, created: bool) -> dict[str, Any]:
        ports = [{"name": "ttyd", "protocol": "http", "ports": [7681]}]
        return {"sessionId": session.id, "created": created, "status": session.status, "servicePorts": ports}

    async def _info(self, request: web.Request) -> web.Response:
        session = self._of(request)
        told = {"sessionId": session.id, "name": session.name, "status": session.status}
        return self._json(request, {**told, "lang": session.body["image"]})

    async def _destroy(self, request: web.Request) -> web.Response:
        session = self._of(request)
        if session.status == "TERMINATED":
            raise KeyError(session.name)
        session.status = "CANCELLED" if session.status == "PENDING" else "TERMINATED"
        self.sessions.pop(session.id)
        return self._json(
            request, {"stats": {"status": "terminated", "cpu_used": {"current": "12", "unit_hint": "msec"}}}
        )

    async def _restart(self, request: web.Request) -> web.Response:
        self._of(request).restarts += 1
        return web.Response(status=204)

    async def _rename(self, request: web.Request) -> web.Response:
        self._of(request).name = request.query["name"]
        return web.Response(status=204)

    async def _interrupt(self, request: web.Request) -> web.Response:
        self._of(request).interrupted.set()
        return web.Response(status=204)

    async def _complete(self, request: web.Request) -> web.Response:
        self._of(request)
        code = (await request.json())["code"]
        return self._json(request, {"result": [name for name in ("print", "printf") if name.startswith(code)]})

    async def _processes(self, request: web.Request) -> web.Response:
        self._of(request)
        metrics = {
            "cpu_util": {"current": "12.5", "capacity": "100", "pct": "12.50", "unit_hint": "percent"},
            "mem": {"current": "3145728", "capacity": None, "pct": "0.00", "unit_hint": "bytes"},
        }
        return self._json(request, {"result": [{"kernel": "main1", "pid": 7, "command": "a b", "metrics": metrics}]})

    async def _logs(self, request: web.Request) -> web.Response:
        return self._json(request, {"result": {"logs": self._of(request).log}})

    async def _history(self, request: web.Request) -> web.Response:
        return self._json(request, {"result": {**self._of(request).history, "terminated": None}})

    # ---- execution

    async def _execute(self, request: web.Request) -> web.Response:
        session, body = self._of(request), await request.json()
        runs = self._runs(session)
        steps = runs.get(body["runId"]) or runs.setdefault(body["runId"], interpret(session, body))
        answer = body["code"] if body["mode"] == "input" else None
        step = await (steps.asend(answer) if answer is not None else anext(steps))
        return self._json(request, {"result": {**step, "runId": body["runId"]}})

    def _runs(self, session: FakeSession) -> dict[str, AsyncGenerator[Step, str]]:
        runs: dict[str, AsyncGenerator[Step, str]] = vars(session).setdefault("runs", {})
        return runs

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        session = self._of(request)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        body = json.loads((await socket.receive()).data)
        steps = interpret(session, body)
        step = await anext(steps)
        while True:
            await socket.send_json(self.break_reply(request.path, step))
            if step["status"] == "finished":
                break
            if step["status"] == "waiting-input":
                message = await socket.receive()
                if message.type is not WSMsgType.TEXT:
                    break
                step = await steps.asend(message.data)
            else:
                step = await anext(steps)
        await socket.close()
        return socket

    # ---- files

    async def _upload(self, request: web.Request) -> web.Response:
        session = self._of(request)
        reader = await request.multipart()
        count = 0
        while (part := await reader.next()) is not None:
            assert isinstance(part, BodyPartReader)
            assert part.name == "src"
            assert part.filename
            session.files[unquote(part.filename)] = content = bytes(await part.read())
            if len(content) > 1_048_576:
                return problem(
                    400, "invalid-api-params", "malformed", data={part.filename: "larger than 1048576 bytes"}
                )
            count += 1
        if count > 20:
            return problem(400, "limit-exceeded", "at most 20 files")
        return web.Response(status=204)

    async def _download(self, request: web.Request) -> web.StreamResponse:
        session = self._of(request)
        names = (await request.json())["files"]
        writer = MultipartWriter("mixed")
        for name in names:
            if name not in session.files:
                return problem(404, "not-found", f"There is no file {name}.")
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w") as tar:
                member = tarfile.TarInfo(name.rpartition("/")[2])
                member.size = len(session.files[name])
                tar.addfile(member, io.BytesIO(session.files[name]))
            writer.append(archive.getvalue(), {"Content-Type": "application/x-tar"})
        return web.Response(body=writer)

    async def _list_files(self, request: web.Request) -> web.Response:
        session = self._of(request)
        listed = [
            {"filename": name, "size": len(data), "mtime": 1_700_000_000.0, "mode": "-rw-r--r--"}
            for name, data in session.files.items()
        ]
        return self._json(request, {"files": json.dumps(listed), "folder_path": "/home/work", "errors": ""})

    # ---- events

    async def _events(self, request: web.Request, told: list[tuple[str, dict[str, Any]]]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        last_id = request.headers.get("Last-Event-ID", "")
        last = int(last_id) if last_id.isdecimal() else 0
        if last_id == "now":
            await response.write(b"event: stream_position\nid: 0\ndata: {}\n\n")
        for number, (name, data) in enumerate([*told, ("server_close", {})], 1):
            if number > last:
                text = f"event: {name}\nid: {number}\nretry: 10\ndata: {json.dumps(data)}\n\n"
                await response.write(text.encode())
            if name == "cut" and number > last:
                await asyncio.sleep(0.05)  # what was written must arrive before the reset does
                assert request.transport is not None
                request.transport.abort()
                return response
        return response

    async def _session_events(self, request: web.Request) -> web.StreamResponse:
        self.find(request.query.get("sessionId") or request.query["sessionName"])
        return await self._events(request, self.events)

    async def _task_events(self, request: web.Request) -> web.StreamResponse:
        return await self._events(request, self.events)

    # ---- everything else

    async def _announcement(self, request: web.Request) -> web.Response:
        return self._json(request, {"enabled": bool(self.announcement), "message": self.announcement})

    async def _status(self, request: web.Request) -> web.Response:
        return self._json(request, {"status": "running", "active_sessions": len(self.sessions)})

    async def _slots(self, request: web.Request) -> web.Response:
        return self._json(request, {"cpu": "count", "mem": "bytes", "mock.device": "count"})

    async def _arrays(self, request: web.Request) -> web.Response:
        return self._json(request, {"items": [], "totalCount": 0})

    async def _graphql(self, request: web.Request) -> web.Response:
        body = await request.json()
        query, variables = body["query"], body["variables"]
        selection = query.partition("items {")[2] or query.partition("{")[2].partition("{")[2]
        selected = [name for name in re.findall(r"\w+", selection) if name != "total_count"]
        if "images(" in query or "images {" in query:
            image = {
                "name": "host/python", "tag": "3.11", "registry": "", "architecture": "x86_64", "digest": "",
                "size_bytes": 0, "aliases": ["python"], "installed": True, "installed_agents": None,
                "resource_limits": [{"key": "mem", "min": "67108864"}],
            }  # fmt: skip
            return self._json(request, {"data": {"images": [image]}})
        if "compute_session_list" in query:
            wanted = (variables.get("status") or "").split(",")
            found = [one.fields() for one in self.sessions.values() if not wanted[0] or one.status in wanted]
            page = found[variables.get("offset", 0) :][: variables.get("limit", 100)]
            items = [{name: item.get(name) for name in selected} for item in page]
            data: dict[str, Any] = {"compute_session_list": {"items": items, "total_count": len(found)}}
        elif "compute_session" in query:
            item = next((one.fields() for one in self.sessions.values() if one.id in variables.values()), None)
            data = {"compute_session": item and {name: item.get(name) for name in selected}}
        elif "agent_list" in query:
            agent = {
                "id": "i-fake",
                "status": "ALIVE",
                "available_slots": '{"cpu": "4"}',
                "occupied_slots": '{"cpu": "1"}',
            }
            data = {"agent_list": {"items": [{name: agent.get(name) for name in selected}], "total_count": 1}}
        elif "keypair" in query:
            pair = {"access_key": ACCESS_KEY, "is_admin": False, "is_active": True, "user_id": "user@localhost"}
            data = {"keypair": {name: pair.get(name) for name in selected}}
        else:
            return web.json_response({"errors": [{"message": "There is no such field."}]})
        return self._json(request, {"data": data})


async def interpret(session: FakeSession, body: dict[str, Any]) -> AsyncGenerator[Step, str]:
    """Pretend to run code: print, input, sleep, an exception, an exit code."""
    code = body["code"] if body["mode"] == "query" else str(body["options"]["exec"])
    session.log += f"ran {code}\n"
    environ = session.body["config"].get("environ") or {}
    if body["mode"] == "batch":
        if body["options"]["build"]:
            yield {"status": "build-finished", "exitCode": 0, "console": [["stdout", "built\n"]], "options": None}
        exit_code = int(match[1]) if (match := re.search(r"exit (\d+)", code)) else 0
        yield finished(exit_code, console=[["stdout", f"executed {code}\n"]], files=[{"name": "out.txt", "url": None}])
    elif match := re.search(r"environ\[.(\w+).\]", code):
        yield finished(console=[["stdout", f"{environ[match[1]]}\n"]])
    elif "getpass" in code or "input(" in code:
        options = {"is_password": "getpass" in code}
        answer = yield {"status": "waiting-input", "console": [["stdout", "? "]], "options": options}
        yield finished(console=[["stdout", f"got {answer}\n"]])
    elif "sleep" in code:
        yield {"status": "continued", "console": [["stdout", "tick\n"]], "options": None}
        await session.interrupted.wait()
        yield finished(console=[["stderr", "KeyboardInterrupt\n"]])
    elif "raise" in code:
        yield finished(console=[["stderr", "Traceback: ValueError\n"]], options={"raised": True})
    elif "plot" in code:
        yield finished(console=[["media", ["image/png", "data:image/png;base64,iVBORw=="]], ["html", "<b>x</b>"]])
    else:
        text = "".join(re.findall(r"print\(.(.*?).\)", code))
        yield {"status": "continued", "console": [["stdout", text]], "options": None}
        yield finished(console=[["stdout", "\n"], ["stderr", "err\n"]])


def problem(status: int, code: str, message: str, **more: Any) -> web.Response:
    document = {"type": f"https://api.backend.ai/probs/{code}", "title": "It went wrong.", "msg": message, **more}
    return web.json_response(document, status=status, content_type="application/problem+json")


@asynccontextmanager
async def serving(api: FakeApi) -> AsyncIterator[str]:
    """The application on a port of this machine; gives its endpoint."""
    runner = web.AppRunner(api.application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
