"""Stores the runner's messages that the agent has not acknowledged, up to a limit.

Over the limit the oldest console messages are dropped first, and each unbroken series leaves one ``gap``; then the
oldest bulk messages (terminal output, file chunks). Results and replies are never dropped: a buffer full of them is
``full``, and its owner stops reading from the runner.
"""

from __future__ import annotations

from .framing import kind_of, pack, stamp
from .light import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_CONSOLE_TYPES = frozenset({"console"})
_BULK_TYPES = frozenset({"pty-output", "chunk", "truncated"})
_OVERHEAD_BYTES = 100


class Replay:
    """Stores the runner's unacknowledged frames by number, oldest first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._frames: dict[int, bytes] = {}
        self._frames_in_gap: dict[int, int] = {}
        self._droppable: tuple[deque[int], deque[int]] = (deque(), deque())
        self._size_bytes = 0
        self.last_seq = 0

    @property
    def first_seq(self) -> int:
        """The oldest stored frame's number, or the next number to come."""
        return next(iter(self._frames), self.last_seq + 1)

    @property
    def size(self) -> int:
        return self._size_bytes

    @property
    def is_full(self) -> bool:
        return self._size_bytes > self._limit_bytes

    def push(self, body: bytes) -> int:
        """Numbers and stores a runner's message; returns the number. Raises ProtocolViolation."""
        message_type = kind_of(body)
        frame = pack(stamp(body, self.last_seq + 1))
        self.last_seq += 1
        self._frames[self.last_seq] = frame
        self._size_bytes += len(frame) + _OVERHEAD_BYTES
        if message_type in _CONSOLE_TYPES:
            self._droppable[0].append(self.last_seq)
        elif message_type in _BULK_TYPES:
            self._droppable[1].append(self.last_seq)
        for droppable_seqs in self._droppable:
            while self._size_bytes > self._limit_bytes and len(droppable_seqs) > 1:
                self._replace_by_gap(droppable_seqs.popleft())
        return self.last_seq

    def ack(self, seq: int) -> None:
        """Drops all stored frames up to the number ``seq``."""
        for stored_seq in list(self._frames):
            if stored_seq > seq:
                break
            self._remove_frame(stored_seq)
            self._frames_in_gap.pop(stored_seq, None)
        for droppable_seqs in self._droppable:
            while droppable_seqs and droppable_seqs[0] <= seq:
                droppable_seqs.popleft()

    def get(self, seq: int) -> bytes | None:
        """Returns the frame with this number, None if it was dropped or acknowledged."""
        return self._frames.get(seq)

    def after(self, seq: int) -> Iterator[int]:
        """Returns the numbers of the stored frames after ``seq``."""
        return (stored_seq for stored_seq in self._frames if stored_seq > seq)

    def _remove_frame(self, seq: int) -> None:
        self._size_bytes -= len(self._frames.pop(seq)) + _OVERHEAD_BYTES

    def _replace_by_gap(self, seq: int) -> None:
        """Replaces a stored message by a ``gap`` frame with the number of dropped messages.

        A gap just before the message becomes a part of the new gap.
        """
        dropped_count = 1 + self._frames_in_gap.pop(seq - 1, 0)
        if dropped_count > 1:
            self._remove_frame(seq - 1)
        gap_frame = pack(b'{"t":"gap","dropped":%d,"seq":%d}' % (dropped_count, seq))
        self._size_bytes += len(gap_frame) - len(self._frames[seq])
        self._frames[seq] = gap_frame
        self._frames_in_gap[seq] = dropped_count
