"""Keeps the newest log records of sessions in memory, for administrators who cannot reach the nodes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection

from ai.backend.common.wire.reports import LogLine

MAX_MESSAGE_LENGTH = 8192


def message_of(record: logging.LogRecord, *, max_length: int = MAX_MESSAGE_LENGTH) -> str:
    """Returns the message of a record, shortened and with only characters that UTF-8 can encode.

    The name of a file may have others, for which the encoders of JSON and OTLP raise an error: the record, or the
    whole batch that it is in, would be lost.
    """
    return escape_unencodable(record.getMessage()[:max_length])


def escape_unencodable(text: str) -> str:
    """Returns a text in which characters that UTF-8 cannot encode are written as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


_MAX_RECORDS = 10_000
_MAX_MESSAGE_LENGTH = 1024
_MAX_LINES = 500


class RecentRecords(logging.Handler):
    """Keeps the newest log records that have a session or kernel id, of each level that the logger passes."""

    def __init__(self, daemon: str) -> None:
        super().__init__()
        self._daemon = daemon
        self._lines: deque[tuple[frozenset[str], LogLine]] = deque(maxlen=_MAX_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        ids = getattr(record, "ids", {})
        owner_ids = frozenset(str(ids[name]) for name in ("session_id", "kernel_id") if name in ids)
        if not owner_ids:
            return
        try:
            message = message_of(record, max_length=_MAX_MESSAGE_LENGTH)
        except Exception:  # noqa: BLE001  # as every handler does: what is logged must not fail
            self.handleError(record)
            return
        line = LogLine(
            at=record.created,
            daemon=self._daemon,
            level=record.levelname.lower(),
            logger=record.name,
            message=message,
            request_id=ids.get("request_id"),
            trace_id=ids.get("trace_id"),
        )
        self._lines.append((owner_ids, line))

    def of(self, ids: Collection[str]) -> list[LogLine]:
        """Returns the newest records of a session or its kernels, at most 500, the oldest first."""
        requested_ids = frozenset(ids)
        return [line for owner_ids, line in list(self._lines) if owner_ids & requested_ids][-_MAX_LINES:]


def recent_lines(ids: Collection[str]) -> list[LogLine]:
    """Returns the newest log records of this process about a session and its kernels."""
    return [
        line
        for handler in logging.getLogger().handlers
        if isinstance(handler, RecentRecords)
        for line in handler.of(ids)
    ]
