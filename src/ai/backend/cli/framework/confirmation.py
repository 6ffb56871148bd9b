"""The question before something is destroyed, and the option `-y` that answers it."""

from __future__ import annotations

import sys

import click

from ai.backend.cli.framework.values import harmless

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(action: str, *, is_confirmed: bool) -> None:
    """Ask whether to do something that cannot be undone, unless `-y` was used.

    Raises:
        click.UsageError: there is nobody to ask.
        click.Abort: the answer is no.
    """
    if is_confirmed:
        return
    try:
        is_agreed = click.confirm(f"{harmless(action)}? This cannot be undone", err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError(f"{action}: there is no terminal to ask for confirmation, use -y") from None
    if not is_agreed:
        raise click.Abort
