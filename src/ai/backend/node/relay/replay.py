"""The bounded buffer of runner messages that the agent has not acknowledged.

Over the limit the oldest console messages are dropped first, and each unbroken series leaves one ``gap``; then the
oldest bulk messages (terminal output, file chunks). Results and replies are never dropped: a buffer full of them is
``full``, and its owner stops reading from the runner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .framing import kind_of, pack, stamp

_CONSOLE = frozenset({"console"})
_BULK = frozenset({"pty-output", "chunk", "truncated"})
_OVERHEAD = 100


class Replay:
    """Stores frames by number, oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: dict[int, bytes] = {}
        self._gaps: dict[int, int] = {}
        self._droppable: tuple[deque[int], deque[int]] = (deque(), deque())
        self._size = 0
        self.last_seq = 0

    @property
    def first_seq(self) -> int:
        """The oldest stored number, or the next one to come."""
        return next(iter(self._frames), self.last_seq + 1)

    @property
    def size(self) -> int:
        return self._size

    @property
    def is_full(self) -> bool:
        return self._size > self._limit

    def push(self, body: bytes) -> int:
        """Numbers and stores a message; returns its number. Raises ProtocolViolation."""
        kind = kind_of(body)
        frame = pack(stamp(body, self.last_seq + 1))
        self.last_seq += 1
        self._frames[self.last_seq] = frame
        self._size += len(frame) + _OVERHEAD
        if kind in _CONSOLE:
            self._droppable[0].append(self.last_seq)
        elif kind in _BULK:
            self._droppable[1].append(self.last_seq)
        for series in self._droppable:
            while self._size > self._limit and len(series) > 1:
                self._drop(series.popleft())
        return self.last_seq

    def ack(self, seq: int) -> None:
        """Drops everything up to ``seq``."""
        for number in list(self._frames):
            if number > seq:
                break
            self._take(number)
            self._gaps.pop(number, None)
        for series in self._droppable:
            while series and series[0] <= seq:
                series.popleft()

    def get(self, seq: int) -> bytes | None:
        """Returns the frame with this number, None if it was dropped or acknowledged."""
        return self._frames.get(seq)

    def after(self, seq: int) -> Iterator[int]:
        """Returns the stored numbers greater than ``seq``."""
        return (number for number in self._frames if number > seq)

    def _take(self, seq: int) -> None:
        self._size -= len(self._frames.pop(seq)) + _OVERHEAD

    def _drop(self, seq: int) -> None:
        """Replaces a message by a gap, which includes the gap just before it."""
        dropped = 1 + self._gaps.pop(seq - 1, 0)
        if dropped > 1:
            self._take(seq - 1)
        gap = pack(b'{"t":"gap","dropped":%d,"seq":%d}' % (dropped, seq))
        self._size += len(gap) - len(self._frames[seq])
        self._frames[seq] = gap
        self._gaps[seq] = dropped
