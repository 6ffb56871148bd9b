"""One line on a terminal that says how far transfers are."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Self

from ai.backend.cli.output import Screen, cell

_EVERY_S = 0.1


def readable_size(size: int) -> str:
    """``1536`` as ``1.5 KiB``."""
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024 or unit == "PiB":
            break
        amount /= 1024
    return f"{int(amount)} B" if unit == "B" else f"{amount:.1f} {unit}"


class TransferBar:
    """Bytes of all files that are under way; shown only to a person who looks at a terminal."""

    def __init__(self, screen: Screen) -> None:
        self._is_shown = not screen.is_quiet and sys.stderr.isatty()
        self._files: dict[str, tuple[int, int]] = {}
        self._began = time.monotonic()
        self._last = 0.0

    def update(self, path: str, done: int, total: int) -> None:
        """Note where one file is; the line is drawn now and then."""
        self._files[path] = done, total
        now = time.monotonic()
        if self._is_shown and now - self._last >= _EVERY_S:
            self._last = now
            self._draw(path)

    def _draw(self, path: str) -> None:
        done = sum(done for done, _ in self._files.values())
        total = sum(total for _, total in self._files.values())
        rate = done / max(0.001, time.monotonic() - self._began)
        width = shutil.get_terminal_size().columns
        share = done / total if total else 0.0
        numbers = f"{share:4.0%}  {readable_size(done)} of {readable_size(total)}  {readable_size(int(rate))}/s  "
        bar = f"[{'#' * int(20 * share):<20}] "
        print(f"\r\x1b[K{(bar + numbers + cell(path))[: width - 1]}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the line away."""
        if self._is_shown and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._last = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
