"""Interfaces of the history's store and of its archive, and the names that both use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

Rows = Sequence[Mapping[str, Any]]
Columns = Mapping[str, Mapping[str, type]]
"""The columns of each table: ``datetime`` in UTC, ``int``, ``float``, ``bool``, or ``str``, JSON included."""


class HistoryKind(StrEnum):
    """A kind of rows in the history, by the name of its rows."""

    SESSIONS = "sessions"
    AUDIT = "records"
    CLAIM_SPANS = "claim spans"


class HistoryStore(Protocol):
    """Reads and deletes history. An id is that of a session, an audit record or a span of a claim, as text."""

    @property
    def columns(self) -> Columns:
        """Returns the columns of the tables in ``rows``: none that may hold secrets."""
        ...

    async def expired(self, kind: HistoryKind, *, before: datetime, limit: int) -> Sequence[str]:
        """Returns the ids of the oldest history that ended before a time, without sessions on which a live session
        depends, and sessions of an array that has live or younger ones."""
        ...

    async def rows(self, kind: HistoryKind, ids: Sequence[str]) -> Mapping[str, Rows]:
        """Returns the rows to archive, by their table."""
        ...

    async def remove(self, kind: HistoryKind, ids: Sequence[str]) -> Mapping[str, int]:
        """Deletes history with what belongs to it; returns the numbers of deleted rows by their kind."""
        ...


class Archive(Protocol):
    """Writes rows to files that outlive the database."""

    @property
    def folder(self) -> Path: ...

    def write(self, table: str, name: str, rows: Rows) -> Path:
        """Writes one file durably and returns its path; replaces a file of that name. Raises OSError."""
        ...
