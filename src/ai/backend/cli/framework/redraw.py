"""`--follow`: prints the output of a command again and again, on a terminal always at the same place."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Awaitable, Callable

import click

from ai.backend.cli.framework.output import Screen

INTERVAL_S = 2.0
_CLEAR, _HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"


class _Frame(io.StringIO):
    """Collects one output; reports itself as a terminal if the real output is one."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


async def repeat(
    screen: Screen, work: Callable[[], Awaitable[int | None]], pause: Callable[[float], Awaitable[None]]
) -> int:
    """Runs ``work`` every two seconds until it fails; returns its exit code.

    Raises click.UsageError in JSON mode, whose output is one document.
    """
    if screen.is_json:
        raise click.UsageError("--follow prints text: it cannot go with --output json")
    out, is_terminal = sys.stdout, sys.stdout.isatty()
    out.write(_CLEAR if is_terminal else "")
    while True:
        frame = _Frame(is_terminal=is_terminal)
        with contextlib.redirect_stdout(frame), contextlib.redirect_stderr(frame):
            exit_code = await work()
        out.write(
            fit_frame(frame.getvalue(), os.get_terminal_size(out.fileno()).lines) if is_terminal else frame.getvalue()
        )
        out.flush()
        if exit_code:
            return exit_code
        await pause(INTERVAL_S)


def fit_frame(text: str, height: int) -> str:
    """Returns what replaces the contents of a terminal by ``text``, without the lines that find no room."""
    lines = text.splitlines()[: max(1, height - 1)]
    return _HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW
