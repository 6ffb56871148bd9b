"""Defines the durable records of runs."""

from __future__ import annotations

from typing import Any

import msgspec

RECORD_VERSION = 1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Represents the base class of the records that the agent stores on disk."""


class RunRecord(Record, frozen=True, kw_only=True):
    """Stores a code run whose output is not fetched to its end.

    ``frame`` is the message that starts the run, and empty once the run has started. ``consumed`` is the last frame
    whose output was fetched, ``waiting`` the options of the input that the run waits for, and ``deadline_at`` the time
    of its cancellation in seconds since the epoch. ``trace`` is the ``traceparent`` of the request that asked for it at
    ``asked_at``, None where nothing is traced or its span is recorded.
    """

    run_id: str
    frame: dict[str, Any]
    started: bool = False
    consumed: int = 0
    waiting: dict[str, Any] | None = None
    deadline_at: float | None = None
    trace: str | None = None
    asked_at: float = 0.0


class RunsRecord(Record, frozen=True, kw_only=True):
    """Stores the code runs of a kernel in order. ``acked`` is the last frame that the shim was allowed to drop."""

    version: int = RECORD_VERSION
    attempt: int
    acked: int = 0
    runs: list[RunRecord] = []
