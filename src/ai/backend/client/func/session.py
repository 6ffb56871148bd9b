"""Compute sessions (spec 03-08, 03-12; client wire contract 2.1 and 2.2)."""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

from ai.backend.client.exceptions import BackendClientError, UnusableReply
from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.base import Area
from ai.backend.client.func.creation import CreateOptions, creation_call
from ai.backend.client.portal import Blocking
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call, Reply, encode_segment, new_token, refusing_surrogates

if TYPE_CHECKING:
    from pathlib import Path

    from ai.backend.client.events import Event
    from ai.backend.client.streams import ExecuteStream, ProgramStream, PtyStream
    from ai.backend.client.tunnels import AppStream, ArgumentValue, LocalPort, Report

LIST_FIELDS = (
    "name", "id", "group_name", "main_kernel_id", "image", "type", "status", "status_info", "status_changed", "result",
    "claim",
)  # fmt: skip
UPLOAD_BATCH = 20
DOWNLOAD_BATCH = 5
_FLUSH_S = 0.25
"""How long a polled step of a run collects output; the delay with which a user sees it."""
_WIRE_MODES = {"continued": "continue"}


class AsyncComputeSession(Area):
    """A handle of a session, by name or id. Constructing it sends no request.

    Attributes:
        name: the name or id that calls use.
        id: the session's id; None for a handle that was made by name.
        created: whether ``get_or_create`` created it (False: it existed).
        status: the status that ``get_or_create`` saw.
        service_ports: the services that the session offers.
    """

    def __init__(self, transport: Transport, name: str, owner_access_key: str | None = None) -> None:
        super().__init__(transport)
        self.name = name
        self.owner_access_key = owner_access_key
        self.id: UUID | None = _as_uuid(name)
        self.created = False
        self.status: str | None = None
        self.service_ports: list[dict[str, Any]] = []

    def _path(self, operation: str = "") -> str:
        return f"/session/{encode_segment(str(self.id or self.name))}{operation}"

    def _owner_params(self, **params: str) -> dict[str, str]:
        return {**({"owner_access_key": self.owner_access_key} if self.owner_access_key else {}), **params}

    async def _send_change(
        self, method: str, operation: str = "", *, json: Any = None, form: Any = None, **params: str
    ) -> Reply:
        """Sends a change of the session; a client token lets the server recognize repetitions."""
        path, query = self._path(operation), self._owner_params(**params)
        call = Call(method=method, path=path, params=query, json=json, form=form, repeatable=True, token=new_token())
        return await self._transport.request(call)

    async def get_info(self) -> dict[str, Any]:
        """Returns the details of the session."""
        return await self._get(self._path(), **self._owner_params())

    async def get_logs(self, kernel: str | None = None) -> str:
        """Returns the console log of the session's main kernel, or of the kernel with this host name or id."""
        reply = await self._get(self._path("/logs"), **self._owner_params(), kernel=kernel)
        log_document = reply.get("result")
        return str(log_document.get("logs") or "") if isinstance(log_document, dict) else ""

    async def processes(self) -> list[dict[str, Any]]:
        """Returns the busiest processes now: ``kernel``, ``pid``, ``command`` and ``metrics`` by name."""
        reply = await self._get(self._path("/processes"), **self._owner_params())
        return [dict(process) for process in reply.get("result") or []]

    async def status_history(self) -> dict[str, Any]:
        """Returns the time (ISO 8601) at which the session entered each status, in order."""
        reply = await self._get(self._path("/status-history"), **self._owner_params())
        return dict(reply.get("result") or {})

    get_status_history = status_history

    async def explain(self) -> dict[str, Any]:
        """Returns the reason for which the session waits, its place in the queue, and the resources that it lacks.

        The keys are ``verdict``, ``reason``, ``message``, ``position`` in the queue, and others for what it lacks and
        who holds that.
        """
        return await self._get(self._path("/explain"), **self._owner_params())

    async def report(self) -> dict[str, Any]:
        """Returns a full report on the session for administrators: its life, decisions, errors, kernels and logs.

        The keys are ``life``, ``decision``, ``errors``, ``kernels``, and the ``logs`` of the manager and its agents;
        ``unreachable`` are agents that did not return theirs.
        """
        return await self._get(self._path("/report"), **self._owner_params())

    async def metric_history(self, span: str = "hour") -> dict[str, Any]:
        """Returns what each kernel used in the last ``hour`` (by 5 s) or ``day`` (by minutes), by metric."""
        return await self._get(self._path("/metrics/history"), **self._owner_params(), span=span)

    async def detail(self, fields: Sequence[str] = LIST_FIELDS) -> dict[str, Any] | None:
        """Returns the session's GraphQL object with these fields, or None."""
        session_id = self.id or await self.resolve_id()
        session = await self._admin.select("compute_session", fields, id=("UUID!", str(session_id)))
        return dict(session) if session else None

    async def resolve_id(self) -> UUID:
        """Returns the session's id, which is requested by name if it is unknown."""
        if self.id is None:
            info = await self.get_info()
            session_id = _as_uuid(str(info.get("id") or info.get("sessionId") or info.get("session_id") or ""))
            if session_id is None:
                raise UnusableReply("the server does not tell the id of the session")
            self.id = session_id
        return self.id

    async def destroy(self, *, forced: bool = False, recursive: bool = False) -> dict[str, Any]:
        """Ends the session (PENDING ones are cancelled); returns its last statistics, if any."""
        params = {**({"forced": "true"} if forced else {}), **({"recursive": "true"} if recursive else {})}
        return (await self._send_change("DELETE", **params)).object()

    async def restart(self) -> None:
        """Restarts in place: same devices, same home, fresh processes."""
        await self._send_change("PATCH")

    async def rename(self, new_name: str) -> None:
        await self._send_change("POST", "/rename", name=new_name)
        self.name = new_name

    async def commit(self) -> dict[str, Any]:
        """Begins to make an archive of the session on its agent; returns ``bgtask_id`` and ``path`` (03-18)."""
        return (await self._send_change("POST", "/commit")).object()

    async def imagify(self, image_name: str) -> dict[str, Any]:
        """Begins to push an image of the session, for its owner; returns ``bgtask_id`` and the name as ``path``."""
        call = Call(
            method="POST", path=self._path("/imagify"), params=self._owner_params(), json={"image_name": image_name}
        )
        return (await self._transport.request(call)).object()

    async def interrupt(self) -> None:
        """Interrupts the running code, as Ctrl-C does."""
        await self._send_change("POST", "/interrupt")

    async def complete(self, code: str, opts: Mapping[str, Any] | None = None) -> list[str]:
        """Returns completions at the end of ``code``, or as ``opts`` says (row, col, line, post; spec 03-08)."""
        *lines_before, last_line = code.split("\n")
        default_options = {"row": len(lines_before), "col": len(last_line), "line": last_line, "post": ""}
        body = {"code": code, "options": {**default_options, **(opts or {})}}
        call = Call(
            method="POST", path=self._path("/complete"), params=self._owner_params(), json=body, repeatable=True
        )
        result = (await self._transport.request(call)).object().get("result") or []
        return list(result.get("completions") or result.get("matches") or () if isinstance(result, dict) else result)

    async def execute(
        self,
        run_id: str | None = None,
        code: str | None = None,
        mode: str = "query",
        opts: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Executes one step of a run and returns the Execution Result Object.

        Call it again with its ``runId`` until ``status`` is ``finished``: with mode ``continue`` (or its alias
        ``continued``) and no code, or with mode ``input`` and the user's answer after ``waiting-input``.
        On a broken connection it is sent again with the same client token, so that the code runs once.
        """
        mode = _WIRE_MODES.get(mode, mode)
        if mode not in {"query", "batch", "continue", "input"}:
            raise BackendClientError(f"mode is {mode!r}: it is one of query, batch, continue and input")
        body: dict[str, Any] = {"mode": mode, "code": code or "", "runId": run_id or uuid.uuid4().hex[:16]}
        if mode == "batch":
            body["options"] = batch_options(opts)
        result = (await self._send_change("POST", json=body)).object().get("result")
        if not isinstance(result, dict):
            raise UnusableReply("the server's answer has no result")
        return result

    async def follow_run(
        self,
        code: str = "",
        *,
        mode: str = "query",
        opts: Mapping[str, Any] | None = None,
        answer: Callable[[Mapping[str, Any]], Awaitable[str]],
    ) -> AsyncGenerator[dict[str, Any]]:
        """Starts a run and yields its Execution Result Objects, which it gets by polling instead of a WebSocket stream.

        ``answer`` returns the input that the options of a ``waiting-input`` ask for.
        """
        request_body: dict[str, Any] = {"mode": mode, "code": code, "runId": uuid.uuid4().hex[:16]}
        if mode == "batch":
            request_body["options"] = batch_options(opts)
        while True:
            call = Call(
                method="POST",
                path=self._path(),
                params=self._owner_params(),
                json={**request_body, "flushSeconds": _FLUSH_S},
            )
            result = (await self._transport.request(call)).object().get("result")
            if not isinstance(result, dict):
                raise UnusableReply("the server's answer has no result")
            yield result
            status = result.get("status")
            if status in {"finished", "exec-timeout"}:
                return
            request_body = {"mode": "continue", "code": "", "runId": request_body["runId"]}
            if status == "waiting-input":
                request_body |= {"mode": "input", "code": await answer(result.get("options") or {})}

    @asynccontextmanager
    async def stream_execute(
        self, code: str = "", *, mode: str = "query", opts: Mapping[str, Any] | None = None
    ) -> AsyncIterator[ExecuteStream]:
        """Starts a run whose output and input are on one stream."""

        from ai.backend.client.streams import ExecuteStream

        if mode not in {"query", "batch"}:
            raise BackendClientError(f"mode is {mode!r}: a stream starts with query or batch")
        path = f"/stream/session/{await self.resolve_id()}/execute"
        async with self._transport.websocket(path, self._owner_params()) as socket:
            options = batch_options(opts) if mode == "batch" else {}
            await socket.send_json({"code": code if mode == "query" else "", "mode": mode, "options": options})
            yield ExecuteStream(socket)

    @asynccontextmanager
    async def stream_pty(self, rows: int = 24, cols: int = 80) -> AsyncIterator[PtyStream]:
        """Opens a terminal of a size in the session."""

        from ai.backend.client.streams import PtyStream

        path = f"/stream/session/{await self.resolve_id()}/pty"
        async with self._transport.websocket(path, self._owner_params(rows=str(rows), cols=str(cols))) as socket:
            yield PtyStream(socket)

    @asynccontextmanager
    async def exec(
        self,
        *command: str,
        tty: bool = False,
        size: tuple[int, int] = (24, 80),
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        kernel: str | None = None,
    ) -> AsyncIterator[ProgramStream]:
        """Starts a program in the session, on pipes or on a terminal of ``size`` (rows, columns); a shell by default.

        Raises BackendAPIError if the server refuses. EndpointUnreachable: it does not answer. BackendClientError: a
        text cannot be written in UTF-8.
        """

        from ai.backend.client.streams import ProgramStream

        path = f"/stream{self._path('/exec')}"
        request = {"command": list(command), "tty": tty, "rows": size[0], "cols": size[1], "env": dict(env or {})}
        with refusing_surrogates():
            request_text = json.dumps({**request, "cwd": cwd, "kernel": kernel}, ensure_ascii=False)
            request_text.encode()
        async with self._transport.websocket(path, self._owner_params(), for_bytes=True) as socket:
            await socket.send_str(request_text)
            yield ProgramStream(socket)

    async def start_service(
        self,
        app: str,
        *,
        port: int | None = None,
        envs: Mapping[str, str] | None = None,
        arguments: Mapping[str, ArgumentValue] | None = None,
        login_session_token: str | None = None,
    ) -> dict[str, Any]:
        """Starts a service of the session and returns its state once the service listens on its port.

        A running one stays (spec 03-12:137).

        ``login_session_token`` is ignored, as the manual says.
        """
        body = {"app": app, "port": port, "envs": dict(envs or {}), "arguments": dict(arguments or {})}
        return (await self._send_change("POST", "/start-service", json=body)).object()

    async def stream_app_info(self) -> list[dict[str, Any]]:
        """Returns the services of the session: ``name``, ``protocol``, ``ports`` and further properties."""
        apps = (await self._get_reply(f"/stream{self._path('/apps')}", **self._owner_params())).json()
        if not isinstance(apps, list):
            raise UnusableReply("the server does not list the services of the session")
        return [dict(app) for app in apps]

    list_apps = stream_app_info

    @asynccontextmanager
    async def connect_app(
        self,
        app: str,
        *,
        port: int | None = None,
        envs: Mapping[str, str] | None = None,
        arguments: Mapping[str, ArgumentValue] | None = None,
    ) -> AsyncIterator[AppStream]:
        """Connects to a service of the session, which is started with ``envs`` and ``arguments`` if it does not run.

        Raises BackendAPIError if the server refuses. EndpointUnreachable: it does not answer.
        """

        from ai.backend.client.tunnels import AppStream, tunnel_query

        path = f"/stream{self._path('/tcpproxy')}"
        query = self._owner_params(**tunnel_query(app, port, envs, arguments))
        async with self._transport.websocket(path, query, for_bytes=True) as socket:
            yield AppStream(socket)

    def forward_app(
        self,
        app: str,
        bind: tuple[str, int] = ("127.0.0.1", 0),
        *,
        port: int | None = None,
        envs: Mapping[str, str] | None = None,
        arguments: Mapping[str, ArgumentValue] | None = None,
        report: Report = lambda _: None,
    ) -> AbstractAsyncContextManager[LocalPort]:
        """Opens a local port, while the block lasts, that leads to a service of the session.

        ``report`` is called with the error of each failed connection. Raises BackendClientError if ``bind`` is taken.
        """

        from ai.backend.client.tunnels import LocalPort

        local_port = LocalPort(lambda: self.connect_app(app, port=port, envs=envs, arguments=arguments), report)
        return local_port.listening(*bind)

    async def events(self, scope: str = "*", *, opened: Callable[[], None] = lambda: None) -> AsyncIterator[Event]:
        """Yields the session's events from now on; ``scope`` is ``*``, ``session`` or ``kernel``.

        ``opened`` is called once the server listens: later events are not missed.
        """

        from ai.backend.client.events import NOW, follow

        session_query = {"sessionId": str(self.id)} if self.id else self._owner_params(sessionName=self.name)
        params = {**session_query, "scope": scope}
        async for event in follow(self._transport, "/events/session", params, after=NOW, opened=opened):
            yield event

    listen_events = events

    async def list_files(self, path: str = ".") -> list[dict[str, Any]]:
        """Returns the files in a directory of the session: ``filename``, ``size``, ``mode``, ``mtime``.

        Raises BackendClientError if the directory cannot be read.
        """
        reply = (await self._get_reply(self._path("/files"), {"path": path}, **self._owner_params())).object()
        if reply.get("errors"):
            raise BackendClientError(f"cannot list {path}: {str(reply['errors']).strip()}")
        files = reply.get("files") or "[]"
        return list(json.loads(files)) if isinstance(files, str) else list(files)

    async def upload(
        self, files: Sequence[str | os.PathLike[str]], basedir: str | os.PathLike[str] | None = None
    ) -> None:
        """Puts files into the session's home, each at its path relative to ``basedir`` (the working directory).

        Raises BackendClientError if a file is missing, no regular file, or outside of ``basedir``.
        """

        import asyncio

        from ai.backend.client.multipart import collect

        await self.upload_contents(await asyncio.to_thread(collect, files, basedir))

    async def upload_contents(self, contents: Mapping[str, bytes]) -> None:
        """Writes files of the session's home; ``contents`` maps paths to bytes."""
        from ai.backend.client.multipart import upload_form

        files = list(contents.items())
        for batch_start in range(0, len(files), UPLOAD_BATCH):
            await self._send_change(
                "POST", "/upload", form=partial(upload_form, files[batch_start : batch_start + UPLOAD_BATCH])
            )

    async def download(self, files: Sequence[str], dest: str | os.PathLike[str] = ".") -> list[Path]:
        """Fetches files of the session into the directory ``dest``; returns the paths that were written."""
        from pathlib import Path

        from ai.backend.client.multipart import extract, tar_parts

        written_paths: list[Path] = []
        for batch_start in range(0, len(files), DOWNLOAD_BATCH):
            body, path = {"files": list(files[batch_start : batch_start + DOWNLOAD_BATCH])}, self._path("/download")
            call = Call(method="GET", path=path, params=self._owner_params(), json=body, repeatable=True)
            async with self._transport.stream(call) as response:
                async for archive in tar_parts(response):
                    written_paths += extract(io.BytesIO(archive), Path(dest))
        return written_paths


class AsyncComputeSessions(Area):
    """Finds, lists and creates sessions (``api_session.ComputeSession``).

    Called with a name or id, returns a handle.
    """

    def __call__(self, name: str, owner_access_key: str | None = None) -> AsyncComputeSession:
        return AsyncComputeSession(self._transport, name, owner_access_key)

    def from_session_id(self, session_id: UUID | str) -> AsyncComputeSession:
        return AsyncComputeSession(self._transport, str(UUID(str(session_id))))

    async def get_or_create(self, image: str, **options: Unpack[CreateOptions]) -> AsyncComputeSession:
        """Returns a session of this name and image: the living one, unless ``no_reuse``, or a new one.

        Returns when it runs, unless ``enqueue_only`` or ``max_wait`` says otherwise; see ``status``.
        """
        return await self.create(creation_call(self._transport.config, image, **options))

    async def explain_request(self, image: str, *, count: int = 1, **options: Unpack[CreateOptions]) -> dict[str, Any]:
        """Returns a forecast of whether ``count`` such sessions would start now, without creating the sessions.

        ``verdict`` is ``now``, ``waits`` or ``never``; ``nearest`` are smaller requests that would start.
        """
        creation = creation_call(self._transport.config, image, **options)
        body, query = creation.json, {"count": str(count)}
        call = Call(method="POST", path="/session/_/explain", params=query, json=body, repeatable=True)
        return (await self._transport.request(call)).object()

    async def create(self, call: Call) -> AsyncComputeSession:
        """Creates a session by a call of :func:`creation_call`."""
        reply = (await self._transport.request(call)).object()
        session = AsyncComputeSession(self._transport, call.json["name"], call.json["owner_access_key"])
        session.id = _as_uuid(str(reply.get("sessionId", "")))
        if session.id is None:
            raise UnusableReply("the server's answer has no sessionId")
        session.created = bool(reply.get("created", True))
        session.status = str(reply.get("status", "RUNNING"))
        session.service_ports = list(reply.get("servicePorts") or [])
        return session

    async def paginated_list(
        self,
        status: str | Sequence[str] | None = None,
        access_key: str | None = None,
        *,
        fields: Sequence[str] = LIST_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        """Returns a page of the caller's sessions; ``access_key`` lists another user's, for administrators."""
        arguments = {
            "status": ("String", status if status is None or isinstance(status, str) else ",".join(status)),
            "access_key": ("String", access_key),
        }
        return await self._admin.fetch_page("compute_session_list", fields, arguments, **paging)


def batch_options(opts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Builds the Batch Execution Query Object (spec 03-07) from the caller's options."""
    options = opts or {}
    return {
        "clean": options.get("clean"),
        "build": options.get("build"),
        "buildLog": bool(options.get("buildLog", False)),
        "exec": options.get("exec"),
    }


def _as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text) if len(text) == 36 else None
    except ValueError:
        return None


ComputeSession = Blocking[AsyncComputeSession]
"""The blocking handle of a compute session."""
