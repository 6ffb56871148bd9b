"""Buffers the output of runs until it is fetched: bounded, in order, cut where a run changes its state (spec 03-08)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ai.backend.common.states import RunStatus
from ai.backend.common.wire.execution import RunResult

STREAM_LIMIT = 524_288
"""Characters of each of stdout and stderr in one answer."""
RICH_LIMIT = 16 * 1024 * 1024
"""Characters of media, html and log items in one answer."""
_STREAMS = ("stdout", "stderr")


@dataclass(slots=True)
class _Entry:
    seq: int
    kind: str
    data: Any
    mark: RunResult | None = None


@dataclass(slots=True)
class ConsoleBuffer:
    """Buffers items and marks in order. Adjacent text of one stream is one item.

    A mark is a change of the run's state, without output; a reply to the client ends there.
    """

    _entries: list[_Entry] = field(default_factory=list)
    _used: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def lose(self, kind: str, count: int) -> None:
        """Counts dropped characters of a stream, or dropped rich items."""
        self.dropped[kind] = self.dropped.get(kind, 0) + count

    def add(self, kind: str, data: Any, seq: int) -> None:
        """Appends an item. What exceeds the limit until the next fetch or mark is dropped and counted."""
        is_stream = kind in _STREAMS
        text, limit, counter = str(data), STREAM_LIMIT if is_stream else RICH_LIMIT, kind if is_stream else "rich"
        free = limit - self._used.get(counter, 0)
        if len(text) > free:
            self.lose(kind, len(text) - free if is_stream else 1)
            if not is_stream:
                return
            text = text[:free]
        if is_stream and not text:
            return
        self._used[counter] = self._used.get(counter, 0) + len(text)
        if is_stream and self._entries and self._entries[-1].kind == kind:
            self._entries[-1].data.append(text)
        else:
            self._entries.append(_Entry(seq, kind, [text] if is_stream else data))

    def mark(self, mark: RunResult, seq: int) -> None:
        self._entries.append(_Entry(seq, "", None, mark))
        self._used.clear()

    def drop_waiting(self) -> None:
        """Removes a last mark that says that the run waits for input."""
        if self._entries and (mark := self._entries[-1].mark) is not None and mark.status is RunStatus.WAITING_INPUT:
            self._entries.pop()

    @property
    def next_mark(self) -> RunResult | None:
        return next((entry.mark for entry in self._entries if entry.mark is not None), None)

    @property
    def first_seq(self) -> int | None:
        """The number of the oldest frame with buffered output."""
        return self._entries[0].seq if self._entries else None

    def take(self) -> tuple[list[list[Any]], RunResult | None]:
        """Removes and returns everything up to and including the first mark."""
        items: list[list[Any]] = []
        for index, entry in enumerate(self._entries):
            if entry.mark is not None:
                del self._entries[: index + 1]
                return items, entry.mark
            items.append([entry.kind, "".join(entry.data) if entry.kind in _STREAMS else entry.data])
        self._entries.clear()
        self._used.clear()
        return items, None
