"""Declares the store of history and its archive, and the names that both use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

Rows = Sequence[Mapping[str, Any]]
Columns = Mapping[str, Mapping[str, type]]
"""The columns of each table with their types: ``datetime`` in UTC, ``int``, ``float``, ``bool``, or ``str``, also for
JSON.
"""


class HistoryKind(StrEnum):
    """Names a kind of rows in the history."""

    SESSIONS = "sessions"
    AUDIT = "records"
    CLAIM_SPANS = "claim spans"


class HistoryStore(Protocol):
    """Reads and deletes old sessions, audit records and claim periods in the database.

    An id is that of a session, an audit record or a span of a claim, as text.
    """

    @property
    def columns(self) -> Columns:
        """Returns the columns of the tables that :meth:`rows` reads, without columns that may hold secrets."""
        ...

    async def expired_ids(self, kind: HistoryKind, *, before: datetime, limit: int) -> Sequence[str]:
        """Returns the ids of the oldest rows of a kind that ended before a time.

        Sessions are left out on which a live session depends, or whose array has live or younger sessions.
        """
        ...

    async def rows(self, kind: HistoryKind, ids: Sequence[str]) -> Mapping[str, Rows]:
        """Returns the rows to archive, by the name of their table."""
        ...

    async def remove(self, kind: HistoryKind, ids: Sequence[str]) -> Mapping[str, int]:
        """Deletes history with the rows that belong to it, and returns the numbers of deleted rows by kind."""
        ...


class Archive(Protocol):
    """Writes rows to files that outlive the database."""

    @property
    def folder(self) -> Path: ...

    def write(self, table: str, name: str, rows: Rows) -> Path:
        """Writes one file durably, replaces a file of the same name, and returns the path. Raises OSError."""
        ...
