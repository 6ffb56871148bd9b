"""Draws tables, facts, trees and panels by the library rich.

Import it inside functions only: rich takes longer to import than most commands take to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.table import Column as TableColumn
from rich.table import Table
from rich.text import Text

from ai.backend.cli.framework.values import escape_control_characters, readable_size

if TYPE_CHECKING:
    from rich.panel import Panel

    from ai.backend.cli.framework.output import Column

_UNBOUNDED_WIDTH = 1_000_000
"""Columns of what is no terminal: nothing is folded, so that each row is one line."""
_NARROWEST_COLUMN_WIDTH = 10
"""Columns of the terminal that a column of a table needs on average; with less, a table is not folded at all."""
_COLUMN_GAP = 2
_STYLES_BY_TEXT = {
    "RUNNING": "green", "ALIVE": "green", "healthy": "green", "ERROR": "red", "LOST": "red", "unhealthy": "red",
    "PENDING": "yellow", "TERMINATED": "dim", "CANCELLED": "dim",
}  # fmt: skip


def write(renderable: RenderableType, stream: TextIO, *, is_folded: bool = True) -> None:
    """Prints a table, tree or other rich object to a stream, in colours on a terminal, without trailing blanks.

    Lines fit the terminal if ``is_folded``.
    """
    is_terminal = stream.isatty()
    console = Console(
        file=stream,
        force_terminal=is_terminal,
        color_system="auto" if is_terminal else None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    if not is_terminal or not is_folded or _needs_more_room(renderable, console.width):
        console.width = _UNBOUNDED_WIDTH
    with console.capture() as captured_output:
        console.print(renderable)
    text = "\n".join(line.rstrip() for line in captured_output.get().split("\n"))
    stream.write(text)
    stream.flush()


def _needs_more_room(renderable: RenderableType, width: int) -> bool:
    """True if a table has so many columns that they would be too narrow to read at this width."""
    return isinstance(renderable, Table) and width < _NARROWEST_COLUMN_WIDTH * len(renderable.columns)


def fit_columns(columns: Sequence[Column], rows: Sequence[Sequence[str]], stream: TextIO) -> list[int]:
    """Returns the indices of the table columns to print. Roomy columns are left out if the terminal is too narrow."""
    free_width = Console(file=stream).width if stream.isatty() else _UNBOUNDED_WIDTH
    widths = [
        _COLUMN_GAP + max(cell_len(text) for text in [column.heading, *(row[index] for row in rows)])
        for index, column in enumerate(columns)
    ]
    free_width += _COLUMN_GAP - sum(width for width, column in zip(widths, columns, strict=True) if not column.is_roomy)
    shown_indices: list[int] = []
    for index, column in enumerate(columns):
        if not column.is_roomy:
            shown_indices.append(index)
        elif widths[index] <= free_width:
            free_width -= widths[index]
            shown_indices.append(index)
    return shown_indices


def make_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Table:
    """Returns a table whose cells are printed without interpreting markup."""
    table = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            Text(column.heading),
            justify="right" if column.is_number else "left",
            no_wrap=column.brief is not None,
            overflow="fold",
        )
    for row in rows:
        table.add_row(
            *(Text(escape_control_characters(cell_text), style=_STYLES_BY_TEXT.get(cell_text, "")) for cell_text in row)
        )
    return table


def make_label_value_table(pairs: Iterable[tuple[str, str]]) -> Table:
    """Returns a table with two columns: the names of an object's facts, and their texts."""
    table = Table.grid(TableColumn(no_wrap=True, style="bold"), TableColumn(overflow="fold"), padding=(0, 2, 0, 0))
    for name, fact_text in pairs:
        table.add_row(Text(escape_control_characters(name)), Text(escape_control_characters(fact_text)))
    return table


def make_panel(title: str, text: str) -> Panel:
    """Returns a text in a frame with a title."""
    from rich.panel import Panel

    return Panel.fit(Text(escape_control_characters(text)), title=Text(title), title_align="left")


def make_error(program: str, message: str) -> Text:
    """Returns an error message for printing, with the name of the program in front."""
    return Text.assemble((f"{program}: ", "bold red"), escape_control_characters(message))


class _BytesColumn(ProgressColumn):
    """Shows transferred bytes, total bytes, and bytes a second."""

    def render(self, task: Task) -> Text:
        total_size = readable_size(task.total or 0)
        return Text(f"{readable_size(task.completed)} of {total_size}  {readable_size(task.speed or 0)}/s")


def make_transfer_progress(stream: TextIO) -> Progress:
    """Returns a progress bar for bytes that disappears when it stops; its tasks have a field ``path``."""
    path_column = TableColumn(no_wrap=True, overflow="ellipsis", ratio=1)
    path_display = TextColumn("{task.fields[path]}", markup=False, table_column=path_column)
    console = Console(file=stream, force_terminal=True, markup=False, emoji=False, highlight=False)
    bar_columns = (BarColumn(20), TaskProgressColumn(), _BytesColumn(), path_display)
    return Progress(*bar_columns, console=console, transient=True, expand=True)
