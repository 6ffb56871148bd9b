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
MAX_ITEMS = 16_384
"""Items in one answer, whatever their size."""
_STREAM_NAMES = ("stdout", "stderr")


@dataclass(slots=True)
class _Entry:
    seq: int
    kind: str
    data: Any
    state_change: RunResult | None = None


@dataclass(slots=True)
class ConsoleBuffer:
    """Buffers console output and changes of the run's state in order. Adjacent text of one stream is one item.

    A change of the state has no output; a reply to the client ends there.
    """

    _entries: list[_Entry] = field(default_factory=list)
    _used_space: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def count_dropped(self, kind: str, dropped_count: int) -> None:
        """Adds to the counts of dropped output. Streams are counted in characters, rich output in items."""
        self.dropped[kind] = self.dropped.get(kind, 0) + dropped_count

    def add(self, kind: str, data: Any, seq: int) -> None:
        """Appends console output. Output over the limit until the next fetch or state change is dropped and counted."""
        is_stream = kind in _STREAM_NAMES
        is_continued = is_stream and bool(self._entries) and self._entries[-1].kind == kind
        text, limit, used_key = str(data), STREAM_LIMIT if is_stream else RICH_LIMIT, kind if is_stream else "rich"
        if not is_continued and self._used_space.get("items", 0) >= MAX_ITEMS:
            self.count_dropped(kind, len(text) if is_stream else 1)
            return
        free_space = limit - self._used_space.get(used_key, 0)
        if len(text) > free_space:
            self.count_dropped(kind, len(text) - free_space if is_stream else 1)
            if not is_stream:
                return
            text = text[:free_space]
        if is_stream and not text:
            return
        self._used_space[used_key] = self._used_space.get(used_key, 0) + len(text)
        if is_continued:
            self._entries[-1].data.append(text)
        else:
            self._used_space["items"] = self._used_space.get("items", 0) + 1
            self._entries.append(_Entry(seq, kind, [text] if is_stream else data))

    def add_state_change(self, state_change: RunResult, seq: int) -> None:
        self._entries.append(_Entry(seq, "", None, state_change))
        self._used_space.clear()

    def drop_waiting(self) -> None:
        """Removes the last change of state if it says that the run waits for input."""
        if (
            self._entries
            and (state_change := self._entries[-1].state_change) is not None
            and state_change.status is RunStatus.WAITING_INPUT
        ):
            self._entries.pop()

    @property
    def next_state_change(self) -> RunResult | None:
        return next((entry.state_change for entry in self._entries if entry.state_change is not None), None)

    @property
    def first_seq(self) -> int | None:
        """The number of the oldest frame with buffered output."""
        return self._entries[0].seq if self._entries else None

    def take(self) -> tuple[list[list[Any]], RunResult | None]:
        """Removes and returns all output up to the first change of state, and that change."""
        console_items: list[list[Any]] = []
        for entry_index, entry in enumerate(self._entries):
            if entry.state_change is not None:
                del self._entries[: entry_index + 1]
                return console_items, entry.state_change
            console_items.append([entry.kind, "".join(entry.data) if entry.kind in _STREAM_NAMES else entry.data])
        self._entries.clear()
        self._used_space.clear()
        return console_items, None
