"""Runs terminals: a shell behind a pseudo-terminal, which is restarted whenever it ends."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import termios
import time

from . import event_loop, process
from .framing import HIGH_WATER_BYTES, to_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from .event_loop import Loop
    from .framing import Channel

MAX_TERMINALS = 16
MAX_INPUT_BYTES = 1024 * 1024
_MAX_OUTPUT_BYTES = 32 * 1024
# A shell that ends this often this fast will not get better by starting it again.
_MAX_SHELL_DEATHS = 5
_DEATH_WINDOW_S = 5.0


class Terminal:
    """Connects a pseudo-terminal and its shell to the client."""

    def __init__(self, terminals: Terminals, name: str, rows: int, columns: int) -> None:
        self._owner = terminals
        self.name = name
        self.rows, self.cols = rows, columns
        self.pid = 0
        self._fd = -1
        self._in = bytearray()
        self._deaths: list[float] = []
        self._is_paused = False
        self._has_output = self._is_resized_early = False

    def start(self) -> None:
        """Starts the shell. Raises OSError if no pseudo-terminal or process is available."""
        master_fd, slave_fd = os.openpty()
        try:
            fcntl.ioctl(slave_fd, termios.TIOCSWINSZ, pack_window_size(self.rows, self.cols))
            self.pid = process.spawn(
                self._owner.shell,
                self._owner.environment(),
                self._owner.home,
                (slave_fd, slave_fd, slave_fd),
                has_terminal=True,
            )
        except OSError:
            os.close(master_fd)
            raise
        finally:
            os.close(slave_fd)
        os.set_blocking(master_fd, False)
        self._fd = master_fd
        self._has_output = self._is_resized_early = False
        self._watch_events()

    def write(self, input_bytes: bytes) -> None:
        """Types `input_bytes` into the shell; drops input that exceeds the buffer, as a terminal does."""
        self._in += input_bytes[: max(0, MAX_INPUT_BYTES - len(self._in))]
        self._on_ready(event_loop.WRITE_EVENTS)

    def resize(self, rows: int, columns: int) -> None:
        """Changes the terminal's size; the kernel notifies the foreground program."""
        self._is_resized_early |= not self._has_output and (rows, columns) != (self.rows, self.cols)
        self.rows, self.cols = rows, columns
        if self._fd >= 0:
            fcntl.ioctl(self._fd, termios.TIOCSWINSZ, pack_window_size(rows, columns))

    def hang_up(self, signal_number: int = signal.SIGHUP) -> None:
        """Signals the shell and its foreground program to end."""
        if self.pid:
            self._signal_foreground(signal_number)
            process.kill_group(self.pid, signal_number)

    def _signal_foreground(self, signal_number: int) -> None:
        if self._fd >= 0:
            try:
                foreground_group = fcntl.ioctl(self._fd, termios.TIOCGPGRP, bytes(4))
                process.kill_group(int.from_bytes(foreground_group, "little"), signal_number)
            except OSError:
                pass  # no foreground group any more

    def close(self) -> None:
        """Closes the terminal; the kernel hangs up the remaining processes."""
        if self._fd >= 0:
            self._owner.loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._in.clear()

    def shell_died(self) -> bool:
        """Sends the last output after the death of the shell; returns True if the shell may be restarted."""
        for _ in range(64):
            if not self._send_output():
                break
        self.close()
        self.pid = 0
        now = time.monotonic()
        self._deaths = [death_time for death_time in self._deaths if now - death_time < _DEATH_WINDOW_S] + [now]
        return len(self._deaths) <= _MAX_SHELL_DEATHS

    def resume(self) -> None:
        """Resumes reading this terminal's output after the channel was full."""
        if self._is_paused and self._fd >= 0:
            self._watch_events()

    def _watch_events(self) -> None:
        self._is_paused = self._owner.channel.unsent > HIGH_WATER_BYTES
        poll_events = (0 if self._is_paused else event_loop.READ_EVENTS) | (event_loop.WRITE_EVENTS if self._in else 0)
        if poll_events:
            self._owner.loop.watch(self._fd, poll_events, self._on_ready)
        else:
            self._owner.loop.unwatch(self._fd)

    def _on_ready(self, poll_events: int) -> None:
        if self._fd < 0:
            return
        while self._in and poll_events & event_loop.WRITE_EVENTS:
            try:
                del self._in[: os.write(self._fd, self._in[:4096])]
            except OSError:
                break
        if poll_events & event_loop.READ_EVENTS and not self._send_output():
            self._owner.loop.unwatch(self._fd)  # hung up; the shell's death follows
            return
        self._watch_events()

    def _send_output(self) -> bool:
        if self._fd < 0:
            return False
        # A pseudo-terminal hands out little at a time; together it makes one message.
        output_bytes = bytearray()
        is_open = True
        while len(output_bytes) < _MAX_OUTPUT_BYTES:
            try:
                piece = os.read(self._fd, _MAX_OUTPUT_BYTES)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            if not piece:
                is_open = False
                break
            output_bytes += piece
        if output_bytes:
            if self._is_resized_early and not self._has_output:
                # A shell that starts has read the old size and has no handler yet: the kernel's signal was lost.
                self._signal_foreground(signal.SIGWINCH)
            self._has_output = True
            self._owner.channel.send({"t": "pty-output", "pty": self.name, "data": to_base64(bytes(output_bytes))})
        return is_open


class Terminals:
    """Holds the open terminals of the workload by the names that the client gave."""

    def __init__(self, loop: Loop, channel: Channel, home: str) -> None:
        self.loop = loop
        self.channel = channel
        self.home = home
        self._open: Dict[str, Terminal] = {}
        bash_path = process.find_executable("bash")
        self.shell = [bash_path, "-l"] if bash_path else [process.find_executable("sh") or "/bin/sh", "-i"]

    def environment(self) -> Dict[str, str]:
        """Returns the environment of a shell: that of every command, with the capabilities of the client's terminal."""
        variables = process.common_environment(self.home)
        variables["TERM"] = "xterm-256color"
        variables["SHELL"] = self.shell[0]
        if self.shell[0].endswith("/bash"):  # used where no start-up file of the image sets another
            variables.setdefault("PS1", f"\\u@\\h[{variables.get('BACKENDAI_SESSION_NAME', '')}]:\\w\\$ ")
        try:
            variables["USER"] = variables["LOGNAME"] = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            pass  # a user without an entry keeps the common name
        return variables

    def open(self, name: str, rows: int, columns: int) -> None:
        """Opens a terminal, or resizes an open one. Raises ValueError for invalid arguments, or OSError."""
        if name in self._open:
            self.resize(name, rows, columns)
            return
        if len(self._open) >= MAX_TERMINALS:
            raise ValueError(f"more than {MAX_TERMINALS} terminals")
        terminal = Terminal(self, name, *check_size(rows, columns))
        terminal.start()
        self._open[name] = terminal

    def write(self, name: str, input_bytes: bytes) -> None:
        """Types into a terminal; ignores a closed terminal."""
        if name in self._open:
            self._open[name].write(input_bytes)

    def resize(self, name: str, rows: int, columns: int) -> None:
        """Resizes a terminal."""
        if name in self._open:
            self._open[name].resize(*check_size(rows, columns))

    def restart(self, name: str) -> None:
        """Kills the processes of the terminal and starts a new shell."""
        if name in self._open:
            self._open[name].hang_up(signal.SIGKILL)

    def close_terminal(self, name: str, exit_code: int = 0) -> None:
        """Closes a terminal and notifies the client."""
        terminal = self._open.pop(name, None)
        if terminal is not None:
            terminal.hang_up()
            terminal.close()
            self.channel.send({"t": "pty-closed", "pty": name, "exitCode": exit_code})

    def close_all(self) -> None:
        """Closes every terminal."""
        for name in list(self._open):
            self.close_terminal(name)

    def child_died(self, pid: int, wait_status: int) -> bool:
        """Restarts the shell of a terminal; returns False if `pid` is no shell."""
        terminal: Optional[Terminal] = next(
            (candidate for candidate in self._open.values() if candidate.pid == pid), None
        )
        if terminal is None:
            return False
        try:
            if terminal.shell_died():
                terminal.start()
                return True
        except OSError:
            pass  # without resources the terminal is closed
        self.close_terminal(terminal.name, process.exit_of(wait_status)[0])
        return True

    def resume(self) -> None:
        """Resumes reading the output of all terminals when the channel has room again."""
        for terminal in self._open.values():
            terminal.resume()


def pack_window_size(rows: int, columns: int) -> bytes:
    import struct

    return struct.pack("HHHH", rows, columns, 0, 0)


def check_size(rows: int, columns: int) -> tuple[int, int]:
    if not (isinstance(rows, int) and isinstance(columns, int) and 1 <= rows <= 1000 and 1 <= columns <= 1000):
        raise ValueError("rows and cols must be between 1 and 1000")
    return rows, columns
