"""Provides stdin, stdout and stderr of the interpreter child: ordered output through pipes, input from the client.

One pipe keeps the order of one stream, whoever writes. Across the two, a writer in Python first waits until the
supervisor has emptied the other pipe; the kernel tells how much is in it, so a write costs one ioctl.
"""

from __future__ import annotations

import _thread
import builtins
import fcntl
import io
import os
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional

# The user may empty the builtins of the interpreter; our functions keep their own.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # a module or its dict, both are allowed

_DRAIN_TIMEOUT_S = 2.0


def wait_drained(pipe_fd: int) -> None:
    """Waits until the supervisor has read everything in the pipe `pipe_fd`, or a timeout has passed."""
    unread_bytes = bytearray(4)
    deadline = 0.0
    while True:
        try:
            fcntl.ioctl(pipe_fd, termios.FIONREAD, unread_bytes, True)
        except OSError:
            return  # closed or redirected by the user
        if not any(unread_bytes):
            return
        now = time.monotonic()
        if not deadline:
            deadline = now + _DRAIN_TIMEOUT_S
            os.sched_yield()
        elif now > deadline:
            return
        else:
            time.sleep(0.00005)


class OutputPipe(io.RawIOBase):
    """Writes the raw bytes of sys.stdout or sys.stderr. `close` keeps the descriptor open for the next run."""

    def __init__(self, fd: int, other_fd: int, flush_lock: _thread.LockType) -> None:
        self._fd = fd
        self._other_fd = other_fd
        self._guard = flush_lock
        self.flush_other: Callable[[], None] = lambda: None
        self.mode = "wb"
        self.name = "<stdout>" if fd == 1 else "<stderr>"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, output_bytes: Any) -> int:
        # One writer at a time looks after the other stream: flushing it comes back here for the other pipe.
        if self._guard.acquire(False):
            try:
                self.flush_other()
            finally:
                self._guard.release()
        wait_drained(self._other_fd)
        return os.write(self._fd, output_bytes)


def open_outputs() -> tuple[io.TextIOWrapper, io.TextIOWrapper]:
    """Opens line-buffered text streams for descriptors 1 and 2 that never fail on unencodable characters."""
    flush_lock = _thread.allocate_lock()
    stdout_pipe, stderr_pipe = OutputPipe(1, 2, flush_lock), OutputPipe(2, 1, flush_lock)
    stdout_stream, stderr_stream = (
        io.TextIOWrapper(io.BufferedWriter(output_pipe), "utf-8", "backslashreplace", newline="\n", line_buffering=True)
        for output_pipe in (stdout_pipe, stderr_pipe)
    )
    stdout_pipe.flush_other = lambda: flush_quietly(stderr_stream)
    stderr_pipe.flush_other = lambda: flush_quietly(stdout_stream)
    return stdout_stream, stderr_stream


def current_outputs() -> List[Any]:
    """Returns the present sys.stdout and sys.stderr; the user may have removed either."""
    return [stream for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)) if stream is not None]


def flush_quietly(stream: Any) -> None:
    """Flushes a stream and ignores exceptions of the flush."""
    try:
        stream.flush()
    except Exception:  # noqa: BLE001  # an object of the user may raise anything
        return


class InputStream(io.TextIOBase):
    """Implements sys.stdin: requests each line from the client (`waiting-input`)."""

    encoding = "utf-8"
    errors = "strict"
    name = "<stdin>"
    mode = "r"

    def __init__(self, ask_client: Callable[[bool], str]) -> None:
        self._ask = ask_client
        self._rest = ""

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def readline(self, max_chars: Optional[int] = -1) -> str:  # type: ignore[override]  # the stub has a positional-only int
        try:
            line = self._rest or self._ask(False) + "\n"
        except EOFError:
            return ""
        if max_chars is None or max_chars < 0:
            max_chars = len(line)
        line, self._rest = line[:max_chars], line[max_chars:]
        return line

    def read(self, max_chars: Optional[int] = -1) -> str:
        """Returns one line as the whole input: the unread rest of the last line, or else a line of the client."""
        return self.readline(max_chars)

    def close(self) -> None:
        """Does nothing: sys.stdin stays open when `exit()` closes the stream, as the next run may still read."""
