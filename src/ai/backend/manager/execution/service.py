"""Operations inside a running session; they go to a kernel through its agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ai.backend.common.errors import BackendError, Conflict, InvalidInput, LimitExceeded
from ai.backend.common.states import RUNNING_SESSION_STATUSES, RunMode
from ai.backend.common.wire.execution import (
    Complete,
    DownloadFiles,
    Execute,
    FileBlob,
    FileListing,
    KernelRef,
    ListFiles,
    ListProcesses,
    OpenPty,
    ProcessInfo,
    PtyFrame,
    ReadLogs,
    RunResult,
    TarFile,
    UploadFiles,
)
from ai.backend.common.wire.link import AgentCommands, PtyStream
from ai.backend.infra.clock import IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.execution.settings import FileSettings
from ai.backend.manager.idle.activity import ActivityTracker
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.sessions.lookup import SessionFinder
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.store import SessionStore

_MAX_RUN_ID = 128
_HOME = "/home/work"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A step of a run. ``run_id`` None creates an id, which the reply has. ``options`` of batch mode: clean, build,
    buildLog, exec."""

    mode: RunMode
    code: str = ""
    run_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def check_path(path: str) -> str:
    """A path inside the home directory, relative or below ``/home/work``; what ``..`` and links do is up to the
    workload, in which it is resolved.

    Raises:
        InvalidInput: empty, with a NUL, too long, or plainly outside.
    """
    below = path == _HOME or path.startswith(f"{_HOME}/")
    relative = path.removeprefix(_HOME).lstrip("/") if below else path
    depth = 0
    for part in relative.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            raise InvalidInput("a path leaves the home directory", data={"path": path[:128]})
    if not path or "\0" in path or len(path.encode(errors="replace")) > 4096 or relative.startswith("/"):
        raise InvalidInput("not a path inside the home directory", data={"path": path[:128]})
    return relative or "."


def kernel_of(session: Session, ref: str | None) -> Kernel:
    """Return the kernel of this host name or id, or the main one for None. Raises InvalidInput."""
    if ref is None:
        return session.main
    kernel = next((k for k in session.kernels if ref in (k.cluster_hostname, str(k.id))), None)
    if kernel is None:
        existing = ", ".join(k.cluster_hostname for k in session.kernels)
        message = f"The session has no kernel {ref[:64]!r}; it has {existing}."
        raise InvalidInput(message, data={"kernel": "unknown"})
    return kernel


class ExecutionService:
    """Every method raises SessionNotFound, TooManySessionsMatched, Conflict (not RUNNING) and Unavailable (agent
    away)."""

    def __init__(
        self,
        *,
        store: SessionStore,
        finder: SessionFinder,
        gateway: AgentGateway,
        stats: LiveMetrics,
        id_generator: IdGenerator,
        files: FileSettings,
        sessions: SessionSettings,
        activity: ActivityTracker,
    ) -> None:
        self._activity = activity
        self._store = store
        self._finder = finder
        self._gateway = gateway
        self._stats = stats
        self._id_generator = id_generator
        self._files = files
        self._settings = sessions

    async def _running(self, caller: Caller, ref: str, owner: str | None) -> tuple[Session, AgentCommands]:
        session = await self._finder.one(caller, ref, owner_access_key=owner, to_change=True, may_be_recent=True)
        if session.status not in RUNNING_SESSION_STATUSES or session.main.agent is None:
            raise Conflict(
                f"The session is {session.status}, not RUNNING.",
                data={"status": session.status.value, "reason": session.status_info},
            )
        self._activity.touch(session.id)
        return session, self._gateway.agent(session.main.agent)

    async def execute(
        self,
        caller: Caller,
        ref: str,
        request: RunRequest,
        *,
        owner_access_key: str | None = None,
        flush_timeout_s: float = 2.0,
    ) -> RunResult:
        """Execute a step; the WebSocket stream calls it until ``finished``."""
        session, agent = await self._running(caller, ref, owner_access_key)
        run_id = request.run_id or self._id_generator.token(16)
        if len(run_id) > _MAX_RUN_ID:
            raise InvalidInput(f"runId exceeds {_MAX_RUN_ID} characters", data={"runId": "too long"})
        if request.run_id is None and request.mode in (RunMode.CONTINUE, RunMode.INPUT):
            raise InvalidInput(f"mode {request.mode} needs a runId", data={"runId": "missing"})
        if request.mode in (RunMode.QUERY, RunMode.BATCH):
            self._stats.count_query(session.id)
        result = await agent.execute(
            Execute(
                kernel_id=str(session.main.id),
                run_id=run_id,
                mode=request.mode,
                code=request.code,
                options=dict(request.options),
                flush_timeout_s=flush_timeout_s,
            )
        )
        self._activity.touch(session.id)
        return result

    async def interrupt(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> None:
        """Send SIGINT to the running code; does nothing if none runs."""
        session, agent = await self._running(caller, ref, owner_access_key)
        await agent.interrupt(KernelRef(kernel_id=str(session.main.id)))

    async def complete(
        self,
        caller: Caller,
        ref: str,
        code: str,
        options: Mapping[str, Any],
        *,
        owner_access_key: str | None = None,
    ) -> list[str]:
        """Return completions at the cursor; ``options``: row, col, line, post."""
        session, agent = await self._running(caller, ref, owner_access_key)
        return await agent.complete(Complete(kernel_id=str(session.main.id), code=code, options=dict(options)))

    async def logs(
        self, caller: Caller, ref: str, *, kernel: str | None = None, owner_access_key: str | None = None
    ) -> str:
        """Return the log from the agent, or the stored tail once the session has ended.

        ``kernel`` is a host name or an id, the main one if it is None. Raises InvalidInput if there is none.
        """
        session = await self._finder.one(caller, ref, owner_access_key=owner_access_key)
        chosen = kernel_of(session, kernel)
        if session.started_at is None and chosen.agent is None:
            return ""
        stored = await self._store.get_log(chosen.id)
        if stored is None and chosen.agent is not None:
            try:
                stored = await self._gateway.agent(chosen.agent).read_logs(ReadLogs(kernel_id=str(chosen.id)))
            except BackendError:
                if not session.status.is_final:
                    raise
        return (stored or b"").decode(errors="replace")

    async def processes(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> list[tuple[str, ProcessInfo]]:
        """Return the busiest processes of each kernel, with the kernel's host name."""
        session, _ = await self._running(caller, ref, owner_access_key)

        async def of(kernel: Kernel) -> list[tuple[str, ProcessInfo]]:
            if kernel.agent is None:
                return []
            found = await self._gateway.agent(kernel.agent).list_processes(ListProcesses(kernel_id=str(kernel.id)))
            return [(kernel.cluster_hostname, process) for process in found]

        return [one for found in await asyncio.gather(*map(of, session.kernels)) for one in found]

    async def upload(
        self, caller: Caller, ref: str, files: Sequence[FileBlob], *, owner_access_key: str | None = None
    ) -> None:
        """Raises LimitExceeded (count or size, spec 03-08) and InvalidInput (path leaves the home)."""
        if len(files) > self._files.max_upload_files:
            raise LimitExceeded(
                f"At most {self._files.max_upload_files} files in one upload.", data={"src": "too many"}
            )
        for blob in files:
            if len(blob.data) > self._files.max_upload_bytes:
                limit = self._files.max_upload_bytes
                raise LimitExceeded(f"{blob.path[:128]} exceeds {limit} bytes.", data={"src": "too large"})
        checked = [FileBlob(path=check_path(blob.path), data=blob.data) for blob in files]
        session, agent = await self._running(caller, ref, owner_access_key)
        await agent.upload_files(UploadFiles(kernel_id=str(session.main.id), files=checked))

    async def download(
        self, caller: Caller, ref: str, paths: Sequence[str], *, owner_access_key: str | None = None
    ) -> list[TarFile]:
        """Return a tar archive for each of at most 5 paths."""
        if not 1 <= len(paths) <= self._files.max_download_files:
            raise LimitExceeded(
                f"1 to {self._files.max_download_files} files in one download.", data={"files": "too many or none"}
            )
        checked = [check_path(path) for path in paths]
        session, agent = await self._running(caller, ref, owner_access_key)
        return await agent.download_files(
            DownloadFiles(kernel_id=str(session.main.id), paths=checked, max_bytes=self._files.max_download_bytes)
        )

    async def list_files(
        self, caller: Caller, ref: str, path: str = ".", *, owner_access_key: str | None = None
    ) -> FileListing:
        """Return the entries of a directory of the session's home."""
        checked = check_path(path)
        session, agent = await self._running(caller, ref, owner_access_key)
        return await agent.list_files(ListFiles(kernel_id=str(session.main.id), path=checked))

    async def open_pty(
        self, caller: Caller, ref: str, *, rows: int = 24, cols: int = 80, owner_access_key: str | None = None
    ) -> PtyStream:
        """Open a terminal in the session; the caller closes it."""
        session, agent = await self._running(caller, ref, owner_access_key)
        stream = await agent.open_pty(OpenPty(kernel_id=str(session.main.id), rows=rows, cols=cols))
        return _UsedPty(stream, partial(self._activity.touch, session.id))


class _UsedPty:
    """A terminal whose frames, in both directions, count as activity of the session."""

    def __init__(self, stream: PtyStream, touch: Callable[[], None]) -> None:
        self._stream = stream
        self._touch = touch
        self.close = stream.close

    async def send(self, frame: PtyFrame) -> None:
        self._touch()
        await self._stream.send(frame)

    async def __aiter__(self) -> AsyncIterator[PtyFrame]:
        async for frame in self._stream:
            self._touch()
            yield frame
