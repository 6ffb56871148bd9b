"""Buffers the output of runs until it is fetched: bounded, in order, cut where a run changes its state (spec 03-08)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ai.backend.common.states import RunStatus

STREAM_LIMIT = 524_288
"""Characters of each of stdout and stderr in one answer."""
RICH_LIMIT = 16 * 1024 * 1024
"""Characters of media, html and log items in one answer."""
_STREAMS = ("stdout", "stderr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A change of a run's state in its output; a reply to the client ends there."""

    status: RunStatus
    exit_code: int | None = None
    options: dict[str, Any] | None = None
    files: tuple[dict[str, Any], ...] = ()
    reason: str | None = None


@dataclass(slots=True)
class _Entry:
    seq: int
    kind: str
    data: Any
    mark: Mark | None = None


@dataclass(slots=True)
class ConsoleBuffer:
    """Buffers items and marks in order. Adjacent text of one stream is one item."""

    _entries: list[_Entry] = field(default_factory=list)
    _used: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def lose(self, kind: str, count: int) -> None:
        """Counts dropped characters of a stream, or dropped rich items."""
        self.dropped[kind] = self.dropped.get(kind, 0) + count

    def add(self, kind: str, data: Any, seq: int) -> None:
        """Appends an item. What exceeds the limit until the next fetch or mark is dropped and counted."""
        if kind not in _STREAMS:
            self._add_rich(kind, data, seq)
            return
        text = data if isinstance(data, str) else str(data)
        room = STREAM_LIMIT - self._used.get(kind, 0)
        if len(text) > room:
            self.lose(kind, len(text) - room)
            text = text[:room]
        if not text:
            return
        self._used[kind] = self._used.get(kind, 0) + len(text)
        if self._entries and self._entries[-1].kind == kind:
            self._entries[-1].data.append(text)
        else:
            self._entries.append(_Entry(seq, kind, [text]))

    def _add_rich(self, kind: str, data: Any, seq: int) -> None:
        size = len(str(data))
        if self._used.get("rich", 0) + size > RICH_LIMIT:
            self.lose(kind, 1)
            return
        self._used["rich"] = self._used.get("rich", 0) + size
        self._entries.append(_Entry(seq, kind, data))

    def mark(self, mark: Mark, seq: int) -> None:
        self._entries.append(_Entry(seq, "", None, mark))
        self._used.clear()

    def drop_waiting(self) -> None:
        """Removes a last mark that says that the run waits for input."""
        if self._entries and (mark := self._entries[-1].mark) is not None and mark.status is RunStatus.WAITING_INPUT:
            self._entries.pop()

    @property
    def has_mark(self) -> bool:
        return any(entry.mark is not None for entry in self._entries)

    @property
    def next_mark(self) -> Mark | None:
        return next((entry.mark for entry in self._entries if entry.mark is not None), None)

    @property
    def first_seq(self) -> int | None:
        """The number of the oldest frame with buffered output."""
        return self._entries[0].seq if self._entries else None

    def take(self) -> tuple[list[list[Any]], Mark | None]:
        """Removes and returns everything up to and including the first mark."""
        items: list[list[Any]] = []
        for place, entry in enumerate(self._entries):
            if entry.mark is not None:
                del self._entries[: place + 1]
                return items, entry.mark
            items.append([entry.kind, "".join(entry.data) if entry.kind in _STREAMS else entry.data])
        self._entries.clear()
        self._used.clear()
        return items, None
