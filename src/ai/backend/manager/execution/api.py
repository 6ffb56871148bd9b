"""Code and files inside a session (spec 03-08, client wire contract 2.1.4 and 2.2.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ai.backend.common.states import RunMode
from ai.backend.common.wire.execution import FileBlob
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.multipart import PART_OVERHEAD_BYTES, UploadedFile, read_files, send_archives
from ai.backend.infra.http.routes import Call, Endpoint, Nothing, endpoints_of, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.execution.schemas import (
    CompleteBody,
    DownloadQuery,
    ExecuteBody,
    FilesQuery,
    KernelQuery,
    LogsQuery,
    ProcessList,
    ProcessRow,
    ResultReply,
    RunOptions,
)
from ai.backend.manager.execution.service import ExecutionService, RunRequest
from ai.backend.manager.execution.views import file_listing, run_result

HOME = "/home/work"
_UUID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Spec 03-08: 1 MiB a file and 20 files an upload, 5 files a download."""

    max_upload_files: int = 20
    max_upload_file_bytes: int = 1_048_576
    max_download_files: int = 5

    @property
    def max_upload_body_bytes(self) -> int:
        return self.max_upload_files * (self.max_upload_file_bytes + PART_OVERHEAD_BYTES)


def run_request(mode: str, code: str, run_id: str | None, options: RunOptions) -> RunRequest:
    """One step of a run as the service takes it.

    Raises:
        InvalidInput: the parameters do not fit the mode.
    """
    parsed = RunMode.CONTINUE if mode == "continued" else RunMode(mode)
    if parsed in (RunMode.CONTINUE, RunMode.INPUT) and run_id is None:
        raise refuse({"runId": f"required in {mode} mode"})
    if parsed in (RunMode.CONTINUE, RunMode.BATCH) and code:
        raise refuse({"code": f"must be empty in {mode} mode"})
    told: dict[str, Any] = {}
    if parsed is RunMode.BATCH:
        told = {
            "clean": options.clean or None,
            "build": options.build or None,
            "buildLog": options.build_log,
            "exec": options.exec or None,
        }
    return RunRequest(mode=parsed, code=code, run_id=run_id, options=told)


def home_path(name: str, *, field: str) -> str:
    """A path inside the home, relative to it.

    The runner resolves paths inside the sandbox; refusing here what cannot be right gives the better message.

    Raises:
        InvalidInput: it is absolute and not below the home, climbs, or is empty.
    """
    path = name
    if path.startswith("/"):
        if not (path + "/").startswith(HOME + "/"):
            raise refuse({field: f"{name[:128]!r} is not below {HOME}"})
        path = path[len(HOME) :]
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise refuse({field: f"{name[:128]!r} leaves {HOME}"})
    return "/".join(parts)


class ExecutionApi:
    """Runs, completion, logs and files. Every call raises NotFound for a session that the caller may not see."""

    def __init__(self, execution: ExecutionService, limits: FileLimits) -> None:
        self._execution = execution
        self._limits = limits

    def endpoints(self) -> list[Endpoint]:
        from dataclasses import replace

        limit = self._limits.max_upload_body_bytes
        return [replace(e, max_body=limit) if e.kind == "upload" else e for e in endpoints_of(self)]

    @route("POST", "/session/{s}", body=ExecuteBody, reply=ResultReply, max_body=4 << 20, audited=False)
    async def execute(self, call: Call[ExecuteBody]) -> ResultReply:
        """Make one step of a run: start it, wait on, or give it input."""
        body = call.body
        request = run_request(body.mode, body.code, body.run_id, body.options)
        result = await self._execution.execute(
            caller_of(call), call.params["s"], request, owner_access_key=call.owner_access_key
        )
        return ResultReply(run_result(result))

    @route("POST", "/session/{s}/interrupt")
    async def interrupt(self, call: Call) -> None:
        """Interrupt the running code."""
        await self._execution.interrupt(caller_of(call), call.params["s"], owner_access_key=call.owner_access_key)

    @route("POST", "/session/{s}/complete", body=CompleteBody, reply=ResultReply, audited=False)
    async def complete(self, call: Call[CompleteBody]) -> ResultReply:
        """What could follow at the cursor."""
        options = call.body.options
        candidates = await self._execution.complete(
            caller_of(call),
            call.params["s"],
            call.body.code,
            {"post": options.post, "line": options.line, "row": options.row, "col": options.col},
            owner_access_key=call.owner_access_key,
        )
        return ResultReply(candidates)

    @route("GET", "/session/{s}/logs", query=KernelQuery)
    async def logs(self, call: Call[Nothing, KernelQuery]) -> dict[str, Any]:
        """The console log of one kernel: ``kernel`` is its host name or id, the main one without."""
        text = await self._execution.logs(
            caller_of(call), call.params["s"], kernel=call.query.kernel, owner_access_key=call.owner_access_key
        )
        return {"result": {"logs": text}}

    @route("GET", "/session/{s}/processes", reply=ProcessList)
    async def processes(self, call: Call) -> ProcessList:
        """The busiest processes of the session now: at most 20 of each kernel."""
        processes = await self._execution.processes(
            caller_of(call), call.params["s"], owner_access_key=call.owner_access_key
        )
        return ProcessList(
            result=[
                ProcessRow(kernel=host, pid=process.pid, command=process.command, metrics=process.metrics)
                for host, process in processes
            ]
        )

    @route("GET", "/session/_/logs", query=LogsQuery)
    async def task_logs(self, call: Call[Nothing, LogsQuery]) -> web.Response:
        """The console log of a batch session, as it is."""
        if _UUID.fullmatch(call.query.task_id) is None:
            raise refuse({"taskId": "not a session id"})
        text = await self._execution.logs(caller_of(call), call.query.task_id, owner_access_key=call.owner_access_key)
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; charset=utf-8"})

    @route("GET", "/session/{s}/files", query=FilesQuery)
    async def list_files(self, call: Call[Nothing, FilesQuery]) -> dict[str, Any]:
        """The files of a directory below the home."""
        path = home_path(call.query.path, field="path") or "."
        listing = await self._execution.list_files(
            caller_of(call), call.params["s"], path, owner_access_key=call.owner_access_key
        )
        return file_listing(listing)

    @route("POST", "/session/{s}/upload", kind="upload", repeatable=True)
    async def upload(self, call: Call) -> None:
        """Write files below the home, as multipart/form-data."""
        limits = self._limits
        files = await read_files(call, max_files=limits.max_upload_files, max_file_bytes=limits.max_upload_file_bytes)
        blobs = []
        for file in files:
            path = home_path(file.name, field="src")
            if not path or file.name.endswith("/"):
                raise refuse({"src": f"{file.name[:128]!r} names no file"})
            blobs.append(FileBlob(path=path, data=file.data))
        await self._execution.upload(caller_of(call), call.params["s"], blobs, owner_access_key=call.owner_access_key)

    @route("GET", "/session/{s}/download", query=DownloadQuery)
    async def download(self, call: Call[Nothing, DownloadQuery]) -> web.StreamResponse:
        """Files below the home: one multipart part each, which is a tar archive."""
        files = call.query.files
        if len(files) > self._limits.max_download_files:
            raise refuse({"files": f"at most {self._limits.max_download_files} at once"})
        paths = []
        for name in files:
            path = home_path(name, field="files")
            if not path:
                raise refuse({"files": f"{name[:128]!r} names no file"})
            paths.append(path)
        archives = await self._execution.download(
            caller_of(call), call.params["s"], paths, owner_access_key=call.owner_access_key
        )
        return await send_archives(call.request, [UploadedFile(f"{a.name}.tar", a.tar) for a in archives])
