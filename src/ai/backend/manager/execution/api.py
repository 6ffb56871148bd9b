"""Code and files inside a session (spec 03-08, client wire contract 2.1.4 and 2.2.2)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from aiohttp import web

from ai.backend.common.states import RunMode
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import FileBlob, FileListing, RunResult
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.multipart import PART_OVERHEAD_BYTES, UploadedFile, read_files, send_archives
from ai.backend.infra.http.routes import Call, Endpoint, Nothing, OwnerKey, endpoints_of, route
from ai.backend.manager.access.requests import SESSION_PROBLEMS, caller_of
from ai.backend.manager.execution import schemas
from ai.backend.manager.execution.service import ExecutionService, RunRequest
from ai.backend.manager.sessions.settings import FileSettings
from ai.backend.manager.sessions.views import session_of


def run_request(mode: str, code: str, run_id: str | None, options: schemas.RunOptions) -> RunRequest:
    """Converts the parameters of a REST call to one step of a run. Raises InvalidInput if they do not fit the mode."""
    run_mode = RunMode.CONTINUE if mode == "continued" else RunMode(mode)
    if run_mode in (RunMode.CONTINUE, RunMode.INPUT) and run_id is None:
        raise refuse({"runId": f"required in {mode} mode"})
    if run_mode in (RunMode.CONTINUE, RunMode.BATCH) and code:
        raise refuse({"code": f"must be empty in {mode} mode"})
    batch_options: dict[str, Any] = {}
    if run_mode is RunMode.BATCH:
        batch_options = {name: getattr(options, name) or None for name in ("clean", "build", "exec")}
        batch_options["buildLog"] = options.build_log
    return RunRequest(mode=run_mode, code=code, run_id=run_id, options=batch_options)


class ExecutionApi:
    """Serves runs, completion, logs and files. Every call raises NotFound for a session that the caller may not see."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, execution: ExecutionService, limits: FileSettings) -> None:
        self._execution = execution
        self._limits = limits

    def endpoints(self) -> list[Endpoint]:
        max_body_bytes = self._limits.max_upload_files * (self._limits.max_upload_bytes + PART_OVERHEAD_BYTES)
        return [
            replace(endpoint, max_body=max_body_bytes) if endpoint.kind == "upload" else endpoint
            for endpoint in endpoints_of(self)
        ]

    @route("POST", "/session/{s}", body=schemas.ExecuteBody, max_body=4 << 20, audited=False)
    async def execute(self, call: Call[schemas.ExecuteBody]) -> schemas.RunReply:
        """Make one step of a run: start it, wait for output, or give it input."""
        body = call.body
        request = run_request(body.mode, body.code, body.run_id, body.options)
        result = await self._execution.execute(**session_of(call), request=request, flush_timeout_s=body.flush_seconds)
        return {"result": run_result(result)}

    @route("POST", "/session/{s}/interrupt")
    async def interrupt(self, call: Call) -> None:
        """Interrupt the running code."""
        await self._execution.interrupt(**session_of(call))

    @route("POST", "/session/{s}/complete", body=schemas.CompleteBody, audited=False)
    async def complete(self, call: Call[schemas.CompleteBody]) -> schemas.Completions:
        """List completions at the cursor."""
        options = msgspec.structs.asdict(call.body.options)
        return {"result": await self._execution.complete(**session_of(call), code=call.body.code, options=options)}

    @route("GET", "/session/{s}/logs", query=schemas.KernelQuery)
    async def logs(self, call: Call[Nothing, schemas.KernelQuery]) -> schemas.LogReply:
        """Read the console log of one kernel: ``kernel`` is its host name or id, by default the main one."""
        return {"result": {"logs": await self._execution.logs(**session_of(call), kernel=call.query.kernel)}}

    @route("GET", "/session/{s}/processes", reply=schemas.ProcessList)
    async def processes(self, call: Call) -> schemas.ProcessList:
        """List the busiest processes of the session: at most 20 of each kernel."""
        processes = await self._execution.processes(**session_of(call))
        rows = [schemas.ProcessRow(host, process.pid, process.command, process.metrics) for host, process in processes]
        return schemas.ProcessList(result=rows)

    @route("GET", "/session/_/logs", query=schemas.LogsQuery, produces=("text/plain",))
    async def task_logs(self, call: Call[Nothing, schemas.LogsQuery]) -> web.Response:
        """Read the console log of a batch session as plain text."""
        ref = str(call.query.task_id)
        log = await self._execution.logs(caller_of(call), ref, owner_access_key=call.owner_access_key)
        return web.Response(body=log.encode(), headers={"Content-Type": "text/plain; charset=utf-8"})

    @route("GET", "/session/{s}/files", query=schemas.FilesQuery)
    async def list_files(self, call: Call[Nothing, schemas.FilesQuery]) -> schemas.FileListingReply:
        """List the files of a directory below the home."""
        return file_listing(await self._execution.list_files(**session_of(call), path=call.query.path))

    @route("POST", "/session/{s}/upload", kind="upload", repeatable=True)
    async def upload(self, call: Call) -> None:
        """Write files below the home, as multipart/form-data."""
        limits = self._limits
        files = await read_files(call, max_files=limits.max_upload_files, max_file_bytes=limits.max_upload_bytes)
        blobs = [FileBlob(path=file.name, data=file.data) for file in files]
        await self._execution.upload(**session_of(call), files=blobs)

    @route("GET", "/session/{s}/download", query=schemas.DownloadQuery, produces=("multipart/mixed",))
    async def download(self, call: Call[Nothing, schemas.DownloadQuery]) -> web.StreamResponse:
        """Download files below the home: one multipart part each, which is a tar archive."""
        files = call.query.files
        if len(files) > self._limits.max_download_files:
            raise refuse({"files": f"at most {self._limits.max_download_files} at once"})
        archives = await self._execution.download(**session_of(call), paths=files)
        return await send_archives(
            call.request, [UploadedFile(f"{archive.name}.tar", archive.tar) for archive in archives]
        )


def run_result(result: RunResult) -> schemas.RunResultView:
    """Converts the result of a step of a run to the Execution Result Object (spec 03-07)."""
    result_object: schemas.RunResultView = {
        "runId": result.run_id,
        "status": result.status,
        "exitCode": result.exit_code,
        "console": result.console,
        "options": result.options,
        "files": [{"url": None, **file} for file in result.files],
    }
    if result.reason is not None:
        result_object["reason"] = result.reason
    return result_object


def file_listing(listing: FileListing) -> schemas.FileListingReply:
    """Converts the list of files of a directory to the reply of the REST API.

    ``files`` of the reply is JSON inside of JSON (spec 03-08).
    """
    entries = [
        {"filename": entry.filename, "size": entry.size, "mtime": entry.mtime, "mode": entry.mode, "kind": entry.kind}
        for entry in listing.entries
    ]
    return {"files": json.dumps(entries), "folder_path": listing.folder_path, "errors": listing.errors}
