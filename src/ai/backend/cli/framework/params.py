"""Declares options, parses their values, and asks for confirmation before something is destroyed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from ai.backend.cli.framework.values import escape_control_characters

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
target_folder_option = click.option(
    "-b",
    "--base-dir",
    "basedir",
    type=click.Path(file_okay=False),
    default=".",
    show_default=True,
    help="Where to put.",
)


def confirm(action: str, *, is_confirmed: bool) -> None:
    """Asks the user to confirm an action that cannot be undone. With ``is_confirmed`` (option `-y`) it does not ask.

    Raises:
        click.UsageError: there is nobody to ask.
        click.Abort: the answer is no.
    """
    if is_confirmed:
        return
    try:
        is_approved = click.confirm(f"{escape_control_characters(action)}? This cannot be undone", err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # the question is not answered: its line ends here
        raise click.UsageError(f"{action}: there is no terminal to ask for confirmation, use -y") from None
    if not is_approved:
        raise click.Abort


def options(*declarations: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a decorator that adds several options and arguments to a command, in the order of the help."""

    def declare(command: Any) -> Any:
        for declaration in reversed(declarations):
            command = declaration(command)
        return command

    return declare


paging = options(
    click.option("--filter", "filter", help='Such as: status == "active" & email ilike "%@example.com".'),
    click.option("--order", help="Columns, such as -created_at,name."),
    click.option("--offset", "page_offset", type=click.IntRange(0), default=0, help="Rows to leave out."),
    click.option("--limit", "page_size", type=click.IntRange(1, 100), default=100, help="Rows of a page."),
)
"""The options of every paginated list, by their names in the SDK."""


def parse_json(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
    """Parses an option that takes JSON."""
    try:
        return json.loads(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from error


def json_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(*names, metavar="JSON", callback=parse_json, **settings)


def negated_flag(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """Declares an option without a value that sets its parameter to False. Without the option the value is True."""
    return click.option(*names, is_flag=True, callback=lambda _ctx, _param, value: not value, **settings)


def parse_pair(assignment: str) -> tuple[str, str]:
    """Parses ``KEY=VALUE``."""
    key, equals_sign, value = assignment.partition("=")
    if not equals_sign or not key:
        raise click.BadParameter(f"{assignment!r} is not KEY=VALUE")
    return key, value
