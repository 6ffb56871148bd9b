"""Names the parts of the history and the types of its archived columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

Rows = Sequence[Mapping[str, Any]]
Columns = Mapping[str, Mapping[str, type]]
"""The columns of each table: ``datetime`` in UTC, ``int``, ``float``, ``bool``, or ``str``, JSON included."""


class HistoryKind(StrEnum):
    """A kind of rows in the history, by the name of its rows."""

    SESSIONS = "sessions"
    AUDIT = "records"
    CLAIM_SPANS = "claim spans"
