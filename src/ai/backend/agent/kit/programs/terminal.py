"""Runs programs on pseudo-terminals, for servers on asyncio."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_PIECE_BYTES = 64 * 1024


def shell_argv(command: str | None = None) -> list[str]:
    """Returns the arguments of a login shell, or of the shell with a command."""
    shell = os.environ.get("SHELL") or ""
    if not os.access(shell, os.X_OK):
        shell = shutil.which("bash") or shutil.which("sh") or "/bin/sh"
    return [shell, "-c", command] if command is not None else [shell, "-l"]


def socket_path(host: str) -> str | None:
    """Returns the path of the unix socket that ``host`` names, or None if ``host`` is no such path. The path is
    relative to the home, since paths of sockets must be short.
    """
    path = host.removeprefix("unix:")
    return None if path == host else os.path.relpath(path)  # no pathlib here: it cannot leave the folder


async def open_terminal(argv: list[str], env: dict[str, str], rows: int, columns: int) -> Terminal:
    """Starts a program on a terminal of its own. Raises OSError."""
    master_fd, slave_fd = os.openpty()
    try:
        os.set_blocking(master_fd, False)
        set_size(master_fd, rows, columns)
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=slave_fd,
            stdout=slave_fd,
            stderr=slave_fd,
            env=env,
            start_new_session=True,
            preexec_fn=_set_controlling_terminal,
        )
    except OSError:
        os.close(master_fd)
        raise
    finally:
        os.close(slave_fd)
    return Terminal(master_fd, child)


class Terminal:
    """Represents a pseudo-terminal with one program. One task may read and one may write."""

    def __init__(self, fd: int, child: asyncio.subprocess.Process) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._child = child
        self._waiting: set[asyncio.Future[None]] = set()

    def resize(self, rows: int, columns: int) -> None:
        if self._fd >= 0:
            set_size(self._fd, rows, columns)

    async def read(self) -> bytes:
        """Returns printed bytes; empty once the terminal is closed or the last program has left the terminal."""
        while self._fd >= 0:
            try:
                return os.read(self._fd, _PIECE_BYTES)
            except BlockingIOError:
                await self._wait_until_ready(self._loop.add_reader, self._loop.remove_reader)
            except OSError:
                break  # EIO: no process holds the other end
        return b""

    async def write(self, data: bytes) -> None:
        """Writes input to the terminal, and waits while the program does not read."""
        while data and self._fd >= 0:
            try:
                data = data[os.write(self._fd, data[:4096]) :]
            except BlockingIOError:
                await self._wait_until_ready(self._loop.add_writer, self._loop.remove_writer)
            except OSError:
                return

    async def _wait_until_ready(self, add_watcher: Callable[..., Any], remove_watcher: Callable[[int], Any]) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        fd = self._fd
        self._waiting.add(ready)
        add_watcher(fd, _complete_wait, ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            if self._fd == fd:
                remove_watcher(fd)

    def signal(self, signal_number: int) -> None:
        """Sends a signal to the program in the foreground and to the first program."""
        group_pids = {self._child.pid}
        with suppress(OSError):  # no group is in the foreground
            group_pids.add(os.tcgetpgrp(self._fd))
        for group_pid in group_pids - {0}:  # 0 also means that no group is in the foreground; a kill of 0 would kill us
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(group_pid, signal_number)

    async def wait(self) -> int:
        """Waits for the first program and returns its exit code; -n after signal n."""
        return await self._child.wait()

    def close(self) -> None:
        """Closes the terminal and sends SIGHUP to the first program. Safe to call twice."""
        if self._fd < 0:
            return
        if self._child.returncode is None:
            self.signal(signal.SIGHUP)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._fd = -1
        for ready in self._waiting:
            _complete_wait(ready)


def set_size(fd: int, rows: int, columns: int) -> None:
    rows, columns = min(max(rows, 1), 1000), min(max(columns, 1), 1000)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _complete_wait(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _set_controlling_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
