"""Performs operations in running sessions through the agents of their kernels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from ai.backend.common.errors import BackendError, Conflict, InvalidInput, LimitExceeded
from ai.backend.common.states import RUNNING_SESSION_STATUSES, RunMode
from ai.backend.common.wire import execution as wire
from ai.backend.common.wire.link import AgentCommands, PtyStream
from ai.backend.infra.clock import IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.idle.activity import ActivityTracker
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.sessions.lookup import SessionFinder
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.settings import FileSettings
from ai.backend.manager.sessions.store import SessionStore

_MAX_RUN_ID = 128
HOME = "/home/work"


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one step of a run: its mode, its code and the options of batch mode.

    Without a ``run_id``, an id is created, and the reply has that id. ``options`` of batch mode: clean, build,
    buildLog, exec.
    """

    mode: RunMode
    code: str = ""
    run_id: str | None = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ProgramRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a program to start in a kernel, by default in the main kernel. An empty ``command`` is a shell."""

    command: Sequence[str] = ()
    tty: bool = False
    rows: int = 24
    cols: int = 80
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    cwd: str = ""
    kernel: str | None = None


def home_path(name: str, *, field: str) -> str:
    """Returns a path relative to the home directory of a session; raises InvalidInput for a path outside of the home.

    The workload resolves links. The error has ``field`` in its data, and is also raised for a path that has ``..`` or a
    NUL, or is too long.
    """
    path = name
    if path.startswith("/"):
        if not (path + "/").startswith(HOME + "/"):
            raise InvalidInput(f"{name[:128]!r} is not below {HOME}.", data={field: "not below the home directory"})
        path = path[len(HOME) :]
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path or len(path.encode(errors="replace")) > 4096:
        raise InvalidInput(f"{name[:128]!r} leaves {HOME}.", data={field: "leaves the home directory"})
    return "/".join(parts)


def file_path(name: str, *, field: str) -> str:
    """Returns the path of a file relative to the home directory, as :func:`home_path` does. Raises InvalidInput also
    for the name of a directory.
    """
    path = home_path(name, field=field)
    if not path or name.endswith("/"):
        raise InvalidInput(f"{name[:128]!r} names no file.", data={field: "names no file"})
    return path


def kernel_of(session: Session, ref: str | None) -> Kernel:
    """Returns the kernel that has this host name or id, or the main kernel for None. Raises InvalidInput."""
    if ref is None:
        return session.main
    kernel = next((kernel for kernel in session.kernels if ref in (kernel.cluster_hostname, str(kernel.id))), None)
    if kernel is None:
        host_names = ", ".join(kernel.cluster_hostname for kernel in session.kernels)
        message = f"The session has no kernel {ref[:64]!r}; it has {host_names}."
        raise InvalidInput(message, data={"kernel": "unknown"})
    return kernel


@dataclass(eq=False, repr=False, kw_only=True)
class ExecutionService:
    """Runs code, transfers files and opens terminals in the kernels of running sessions. Every method raises
    SessionNotFound, TooManySessionsMatched, Conflict (not RUNNING) and Unavailable (agent away).
    """

    store: SessionStore
    finder: SessionFinder
    gateway: AgentGateway
    stats: LiveMetrics
    id_generator: IdGenerator
    files: FileSettings
    activity: ActivityTracker

    async def _running_session(self, caller: Caller, ref: str, owner: str | None) -> tuple[Session, AgentCommands]:
        session = await self.finder.one(caller, ref, owner_access_key=owner, to_change=True, may_be_recent=True)
        if session.status not in RUNNING_SESSION_STATUSES or session.main.agent is None:
            message = f"The session is {session.status}, not RUNNING."
            raise Conflict(message, data={"status": session.status.value, "reason": session.status_info})
        self.activity.touch(session.id)
        return session, self.gateway.agent(session.main.agent)

    async def execute(
        self,
        caller: Caller,
        ref: str,
        request: RunRequest,
        *,
        owner_access_key: str | None = None,
        flush_timeout_s: float = 2.0,
    ) -> wire.RunResult:
        """Executes one step of a run of code and returns its output."""
        session, agent = await self._running_session(caller, ref, owner_access_key)
        run_id = request.run_id or self.id_generator.token(16)
        if len(run_id) > _MAX_RUN_ID:
            raise InvalidInput(f"runId exceeds {_MAX_RUN_ID} characters", data={"runId": "too long"})
        if request.run_id is None and request.mode in (RunMode.CONTINUE, RunMode.INPUT):
            raise InvalidInput(f"mode {request.mode} needs a runId", data={"runId": "missing"})
        if request.mode in (RunMode.QUERY, RunMode.BATCH):
            self.stats.count_query(session.id)
        result = await agent.execute(
            wire.Execute(
                kernel_id=str(session.main.id),
                run_id=run_id,
                mode=request.mode,
                code=request.code,
                options=dict(request.options),
                flush_timeout_s=flush_timeout_s,
            )
        )
        self.activity.touch(session.id)
        return result

    async def interrupt(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> None:
        """Sends SIGINT to the running code, or does nothing if no code runs."""
        session, agent = await self._running_session(caller, ref, owner_access_key)
        await agent.interrupt(wire.KernelRef(kernel_id=str(session.main.id)))

    async def complete(
        self, caller: Caller, ref: str, code: str, options: Mapping[str, Any], *, owner_access_key: str | None = None
    ) -> list[str]:
        """Returns the possible completions of ``code`` at the cursor; ``options``: row, col, line, post."""
        session, agent = await self._running_session(caller, ref, owner_access_key)
        return await agent.complete(wire.Complete(kernel_id=str(session.main.id), code=code, options=dict(options)))

    async def logs(
        self, caller: Caller, ref: str, *, kernel: str | None = None, owner_access_key: str | None = None
    ) -> str:
        """Returns the log of a session from its agent, or the stored end of the log if the session has ended.
        ``kernel`` is a host name or an id, the main one if it is None. Raises InvalidInput if there is none.
        """
        session = await self.finder.one(caller, ref, owner_access_key=owner_access_key)
        chosen_kernel = kernel_of(session, kernel)
        if session.started_at is None and chosen_kernel.agent is None:
            return ""
        log_end = await self.store.get_log(chosen_kernel.id)
        if log_end is None and chosen_kernel.agent is not None:
            try:
                log_end = await self.gateway.agent(chosen_kernel.agent).read_logs(
                    wire.ReadLogs(kernel_id=str(chosen_kernel.id))
                )
            except BackendError:
                if not session.status.is_final:
                    raise
        return (log_end or b"").decode(errors="replace")

    async def processes(
        self, caller: Caller, ref: str, *, owner_access_key: str | None = None
    ) -> list[tuple[str, wire.ProcessInfo]]:
        """Returns the busiest processes of each kernel, with the kernel's host name."""
        session, _ = await self._running_session(caller, ref, owner_access_key)

        async def processes_of(kernel: Kernel) -> list[tuple[str, wire.ProcessInfo]]:
            if kernel.agent is None:
                return []
            processes = await self.gateway.agent(kernel.agent).list_processes(
                wire.ListProcesses(kernel_id=str(kernel.id))
            )
            return [(kernel.cluster_hostname, process) for process in processes]

        return list(chain.from_iterable(await asyncio.gather(*map(processes_of, session.kernels))))

    async def upload(
        self, caller: Caller, ref: str, files: Sequence[wire.FileBlob], *, owner_access_key: str | None = None
    ) -> None:
        """Writes files below the home directory of a session. Raises LimitExceeded (count or size, spec 03-08) and
        InvalidInput.
        """
        if len(files) > self.files.max_upload_files:
            raise LimitExceeded(f"At most {self.files.max_upload_files} files in one upload.", data={"src": "too many"})
        max_bytes = self.files.max_upload_bytes
        for blob in files:
            if len(blob.data) > max_bytes:
                raise LimitExceeded(f"{blob.path[:128]} exceeds {max_bytes} bytes.", data={"src": "too large"})
        checked_files = [wire.FileBlob(path=file_path(blob.path, field="src"), data=blob.data) for blob in files]
        session, agent = await self._running_session(caller, ref, owner_access_key)
        await agent.upload_files(wire.UploadFiles(kernel_id=str(session.main.id), files=checked_files))

    async def download(
        self, caller: Caller, ref: str, paths: Sequence[str], *, owner_access_key: str | None = None
    ) -> list[wire.TarFile]:
        """Returns a tar archive for each of the paths in a session. Raises LimitExceeded."""
        if not 1 <= len(paths) <= self.files.max_download_files:
            message = f"1 to {self.files.max_download_files} files in one download."
            raise LimitExceeded(message, data={"files": "too many or none"})
        checked_paths = [file_path(path, field="files") for path in paths]
        session, agent = await self._running_session(caller, ref, owner_access_key)
        return await agent.download_files(
            wire.DownloadFiles(
                kernel_id=str(session.main.id), paths=checked_paths, max_bytes=self.files.max_download_bytes
            )
        )

    async def list_files(
        self, caller: Caller, ref: str, path: str = ".", *, owner_access_key: str | None = None
    ) -> wire.FileListing:
        """Returns the entries of a directory of the session's home."""
        directory_path = home_path(path, field="path") or "."
        session, agent = await self._running_session(caller, ref, owner_access_key)
        return await agent.list_files(wire.ListFiles(kernel_id=str(session.main.id), path=directory_path))

    async def open_pty(
        self, caller: Caller, ref: str, *, rows: int = 24, cols: int = 80, owner_access_key: str | None = None
    ) -> PtyStream:
        """Opens a terminal in the session; the caller closes it."""
        session, agent = await self._running_session(caller, ref, owner_access_key)
        stream = await agent.open_pty(wire.OpenPty(kernel_id=str(session.main.id), rows=rows, cols=cols))
        return _ActivityRecordingPty(stream, partial(self.activity.touch, session.id))

    async def open_program(
        self, caller: Caller, ref: str, request: ProgramRequest, *, owner_access_key: str | None = None
    ) -> PtyStream:
        """Starts a program in the session; the caller closes its stream. Raises InvalidInput for an unknown kernel."""
        session, agent = await self._running_session(caller, ref, owner_access_key)
        kernel = kernel_of(session, request.kernel)
        if kernel.agent is not None:
            agent = self.gateway.agent(kernel.agent)
        open_request = wire.OpenPty(
            kernel_id=str(kernel.id),
            rows=request.rows,
            cols=request.cols,
            command=list(request.command),
            tty=request.tty,
            env=dict(request.env),
            cwd=request.cwd,
        )
        return _ActivityRecordingPty(await agent.open_pty(open_request), partial(self.activity.touch, session.id))


class _ActivityRecordingPty:
    """Passes the frames of a terminal on, and counts each frame as activity of the session."""

    def __init__(self, stream: PtyStream, touch: Callable[[], None]) -> None:
        self._stream = stream
        self._touch = touch
        self.close = stream.close

    async def send(self, frame: wire.PtyFrame) -> None:
        self._touch()
        await self._stream.send(frame)

    async def __aiter__(self) -> AsyncIterator[wire.PtyFrame]:
        async for frame in self._stream:
            self._touch()
            yield frame
