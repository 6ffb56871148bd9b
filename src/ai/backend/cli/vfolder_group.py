"""The group of `backend.ai vfolder`, and what its commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from ai.backend.cli.lazy import LazyGroup, Leaf
from ai.backend.cli.output import Screen

PERMISSION = click.Choice(["ro", "rw", "wd"])

vfolder = LazyGroup("vfolder", help="Virtual folders: make, share and fill them.")


def command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Declare a command of the group."""
    return vfolder.command(name, cls=Leaf)


def tell(screen: Screen, value: Any, text: str) -> None:
    """A result: a document or a line."""
    if screen.is_json:
        screen.json(value)
    screen.say(text)


def show(screen: Screen, rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str]], nothing: str) -> None:
    """A list: a document, a table, or a note that there is nothing."""
    if screen.is_json:
        screen.json(list(rows))
    elif rows:
        screen.table(rows, columns)
    else:
        screen.note(nothing)
