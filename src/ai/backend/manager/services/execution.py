"""What a user does inside a running session. All of it goes to the session's main kernel through its agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ai.backend.common.states import RunMode
from ai.backend.common.wire.agent import FileBlob, FileListing, RunResult, TarFile
from ai.backend.common.wire.link import PtyStream
from ai.backend.manager.model.identity import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One step of a run. ``run_id`` None mints one, and the reply tells it. ``options`` of batch mode: clean, build,
    buildLog, exec."""

    mode: RunMode
    code: str = ""
    run_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class ExecutionService:
    """Every method raises SessionNotFound, TooManySessionsMatched, Conflict (not RUNNING) and Unavailable (agent
    away)."""

    async def execute(
        self,
        caller: Caller,
        ref: str,
        request: RunRequest,
        *,
        owner_access_key: str | None = None,
        flush_timeout_s: float = 2.0,
    ) -> RunResult:
        """One step; also the engine of the WebSocket stream, which calls it until ``finished``."""
        raise NotImplementedError

    async def interrupt(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> None:
        raise NotImplementedError

    async def complete(
        self,
        caller: Caller,
        ref: str,
        code: str,
        options: Mapping[str, Any],
        *,
        owner_access_key: str | None = None,
    ) -> list[str]:
        raise NotImplementedError

    async def logs(self, caller: Caller, ref: str, *, owner_access_key: str | None = None) -> str:
        """Live from the agent; the kept tail once the session has ended. Works for final sessions too."""
        raise NotImplementedError

    async def upload(
        self, caller: Caller, ref: str, files: Sequence[FileBlob], *, owner_access_key: str | None = None
    ) -> None:
        """Raises LimitExceeded (count or size, spec 03-08) and InvalidInput (path leaves the home)."""
        raise NotImplementedError

    async def download(
        self, caller: Caller, ref: str, paths: Sequence[str], *, owner_access_key: str | None = None
    ) -> list[TarFile]:
        """At most 5 paths; each answer is a tar archive."""
        raise NotImplementedError

    async def list_files(
        self, caller: Caller, ref: str, path: str = ".", *, owner_access_key: str | None = None
    ) -> FileListing:
        raise NotImplementedError

    async def open_pty(
        self, caller: Caller, ref: str, *, rows: int = 24, cols: int = 80, owner_access_key: str | None = None
    ) -> PtyStream:
        raise NotImplementedError
