"""Terminals: a shell behind a pseudo-terminal, which is restarted whenever it ends."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import termios
import time

from . import event_loop, process
from .framing import HIGH_WATER, to_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from .event_loop import Loop
    from .framing import Channel

MAX_TERMINALS = 16
MAX_INPUT = 1024 * 1024
_READ_SIZE = 32 * 1024
# A shell that ends this often this fast will not get better by starting it again.
_MAX_DEATHS = 5
_DEATH_WINDOW = 5.0


class Terminal:
    """One pseudo-terminal and the shell in it."""

    def __init__(self, owner: Terminals, name: str, rows: int, cols: int) -> None:
        self._owner = owner
        self.name = name
        self.rows, self.cols = rows, cols
        self.pid = 0
        self._fd = -1
        self._in = bytearray()
        self._deaths: list[float] = []
        self._is_paused = False

    def start(self) -> None:
        """Starts the shell. Raises OSError if no pseudo-terminal or process is available."""
        master, slave = os.openpty()
        try:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, _window(self.rows, self.cols))
            self.pid = process.spawn(
                self._owner.shell, self._owner.environment(), self._owner.home, (slave, slave, slave), terminal=True
            )
        except OSError:
            os.close(master)
            raise
        finally:
            os.close(slave)
        os.set_blocking(master, False)
        self._fd = master
        self._watch()

    def write(self, data: bytes) -> None:
        """Types `data`; drops what exceeds the buffer of a shell that does not read, as a terminal does."""
        self._in += data[: max(0, MAX_INPUT - len(self._in))]
        self._ready(event_loop.WRITE)

    def resize(self, rows: int, cols: int) -> None:
        """Changes the size; the kernel notifies the foreground program."""
        self.rows, self.cols = rows, cols
        if self._fd >= 0:
            fcntl.ioctl(self._fd, termios.TIOCSWINSZ, _window(rows, cols))

    def hang_up(self, number: int = signal.SIGHUP) -> None:
        """Ends the shell and its foreground program."""
        if self.pid:
            if self._fd >= 0:
                try:
                    group = fcntl.ioctl(self._fd, termios.TIOCGPGRP, bytes(4))
                    process.kill_group(int.from_bytes(group, "little"), number)
                except OSError:
                    pass  # no foreground group any more
            process.kill_group(self.pid, number)

    def close(self) -> None:
        """Closes the terminal; the kernel hangs up the remaining processes."""
        if self._fd >= 0:
            self._owner.loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._in.clear()

    def shell_died(self) -> bool:
        """Reads the last output after the death of the shell; returns True if it may be restarted."""
        for _ in range(64):
            if not self._read():
                break
        self.close()
        self.pid = 0
        now = time.monotonic()
        self._deaths = [t for t in self._deaths if now - t < _DEATH_WINDOW] + [now]
        return len(self._deaths) <= _MAX_DEATHS

    def resume(self) -> None:
        """Resumes reading after the channel was full."""
        if self._is_paused and self._fd >= 0:
            self._watch()

    def _watch(self) -> None:
        self._is_paused = self._owner.channel.unsent > HIGH_WATER
        events = (0 if self._is_paused else event_loop.READ) | (event_loop.WRITE if self._in else 0)
        if events:
            self._owner.loop.watch(self._fd, events, self._ready)
        else:
            self._owner.loop.unwatch(self._fd)

    def _ready(self, events: int) -> None:
        if self._fd < 0:
            return
        while self._in and events & event_loop.WRITE:
            try:
                del self._in[: os.write(self._fd, self._in[:4096])]
            except OSError:
                break
        if events & event_loop.READ and not self._read():
            self._owner.loop.unwatch(self._fd)  # hung up; the shell's death follows
            return
        self._watch()

    def _read(self) -> bool:
        if self._fd < 0:
            return False
        # A pseudo-terminal hands out little at a time; together it makes one message.
        data = bytearray()
        is_alive = True
        while len(data) < _READ_SIZE:
            try:
                piece = os.read(self._fd, _READ_SIZE)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            if not piece:
                is_alive = False
                break
            data += piece
        if data:
            self._owner.channel.send({"t": "pty-output", "pty": self.name, "data": to_base64(bytes(data))})
        return is_alive


class Terminals:
    """All terminals of the workload by the client's name."""

    def __init__(self, loop: Loop, channel: Channel, home: str) -> None:
        self.loop = loop
        self.channel = channel
        self.home = home
        self._open: Dict[str, Terminal] = {}
        bash = process.find_executable("bash")
        self.shell = [bash, "-l"] if bash else [process.find_executable("sh") or "/bin/sh", "-i"]

    def environment(self) -> Dict[str, str]:
        """Returns the environment of a shell: that of every command, with the capabilities of the client's terminal."""
        env = process.common_environment(self.home)
        env["TERM"] = "xterm-256color"
        env["SHELL"] = self.shell[0]
        try:
            env["USER"] = env["LOGNAME"] = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            pass  # a user without an entry keeps the common name
        return env

    def open(self, name: str, rows: int, cols: int) -> None:
        """Opens a terminal, or resizes an open one. Raises ValueError for invalid arguments, or OSError."""
        if name in self._open:
            self.resize(name, rows, cols)
            return
        if len(self._open) >= MAX_TERMINALS:
            raise ValueError(f"more than {MAX_TERMINALS} terminals")
        terminal = Terminal(self, name, *_checked(rows, cols))
        terminal.start()
        self._open[name] = terminal

    def write(self, name: str, data: bytes) -> None:
        """Types into a terminal; ignores a closed one."""
        if name in self._open:
            self._open[name].write(data)

    def resize(self, name: str, rows: int, cols: int) -> None:
        """Resizes a terminal."""
        if name in self._open:
            self._open[name].resize(*_checked(rows, cols))

    def restart(self, name: str) -> None:
        """Kills the processes of the terminal and starts a new shell."""
        if name in self._open:
            self._open[name].hang_up(signal.SIGKILL)

    def shut(self, name: str, exit_code: int = 0) -> None:
        """Closes a terminal and notifies the client."""
        terminal = self._open.pop(name, None)
        if terminal is not None:
            terminal.hang_up()
            terminal.close()
            self.channel.send({"t": "pty-closed", "pty": name, "exitCode": exit_code})

    def shut_all(self) -> None:
        """Closes every terminal."""
        for name in list(self._open):
            self.shut(name)

    def child_died(self, pid: int, status: int) -> bool:
        """Restarts the shell of a terminal; returns False if `pid` is no shell."""
        terminal: Optional[Terminal] = next((t for t in self._open.values() if t.pid == pid), None)
        if terminal is None:
            return False
        try:
            if terminal.shell_died():
                terminal.start()
                return True
        except OSError:
            pass  # without resources the terminal is closed
        self.shut(terminal.name, process.exit_of(status)[0])
        return True

    def resume(self) -> None:
        """Resumes reading when the channel has room again."""
        for terminal in self._open.values():
            terminal.resume()


def _window(rows: int, cols: int) -> bytes:
    import struct

    return struct.pack("HHHH", rows, cols, 0, 0)


def _checked(rows: int, cols: int) -> tuple[int, int]:
    if not (isinstance(rows, int) and isinstance(cols, int) and 1 <= rows <= 1000 and 1 <= cols <= 1000):
        raise ValueError("rows and cols must be between 1 and 1000")
    return rows, cols
