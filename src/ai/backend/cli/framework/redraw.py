"""Implements `--follow`: runs a command again and again, and redraws its output in the same place of a terminal."""

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


class _FrameBuffer(io.StringIO):
    """Collects the output of one run of a command as text. It acts as a terminal if the real output is one."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


async def redraw(
    screen: Screen, print_frame: Callable[[], Awaitable[int | None]], pause: Callable[[float], Awaitable[None]]
) -> int:
    """Runs ``print_frame`` every two seconds until it fails, and draws its output each time. Returns its exit code.

    Raises click.UsageError in JSON mode, whose output is one document.
    """
    if screen.is_json:
        raise click.UsageError("--follow prints text: it cannot go with --output json")
    output_stream, is_terminal = sys.stdout, sys.stdout.isatty()
    output_stream.write(_CLEAR if is_terminal else "")
    while True:
        frame = _FrameBuffer(is_terminal=is_terminal)
        with contextlib.redirect_stdout(frame), contextlib.redirect_stderr(frame):
            exit_code = await print_frame()
        output_stream.write(
            fit_frame(frame.getvalue(), os.get_terminal_size(output_stream.fileno()).lines)
            if is_terminal
            else frame.getvalue()
        )
        output_stream.flush()
        if exit_code:
            return exit_code
        await pause(INTERVAL_S)


def fit_frame(text: str, height: int) -> str:
    """Returns the output that replaces the contents of a terminal by the lines of ``text`` that fit its height."""
    lines = text.splitlines()[: max(1, height - 1)]
    return _HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW
