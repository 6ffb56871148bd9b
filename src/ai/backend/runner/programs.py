"""Runs programs that a user starts beside the session's code, on a terminal or on pipes, with their exit codes.

Each direction has a window: the sender pauses at `WINDOW_BYTES` that the receiver has not reported as taken.
"""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import termios

from . import process
from .event_loop import READ_EVENTS, WRITE_EVENTS
from .framing import from_base64, to_base64
from .terminals import check_size, pack_window_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from .event_loop import Loop
    from .framing import Outbox
    from .terminals import Terminals

    Message = Dict[str, Any]

MAX_PROGRAMS = 32
WINDOW_BYTES = 256 * 1024
FRAME_COST_BYTES = 256
"""The part of the window that a frame of output uses besides its bytes, as it costs its receiver memory."""
_READ_BYTES = 64 * 1024
_SIGNALS = ("INT", "TERM", "HUP", "QUIT", "KILL", "USR1", "USR2")


class Program:
    """Connects a program's standard streams with the agent. A program on a terminal has one stream for all three."""

    def __init__(self, owner: Programs, name: str, has_terminal: bool) -> None:
        self.name = name
        self.pid = 0
        self._owner = owner
        self._has_terminal = has_terminal
        self._output_fds: Dict[int, str] = {}
        self._input_fd = -1
        self._input = bytearray()
        self._is_input_ended = False
        self._untaken_bytes = 0
        self._exit: Optional[Tuple[int, Optional[int]]] = None

    def start(self, argv: List[str], environment: Dict[str, str], folder: str, size: Tuple[int, int]) -> None:
        """Starts the program. Raises OSError if no terminal, pipe or process is available."""
        if self._has_terminal:
            master_fd, child_fd = os.openpty()
            fcntl.ioctl(child_fd, termios.TIOCSWINSZ, pack_window_size(*size))
            parent_fds, child_fds = [master_fd], [child_fd, child_fd, child_fd]
            self._input_fd, self._output_fds = master_fd, {master_fd: "stdout"}
        else:
            pipes = [os.pipe() for _ in range(3)]
            parent_fds = [pipes[0][1], pipes[1][0], pipes[2][0]]
            child_fds = [pipes[0][0], pipes[1][1], pipes[2][1]]
            self._input_fd, self._output_fds = parent_fds[0], {parent_fds[1]: "stdout", parent_fds[2]: "stderr"}
        try:
            stdio_fds = (child_fds[0], child_fds[1], child_fds[2])
            self.pid = process.spawn(argv, environment, folder, stdio_fds, has_terminal=self._has_terminal)
        except OSError:
            for fd in parent_fds:
                os.close(fd)
            raise
        finally:
            for fd in set(child_fds):
                os.close(fd)
        for fd in parent_fds:
            os.set_blocking(fd, False)
        self._watch()

    def feed(self, data: bytes, is_last: bool) -> None:
        """Queues input for the program. With `is_last` the input ends; on a terminal the end is the key Ctrl-D."""
        if not self._is_input_ended:
            self._input += data[: max(0, WINDOW_BYTES - len(self._input))]
            self._is_input_ended = is_last
            if is_last and self._has_terminal:
                self._input += b"\x04"
        self._write_input()
        self._watch()

    def allow_output(self, count: int) -> None:
        """Allows the program to send `count` more bytes of output."""
        self._untaken_bytes = max(0, self._untaken_bytes - count)
        self._watch()

    def resize(self, rows: int, columns: int) -> None:
        if self._has_terminal and self._input_fd >= 0:
            fcntl.ioctl(self._input_fd, termios.TIOCSWINSZ, pack_window_size(rows, columns))

    def signal(self, signal_number: int) -> None:
        """Signals the program's process group, and the group in the foreground of its terminal."""
        if self._has_terminal and self._input_fd >= 0:
            try:
                foreground_group = fcntl.ioctl(self._input_fd, termios.TIOCGPGRP, bytes(4))
                process.kill_group(int.from_bytes(foreground_group, "little"), signal_number)
            except OSError:
                pass  # no foreground group any more
        if self.pid:
            process.kill_group(self.pid, signal_number)

    def close(self) -> None:
        """Closes all streams of the program."""
        for fd in {self._input_fd, *self._output_fds} - {-1}:
            self._owner.loop.unwatch(fd)
            os.close(fd)
        self._input_fd, self._output_fds = -1, {}

    def died(self, exit_code: int, signal_number: Optional[int]) -> None:
        """Records the exit code or signal of the program.

        The end is reported after the output that the program printed before. Later output of its children is not sent.
        """
        self.pid = 0
        self._exit = exit_code, signal_number
        self._watch()

    def _watch(self) -> None:
        """Updates which events of the program's streams are awaited, and reports the end after the last output."""
        if self._exit is not None:
            for fd in list(self._output_fds):
                while fd in self._output_fds and self._untaken_bytes < WINDOW_BYTES:
                    self._read_output(fd)
        is_open = self._untaken_bytes < WINDOW_BYTES
        for fd in {self._input_fd, *self._output_fds} - {-1}:
            poll_events = READ_EVENTS if is_open and fd in self._output_fds else 0
            poll_events |= WRITE_EVENTS if self._input and fd == self._input_fd else 0
            if poll_events:
                self._owner.loop.watch(fd, poll_events, functools.partial(self._on_ready, fd))
            else:
                self._owner.loop.unwatch(fd)
        if self._exit is not None and not self._output_fds:
            self.close()
            self._owner.ended(self, *self._exit)

    def _on_ready(self, fd: int, poll_events: int) -> None:
        if fd == self._input_fd and (poll_events & WRITE_EVENTS or fd not in self._output_fds):
            self._write_input()
        if fd in self._output_fds and poll_events & READ_EVENTS:
            self._read_output(fd)
        self._watch()

    def _write_input(self) -> None:
        written_bytes = 0
        try:
            while self._input and self._input_fd >= 0:
                piece_bytes = os.write(self._input_fd, self._input[:4096])
                del self._input[:piece_bytes]
                written_bytes += piece_bytes
        except BlockingIOError:
            pass  # the program does not read now
        except OSError:
            written_bytes += len(self._input)  # the program reads no more
            self._input.clear()
            self._is_input_ended = True
        if written_bytes:
            self._owner.outbox.send({"t": "program-taken", "id": self.name, "bytes": written_bytes})
        if self._is_input_ended and not self._input and not self._has_terminal and self._input_fd >= 0:
            self._owner.loop.unwatch(self._input_fd)
            os.close(self._input_fd)
            self._input_fd = -1

    def _read_output(self, fd: int) -> None:
        output_bytes = b""
        is_at_end = False
        try:
            while self._untaken_bytes + len(output_bytes) < WINDOW_BYTES and len(output_bytes) < _READ_BYTES:
                chunk = os.read(fd, _READ_BYTES)
                output_bytes += chunk
                if not chunk:
                    is_at_end = True
                    break
        except BlockingIOError:
            is_at_end = self._exit is not None
        except OSError:
            is_at_end = True  # a terminal that no process holds any more
        if output_bytes:
            self._untaken_bytes += len(output_bytes) + FRAME_COST_BYTES
            output = {"t": "program-output", "id": self.name, "stream": self._output_fds[fd]}
            self._owner.outbox.send({**output, "data": to_base64(output_bytes)})
        if is_at_end:
            self._owner.loop.unwatch(fd)
            del self._output_fds[fd]
            if fd != self._input_fd:
                os.close(fd)
            elif self._exit is None:  # the program has closed its terminal and goes on
                os.close(fd)
                self._input_fd = -1


class Programs:
    """Holds the running programs by the names that the agent gave."""

    def __init__(self, loop: Loop, outbox: Outbox, terminals: Terminals) -> None:
        self.loop = loop
        self.outbox = outbox
        self._terminals = terminals
        self._running: Dict[str, Program] = {}

    def start(self, message: Message) -> None:
        """Handles `program-start`: replies once the program's process exists. Raises ValueError, OSError."""
        name, argv, variables = message["id"], message.get("argv") or [], message.get("env") or {}
        all_texts = [name, *argv, *variables, *variables.values()]
        if not name or not all(isinstance(text, str) and "\0" not in text for text in all_texts):
            raise ValueError("id, argv and env are texts without NUL")
        if name in self._running or len(self._running) >= MAX_PROGRAMS:
            raise ValueError(f"more than {MAX_PROGRAMS} programs, or {name[:128]!r} runs already")
        terminal_size = check_size(message.get("rows", 24), message.get("cols", 80))
        program = Program(self, name, message.get("tty") is True)
        environment = {**self._terminals.environment(), **variables}
        folder = os.path.join(self._terminals.home, str(message.get("cwd") or ""))
        if not os.path.isdir(folder):
            raise ValueError(f"there is no folder {folder[:256]}")
        program.start(argv or self._terminals.shell, environment, folder, terminal_size)
        self._running[name] = program
        self.outbox.reply(message, {})

    def handle(self, message: Message) -> None:
        """Handles a message to a running program (all types except `program-start`); ignores a program that has ended.

        Raises ValueError, KeyError.
        """
        program = self._running.get(message["id"])
        if program is None:
            return
        message_type = message["t"]
        if message_type == "program-input":
            program.feed(from_base64(message["data"]), message.get("last") is True)
        elif message_type == "program-taken":
            program.allow_output(int(message["bytes"]))
        elif message_type == "program-resize":
            program.resize(*check_size(message["rows"], message["cols"]))
        elif message_type == "program-signal" and message["signal"] in _SIGNALS:
            program.signal(getattr(signal, "SIG" + message["signal"]))
        elif message_type == "program-end":
            program.signal(signal.SIGHUP)
            program.close()

    def ended(self, program: Program, exit_code: int, signal_number: Optional[int]) -> None:
        """Reports a program's end to the agent."""
        if self._running.pop(program.name, None) is not None:
            end_message = {"t": "program-ended", "id": program.name, "exitCode": exit_code, "signal": signal_number}
            self.outbox.send(end_message)

    def child_died(self, pid: int, wait_status: int) -> bool:
        """Handles the end of a program; returns False if `pid` is no program."""
        program = next((candidate for candidate in self._running.values() if candidate.pid == pid), None)
        if program is not None:
            program.died(*process.exit_of(wait_status))
        return program is not None

    def end_all(self) -> None:
        """Kills all programs at the end of the workload."""
        for program in list(self._running.values()):
            program.signal(signal.SIGKILL)
            program.close()
