"""Reads a line from the user without a thread, so that Ctrl-C cancels a waiting prompt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
from collections.abc import Iterator

_CHUNK = 65_536
_pending = bytearray()


@contextlib.contextmanager
def _hidden(fd: int) -> Iterator[None]:
    """Turns echo off, if this is a terminal."""
    try:
        original = termios.tcgetattr(fd)
    except termios.error:
        yield
        return
    silent = list(original)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, original)
        print(file=sys.stderr)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(fd, _set, ready)
    except PermissionError:
        return  # a regular file is always readable
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def read_line(*, is_password: bool = False, fd: int | None = None) -> str:
    """Returns the next line of standard input without its end; empty when the input has ended."""
    source = sys.stdin.fileno() if fd is None else fd
    with _hidden(source) if is_password else contextlib.nullcontext():
        while b"\n" not in _pending:
            await _readable(source)
            chunk = os.read(source, _CHUNK)
            if not chunk:
                break
            _pending.extend(chunk)
    line, _, _pending[:] = bytes(_pending).partition(b"\n")
    return line.decode(errors="replace").removesuffix("\r")
