"""Stores console output until it is sent to the agent: decoded, ordered, merged and bounded."""

from __future__ import annotations

import codecs
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

MAX_UNSENT_CHARS = 2 * 524_288
"""The maximum characters of one stream that wait for the agent while a run is active."""
MAX_BACKGROUND_CHARS = 65_536
"""The maximum characters of one stream that are stored from background processes between runs, to begin the console of
the next run."""
MAX_UNSENT_ITEMS = 20_000
MAX_RICH_CHARS = 8 * 1024 * 1024
_RICH_ITEM_CHARS = 256
"""The number of characters that each rich item counts in addition to its content."""
MAX_ITEM_BYTES = 65_536
MAX_FRAME_BYTES = 1024 * 1024
_PIECE_CHARS = MAX_ITEM_BYTES // 4


class _ConsoleItem:
    """Holds a console item; text grows up to `MAX_ITEM_BYTES`, rich items are complete from the start."""

    __slots__ = ("chars", "kind", "pieces", "size", "value")

    def __init__(self, kind: str, rich_value: Any = None, size: int = 0) -> None:
        self.kind = kind
        self.value = rich_value
        self.size = size
        self.chars = 0
        self.pieces: List[str] = []


class Console:
    """Buffers the console output that was not sent yet, up to a limit; counts the dropped characters of each stream."""

    def __init__(self) -> None:
        self._items: List[_ConsoleItem] = []
        self._next = 0
        self._unsent_rich_chars = 0
        self._unsent = {"stdout": 0, "stderr": 0}
        self._dropped = {"stdout": 0, "stderr": 0}
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._unsent}
        self._hidden_tail: Optional[List[Tuple[str, str]]] = None
        self.limit = MAX_BACKGROUND_CHARS

    @property
    def is_empty(self) -> bool:
        """True if neither console items nor counts of dropped characters wait for the agent."""
        return self._next == len(self._items) and not any(self._dropped.values())

    def hide(self) -> None:
        """Starts to store text instead of showing the text. `reveal` can show the tail later.

        Used for the build log of a batch run.
        """
        self._hidden_tail = []

    def reveal(self, is_shown: bool) -> None:
        """Ends `hide`; with `is_shown` adds the stored tail to the console."""
        self.end_of_text()
        hidden_tail, self._hidden_tail = self._hidden_tail, None
        if is_shown and hidden_tail:
            for stream, text in hidden_tail:
                self.add_text(stream, text)

    def feed(self, stream: str, output_bytes: bytes) -> None:
        """Adds output bytes of a process. A character that is cut at the end is completed by the next call."""
        self.add_text(stream, self._decoders[stream].decode(output_bytes))

    def end_of_text(self) -> None:
        """Adds a replacement for an incomplete character at the end of each stream.

        No bytes follow that could complete the character.
        """
        for stream, decoder in self._decoders.items():
            self.add_text(stream, decoder.decode(b"", True))
            decoder.reset()

    def add_text(self, stream: str, text: str) -> None:
        """Adds decoded text of a stream; drops and counts the characters beyond the limit."""
        if not text:
            return
        if self._hidden_tail is not None:
            self._hidden_tail.append((stream, text[-MAX_ITEM_BYTES:]))
            while (
                sum(len(hidden_text) for _, hidden_text in self._hidden_tail) > MAX_ITEM_BYTES
                and len(self._hidden_tail) > 1
            ) or len(self._hidden_tail) > 256:
                self._hidden_tail.pop(0)
            return
        free_chars = max(0, self.limit - self._unsent[stream])
        if len(self._items) - self._next >= MAX_UNSENT_ITEMS and self._items[-1].kind != stream:
            free_chars = 0
        if len(text) > free_chars:
            self._dropped[stream] += len(text) - free_chars
            text = text[:free_chars]
        for piece_start in range(0, len(text), _PIECE_CHARS):
            self._append(stream, text[piece_start : piece_start + _PIECE_CHARS])

    def add_rich(self, kind: str, rich_value: Any, size_chars: int) -> None:
        """Adds a media, html or log item of `size_chars` characters to the console.

        Without room for the item, adds a line on stderr instead.
        """
        counted_chars = size_chars + _RICH_ITEM_CHARS
        if (
            self._unsent_rich_chars + counted_chars > MAX_RICH_CHARS
            or len(self._items) - self._next >= MAX_UNSENT_ITEMS
        ):
            self.add_text("stderr", f"[a {kind} item of {size_chars} characters was dropped]\n")
            return
        self._unsent_rich_chars += counted_chars
        self._items.append(_ConsoleItem(kind, rich_value, counted_chars))

    def take_items(self) -> List[List[Any]]:
        """Removes and returns console items for one frame, oldest first; [] if there are no items."""
        frame_items: List[List[Any]] = []
        frame_bytes = 0
        while self._next < len(self._items):
            item = self._items[self._next]
            if frame_items and frame_bytes + item.size > MAX_FRAME_BYTES:
                break
            self._next += 1
            frame_bytes += item.size
            if item.pieces:
                self._unsent[item.kind] -= item.chars
                frame_items.append([item.kind, "".join(item.pieces)])
            else:
                self._unsent_rich_chars -= item.size
                frame_items.append([item.kind, item.value])
        if self._next == len(self._items) or self._next > 1024:
            del self._items[: self._next]
            self._next = 0
        return frame_items

    def take_dropped(self) -> Dict[str, int]:
        """Removes and returns the counts of dropped characters by stream, without zeros."""
        dropped = {stream: dropped_chars for stream, dropped_chars in self._dropped.items() if dropped_chars}
        for stream in dropped:
            self._dropped[stream] = 0
        return dropped

    def _append(self, stream: str, piece: str) -> None:
        piece_bytes = len(piece) if piece.isascii() else len(piece.encode("utf-8", "replace"))
        last_item = self._items[-1] if self._next < len(self._items) else None
        if last_item is None or last_item.kind != stream or last_item.size + piece_bytes > MAX_ITEM_BYTES:
            last_item = _ConsoleItem(stream)
            self._items.append(last_item)
        last_item.pieces.append(piece)
        if len(last_item.pieces) > 64:
            last_item.pieces = ["".join(last_item.pieces)]
        last_item.size += piece_bytes
        last_item.chars += len(piece)
        self._unsent[stream] += len(piece)


class SessionLog:
    """Echoes the console to the runner's own stdout and stderr without blocking; drops output that nobody reads."""

    LIMIT_BYTES = 256 * 1024

    def __init__(self) -> None:
        self._pending = {1: bytearray(), 2: bytearray()}
        self.blocked = False
        for fd in (1, 2):
            # Only a pipe: the flag belongs to the open file, which for a terminal is shared with whoever started us.
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.set_blocking(fd, False)

    def write(self, stream: str, output_bytes: bytes) -> None:
        """Writes or buffers `output_bytes`; drops the bytes beyond the limit."""
        fd = 1 if stream == "stdout" else 2
        if len(self._pending[fd]) + len(output_bytes) <= self.LIMIT_BYTES:
            self._pending[fd] += output_bytes
        self.flush()

    def flush(self) -> None:
        """Writes the buffered output that the pipes accept; sets `blocked` if output remains."""
        self.blocked = False
        for fd, pending_bytes in self._pending.items():
            while pending_bytes:
                try:
                    written_bytes = os.write(fd, bytes(pending_bytes[:65_536]))
                except BlockingIOError:
                    self.blocked = True
                    break
                except OSError:
                    pending_bytes.clear()  # nobody will ever read it
                    break
                del pending_bytes[:written_bytes]
