"""Prints results to stdout, and everything else to stderr, as text for people or as one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from ai.backend.cli.framework.values import escape_control_characters, format_cell, relative_time, shorten_id

if TYPE_CHECKING:
    from rich.console import RenderableType

PROGRAM = "backend.ai"
_SHORTENERS: Mapping[str, Callable[[Any], str]] = {"short": shorten_id, "time": relative_time, "plain": format_cell}


class OutputMode(StrEnum):
    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list: the key of its values and its heading.

    ``brief`` shortens a value, such as an id or a time, unless `--wide` was used; such a cell is never folded. A column
    that ``is_roomy`` is shown where the terminal has room for it.
    """

    key: str
    heading: str
    brief: Callable[[Any], str] | None = None
    is_wide: bool = False
    is_number: bool = False
    is_roomy: bool = False

    def text(self, row: Mapping[str, Any], *, is_wide: bool) -> str:
        """Returns the text of this column in a row."""
        value = row.get(self.key)
        return self.brief(value) if self.brief is not None and not is_wide else format_cell(value)


def columns(column_spec: str) -> list[Column]:
    """Parses the columns of a list, ``KEY[/WORD...][: HEADING]`` separated by ``|``.

    Words are ``short`` (id), ``time`` (relative to now), ``plain`` (never folded), ``wide`` (shown with `--wide` only),
    ``roomy`` (shown where there is room) and ``number`` (aligned at the right). The heading is the key in title case by
    default.
    """
    parsed_columns = []
    for column_text in column_spec.split("|"):
        key_text, _, heading = column_text.partition(":")
        key, *flags = key_text.strip().split("/")
        shortener = next((_SHORTENERS[flag] for flag in flags if flag in _SHORTENERS), None)
        column_heading = heading.strip() or key.replace("_", " ").title()
        parsed_columns.append(
            Column(
                key,
                column_heading,
                shortener,
                is_wide="wide" in flags,
                is_number="number" in flags,
                is_roomy="roomy" in flags,
            )
        )
    return parsed_columns


class Screen:
    """Prints results in the output mode of the running command.

    A terminal gets lines that fit it, and colours unless ``NO_COLOR`` is set. Anything else gets plain text, each row
    of a table on one line.
    """

    def __init__(self, mode: OutputMode = OutputMode.CONSOLE, *, is_wide: bool = False) -> None:
        self.mode = mode
        self.is_wide = is_wide
        self.is_following = False

    @property
    def is_quiet(self) -> bool:
        """True if progress messages are not printed, so that callers need not prepare them."""
        return self.is_json

    @property
    def is_json(self) -> bool:
        return self.mode is OutputMode.JSON

    def print_json(self, value: Any) -> None:
        """Prints the one JSON document of this invocation."""
        print(json.dumps(value, ensure_ascii=False, indent=2, default=str))

    def print_result(self, document: Any, text: str) -> None:
        """Prints a document in JSON mode, otherwise the text, if there is any."""
        if self.is_json:
            self.print_json(document)
        elif text:
            self.print_line(text)

    def print_rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[Column],
        empty_hint: str,
        *,
        describe: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        """Prints a list in JSON mode, otherwise a table, or ``empty_hint`` where there are no rows.

        ``describe`` makes a row of the table of an object.
        """
        if self.is_json:
            self.print_json(list(rows))
        elif rows:
            self.print_table([describe(dict(row)) for row in rows] if describe else rows, columns)
        else:
            self.inform(empty_hint)

    def print_line(self, text: str) -> None:
        """Prints a line of the result, for people only."""
        if not self.is_json:
            print(escape_control_characters(text))

    def inform(self, text: str) -> None:
        """Prints progress, which is no part of the result, to stderr, for people only."""
        if not self.is_json:
            print(escape_control_characters(text), file=sys.stderr, flush=True)

    def remind(self, text: str) -> None:
        """Prints a reminder to stderr while a command waits, even if progress messages are muted."""
        Screen.inform(self, text)

    def print_table(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> None:
        """Prints a list of objects: without `--wide` the main columns, as narrow as they can be."""
        from ai.backend.cli.framework.terminal import fit_columns, make_table

        visible_columns = [column for column in columns if self.is_wide or not column.is_wide]
        cells = [[column.text(row, is_wide=self.is_wide) for column in visible_columns] for row in rows]
        if not self.is_wide and any(column.is_roomy for column in visible_columns):
            fitting_indices = fit_columns(visible_columns, cells, sys.stdout)
            visible_columns = [visible_columns[index] for index in fitting_indices]
            cells = [[row[index] for index in fitting_indices] for row in cells]
        self.render(make_table(visible_columns, cells))

    def print_blocks(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]) -> None:
        """Prints a list of objects with many columns: as a table with `--wide`, else each as a block of facts."""
        if self.is_wide:
            self.print_table(rows, columns)
            return
        for index, row in enumerate(rows):
            if index:
                self.print_line("")
            self.print_facts((column.heading, column.text(row, is_wide=True)) for column in columns)

    def print_facts(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Prints one object, a line for each of its facts; a text keeps its line ends."""
        from ai.backend.cli.framework.terminal import make_label_value_table

        fact_texts = [
            (name, value if isinstance(value, str) and "\n" in value else format_cell(value)) for name, value in pairs
        ]
        if fact_texts:
            self.render(make_label_value_table(fact_texts))

    def render(self, renderable: RenderableType) -> None:
        """Prints a table, a tree or a panel of the library rich to stdout."""
        from ai.backend.cli.framework.terminal import write

        write(renderable, sys.stdout, is_folded=not self.is_wide)

    def error(self, message: str, *, code: str = "error", status: int | None = None) -> None:
        """Prints one line that says what is wrong and what to do; in JSON mode a document too."""
        message_line = " ".join(message.split())
        if sys.stderr.isatty():
            from ai.backend.cli.framework.terminal import make_error, write

            write(make_error(PROGRAM, message_line), sys.stderr)
        else:
            print(f"{PROGRAM}: {escape_control_characters(message_line)}", file=sys.stderr, flush=True)
        if self.is_json:
            self.print_json(
                {"error": {"code": code, "message": message_line, **({"status": status} if status else {})}}
            )

    def fail(self, message: str, *, exit_code: int = 1) -> NoReturn:
        """Prints an error and exits."""
        self.error(message)
        sys.exit(exit_code)


class MutedScreen(Screen):
    """A screen that prints results and errors, but no progress messages."""

    @property
    def is_quiet(self) -> bool:
        return True

    def inform(self, text: str) -> None:
        pass
