"""The durable records of runs."""

from __future__ import annotations

from typing import Any

import msgspec

RECORD_VERSION = 1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of durable records."""


class RunRecord(Record, frozen=True, kw_only=True):
    """A run that nobody has fetched to its end.

    ``started``: the runner has confirmed it. ``consumed``: its frames up to there were given out. ``waiting``: it waits
    for input, with these options. ``deadline_at``: when it is cancelled, in seconds of the epoch.
    """

    run_id: str
    frame: dict[str, Any]
    started: bool = False
    consumed: int = 0
    waiting: dict[str, Any] | None = None
    deadline_at: float | None = None


class RunsRecord(Record, frozen=True, kw_only=True):
    """The runs of a kernel in order; everything up to ``acked`` was given out and is forgotten in the shim."""

    version: int = RECORD_VERSION
    attempt: int
    acked: int = 0
    runs: list[RunRecord] = []
