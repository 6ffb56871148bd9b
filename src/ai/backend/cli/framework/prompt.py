"""Reads a line from the user without a thread, so that Ctrl-C cancels a waiting prompt."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_CHUNK_BYTES = 65_536
END_OF_INPUT = "\x04"
"""The character that is sent to a run at the end of standard input, as Ctrl-D on a terminal."""
_pending_input = bytearray()


@contextlib.contextmanager
def _echo_off(fd: int) -> Iterator[None]:
    """Turns the echo of a terminal off while the block lasts."""
    try:
        original_attributes = termios.tcgetattr(fd)
    except termios.error:
        yield
        return
    silent_attributes = list(original_attributes)
    silent_attributes[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSADRAIN, silent_attributes)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, original_attributes)
        print(file=sys.stderr)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _wait_until_readable(fd: int) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(fd, _set_ready, ready)
    except PermissionError:
        return  # a regular file is always readable
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def read_line(*, is_password: bool = False, fd: int | None = None, has_loop: bool = True) -> str:
    """Returns the next line of standard input without its end; END_OF_INPUT when it has ended.

    It blocks unless it ``has_loop``, an event loop in which to wait.
    """
    input_fd = sys.stdin.fileno() if fd is None else fd
    with _echo_off(input_fd) if is_password else contextlib.nullcontext():
        while b"\n" not in _pending_input:
            if has_loop:
                await _wait_until_readable(input_fd)
            chunk = os.read(input_fd, _CHUNK_BYTES)
            if not chunk:
                break
            _pending_input.extend(chunk)
    line, newline, _pending_input[:] = bytes(_pending_input).partition(b"\n")
    if not line and not newline:
        return END_OF_INPUT
    return line.decode(errors="replace").removesuffix("\r")
