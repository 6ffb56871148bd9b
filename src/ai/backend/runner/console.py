"""Console output on its way to the agent: decoded, ordered, merged and bounded."""

from __future__ import annotations

import codecs
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

MAX_UNSENT = 2 * 524_288
"""The maximum characters of one stream that wait for the agent while a run is active."""
MAX_BACKGROUND = 65_536
"""The maximum characters of one stream that are stored from background processes between runs, to begin the console of
the next run."""
MAX_ITEMS = 20_000
MAX_RICH = 8 * 1024 * 1024
ITEM_BYTES = 65_536
FRAME_BYTES = 1024 * 1024
_PIECE = ITEM_BYTES // 4


class _Item:
    """One console item; text grows while it stays within `ITEM_BYTES`, rich items are complete from the start."""

    __slots__ = ("chars", "kind", "pieces", "size", "value")

    def __init__(self, kind: str, value: Any = None, size: int = 0) -> None:
        self.kind = kind
        self.value = value
        self.size = size
        self.chars = 0
        self.pieces: List[str] = []


class Console:
    """The unsent console, within the limits above; dropped characters are counted by stream."""

    def __init__(self) -> None:
        self._items: List[_Item] = []
        self._next = 0
        self._rich = 0
        self._unsent = {"stdout": 0, "stderr": 0}
        self._dropped = {"stdout": 0, "stderr": 0}
        self._decoders = {name: _decoder() for name in self._unsent}
        self._tail: Optional[List[Tuple[str, str]]] = None
        self.limit = MAX_BACKGROUND

    @property
    def is_empty(self) -> bool:
        """True if nothing waits, including counts of dropped characters."""
        return self._next == len(self._items) and not any(self._dropped.values())

    def hide(self) -> None:
        """Stops showing text; its tail is stored for `reveal` (the build log of a batch run)."""
        self._tail = []

    def reveal(self, show: bool) -> None:
        """Ends `hide`; with `show` the stored tail is added to the console."""
        self.end_of_text()
        tail, self._tail = self._tail, None
        if show and tail:
            for stream, text in tail:
                self.add_text(stream, text)

    def feed(self, stream: str, data: bytes) -> None:
        """Adds bytes of a process; a character that is cut by a read is completed by the next one."""
        self.add_text(stream, self._decoders[stream].decode(data))

    def end_of_text(self) -> None:
        """Replaces an incomplete character, which can no longer be completed."""
        for stream, decoder in self._decoders.items():
            self.add_text(stream, decoder.decode(b"", True))
            decoder.reset()

    def add_text(self, stream: str, text: str) -> None:
        """Adds decoded text; beyond the limit it is dropped and counted."""
        if not text:
            return
        if self._tail is not None:
            self._tail.append((stream, text[-ITEM_BYTES:]))
            while (sum(len(t) for _, t in self._tail) > ITEM_BYTES and len(self._tail) > 1) or len(self._tail) > 256:
                self._tail.pop(0)
            return
        room = max(0, self.limit - self._unsent[stream])
        if len(self._items) - self._next >= MAX_ITEMS and self._items[-1].kind != stream:
            room = 0
        if len(text) > room:
            self._dropped[stream] += len(text) - room
            text = text[:room]
        for start in range(0, len(text), _PIECE):
            self._append(stream, text[start : start + _PIECE])

    def add_rich(self, kind: str, value: Any, size: int) -> None:
        """Adds a media, html or log item of `size` characters; what does not fit is replaced by a line on stderr."""
        if self._rich + size > MAX_RICH or len(self._items) - self._next >= MAX_ITEMS:
            self.add_text("stderr", f"[a {kind} item of {size} characters was dropped]\n")
            return
        self._rich += size
        self._items.append(_Item(kind, value, size))

    def take_items(self) -> List[List[Any]]:
        """Removes and returns items for one frame, oldest first; [] when there are none."""
        items: List[List[Any]] = []
        total = 0
        while self._next < len(self._items):
            item = self._items[self._next]
            if items and total + item.size > FRAME_BYTES:
                break
            self._next += 1
            total += item.size
            if item.pieces:
                self._unsent[item.kind] -= item.chars
                items.append([item.kind, "".join(item.pieces)])
            else:
                self._rich -= item.size
                items.append([item.kind, item.value])
        if self._next == len(self._items) or self._next > 1024:
            del self._items[: self._next]
            self._next = 0
        return items

    def take_dropped(self) -> Dict[str, int]:
        """Removes and returns the counts of dropped characters by stream, without zeros."""
        dropped = {stream: count for stream, count in self._dropped.items() if count}
        for stream in dropped:
            self._dropped[stream] = 0
        return dropped

    def _append(self, stream: str, piece: str) -> None:
        size = len(piece) if piece.isascii() else len(piece.encode("utf-8", "replace"))
        last = self._items[-1] if self._next < len(self._items) else None
        if last is None or last.kind != stream or last.size + size > ITEM_BYTES:
            last = _Item(stream)
            self._items.append(last)
        last.pieces.append(piece)
        if len(last.pieces) > 64:
            last.pieces = ["".join(last.pieces)]
        last.size += size
        last.chars += len(piece)
        self._unsent[stream] += len(piece)


class SessionLog:
    """Echoes the console to the runner's own stdout and stderr without blocking; drops output that nobody reads."""

    LIMIT = 256 * 1024

    def __init__(self) -> None:
        self._pending = {1: bytearray(), 2: bytearray()}
        self.blocked = False
        for fd in (1, 2):
            # Only a pipe: the flag belongs to the open file, which for a terminal is shared with whoever started us.
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.set_blocking(fd, False)

    def write(self, stream: str, data: bytes) -> None:
        """Writes or buffers `data`; drops it beyond the limit."""
        fd = 1 if stream == "stdout" else 2
        if len(self._pending[fd]) + len(data) <= self.LIMIT:
            self._pending[fd] += data
        self.flush()

    def flush(self) -> None:
        """Writes what the pipe accepts; `blocked` is True if something remains."""
        self.blocked = False
        for fd, pending in self._pending.items():
            while pending:
                try:
                    done = os.write(fd, bytes(pending[:65_536]))
                except BlockingIOError:
                    self.blocked = True
                    break
                except OSError:
                    pending.clear()  # nobody will ever read it
                    break
                del pending[:done]


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
