"""Requests and replies of execution."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
from msgspec import Meta

from ai.backend.common.states import RunStatus
from ai.backend.infra.http.fields import LongText, Path
from ai.backend.infra.http.routes import Schema


class FilesQuery(Schema, frozen=True):
    path: Path = "/home/work"


class DownloadQuery(Schema, frozen=True):
    files: Annotated[list[Path], Meta(min_length=1)]


class KernelQuery(Schema, frozen=True):
    """A kernel of the session: its host name in the session, or its id."""

    kernel: Annotated[str, Meta(max_length=64)] | None = None


class LogsQuery(Schema, frozen=True, rename={"task_id": "taskId"}):
    task_id: UUID


class RunOptions(Schema, frozen=True, rename={"build_log": "buildLog"}):
    """The Batch Execution Query Object (spec 03-07); ``"*"`` is the runtime's default command."""

    clean: LongText | None = None
    build: LongText | None = None
    build_log: bool = False
    exec: LongText | None = None


class ExecuteBody(Schema, frozen=True, rename={"run_id": "runId", "flush_seconds": "flushSeconds"}):
    """The body of a step of a run; ``continued`` is the same as ``continue``.

    The step is answered after ``flushSeconds`` with the output so far, if it has not ended before.
    """

    mode: Literal["query", "batch", "continue", "continued", "input"]
    code: str = ""
    run_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    options: RunOptions = msgspec.field(default_factory=RunOptions)
    flush_seconds: Annotated[float, Meta(ge=0, le=10)] = 2.0


class CursorOptions(Schema, frozen=True):
    """The position of the cursor (spec 03-08, "auto-completion"); row and column are counted from zero."""

    post: str = ""
    line: str = ""
    row: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    col: Annotated[int, Meta(ge=0, le=10_000_000)] = 0


class CompleteBody(Schema, frozen=True):
    code: str = ""
    options: CursorOptions = msgspec.field(default_factory=CursorOptions)


class StreamRequest(Schema, frozen=True):
    """The first frame of an execution stream (wire contract 2.2.1)."""

    mode: Literal["query", "batch"]
    code: str = ""
    options: RunOptions = msgspec.field(default_factory=RunOptions)


class ProcessRow(msgspec.Struct, frozen=True):
    """A process: ``kernel`` is the host name of its kernel, ``metrics`` are in the shape of ``live_stat``."""

    kernel: str
    pid: int
    command: str
    metrics: dict[str, dict[str, str | None]]


class ProcessList(msgspec.Struct, frozen=True):
    result: list[ProcessRow]


class RunResultView(TypedDict):
    """The Execution Result Object (spec 03-07); ``console`` items are pairs of a kind and its data."""

    runId: str
    status: RunStatus
    exitCode: int | None
    console: list[list[Any]]
    options: dict[str, Any] | None
    files: list[dict[str, Any]]
    reason: NotRequired[str]


class RunReply(TypedDict):
    result: RunResultView


class Completions(TypedDict):
    result: list[str]


class ConsoleLog(TypedDict):
    logs: str


class LogReply(TypedDict):
    result: ConsoleLog


class FileListingReply(TypedDict):
    """Files of a directory; ``files`` is JSON text (spec 03-08)."""

    files: str
    folder_path: str
    errors: str
