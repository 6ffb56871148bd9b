"""The progress bar of transfers, drawn by rich. Import it inside functions only."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.table import Column as TableColumn
from rich.text import Text

from ai.backend.cli.framework.values import readable_size


class _BytesColumn(ProgressColumn):
    """Shows transferred bytes, total bytes, and bytes a second."""

    def render(self, task: Task) -> Text:
        total_size = readable_size(task.total or 0)
        return Text(f"{readable_size(task.completed)} of {total_size}  {readable_size(task.speed or 0)}/s")


def make_transfer_progress(stream: TextIO) -> Progress:
    """Returns a progress bar for bytes that disappears when it stops; its tasks have a field ``path``."""
    path_column = TableColumn(no_wrap=True, overflow="ellipsis", ratio=1)
    path = TextColumn("{task.fields[path]}", markup=False, table_column=path_column)
    console = Console(file=stream, force_terminal=True, markup=False, emoji=False, highlight=False)
    columns = (BarColumn(20), TaskProgressColumn(), _BytesColumn(), path)
    return Progress(*columns, console=console, transient=True, expand=True)
