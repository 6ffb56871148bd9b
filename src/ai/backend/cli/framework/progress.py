"""A progress bar for transfers of files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from ai.backend.cli.framework.output import Screen
from ai.backend.cli.framework.values import format_cell

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class TransferBar:
    """Shows the bytes of all files that are under way, where stderr is a terminal."""

    def __init__(self, screen: Screen) -> None:
        self._is_shown = not screen.is_quiet and sys.stderr.isatty()
        self._files: dict[str, tuple[int, int]] = {}
        self._done = self._total = 0
        self._bar: tuple[Progress, TaskID] | None = None

    def update(self, path: str, done_bytes: int, total_bytes: int) -> None:
        """Records how many bytes of a file are transferred."""
        old_done, old_total = self._files.get(path, (0, 0))
        self._files[path] = done_bytes, total_bytes
        self._done += done_bytes - old_done
        self._total += total_bytes - old_total
        if not self._is_shown:
            return
        if self._bar is None:
            self._bar = self._start(path)
        progress, task = self._bar
        progress.update(task, completed=self._done, total=self._total, path=format_cell(path))

    def _start(self, path: str) -> tuple[Progress, TaskID]:
        from ai.backend.cli.framework.terminal import make_transfer_progress

        progress = make_transfer_progress(sys.stderr)
        task_id = progress.add_task("", completed=self._done, total=self._total, path=format_cell(path))
        progress.start()
        return progress, task_id

    def close(self) -> None:
        """Removes the bar from the terminal; the next update shows it again."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
