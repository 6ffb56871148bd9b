"""Standard streams of the interpreter child: ordered output through pipes, input requested from the client.

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

_DRAIN_PATIENCE = 2.0


def wait_drained(fd: int) -> None:
    """Waits until the supervisor has read everything in the pipe `fd`, or a timeout has passed."""
    count = bytearray(4)
    deadline = 0.0
    while True:
        try:
            fcntl.ioctl(fd, termios.FIONREAD, count, True)
        except OSError:
            return  # closed or redirected by the user
        if not any(count):
            return
        now = time.monotonic()
        if not deadline:
            deadline = now + _DRAIN_PATIENCE
            os.sched_yield()
        elif now > deadline:
            return
        else:
            time.sleep(0.00005)


class OutputPipe(io.RawIOBase):
    """The raw half of sys.stdout or sys.stderr. Closing it keeps the descriptor open for the next run."""

    def __init__(self, fd: int, other_fd: int, guard: _thread.LockType) -> None:
        self._fd = fd
        self._other_fd = other_fd
        self._guard = guard
        self.flush_other: Callable[[], None] = lambda: None
        self.mode = "wb"
        self.name = "<stdout>" if fd == 1 else "<stderr>"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        # One writer at a time looks after the other stream: flushing it comes back here for the other pipe.
        if self._guard.acquire(False):
            try:
                self.flush_other()
            finally:
                self._guard.release()
        wait_drained(self._other_fd)
        return os.write(self._fd, data)


def open_outputs() -> tuple[io.TextIOWrapper, io.TextIOWrapper]:
    """Opens line-buffered text streams for descriptors 1 and 2 that never fail on unencodable characters."""
    guard = _thread.allocate_lock()
    raw_out, raw_err = OutputPipe(1, 2, guard), OutputPipe(2, 1, guard)
    out, err = (
        io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", newline="\n", line_buffering=True)
        for raw in (raw_out, raw_err)
    )
    raw_out.flush_other = lambda: flush_quietly(err)
    raw_err.flush_other = lambda: flush_quietly(out)
    return out, err


def current() -> List[Any]:
    """Returns the present sys.stdout and sys.stderr; the user may have removed either."""
    return [s for s in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)) if s is not None]


def flush_quietly(stream: Any) -> None:
    """Flushes any stream and ignores its failure."""
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

    def __init__(self, ask: Callable[[bool], str]) -> None:
        self._ask = ask
        self._rest = ""

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def readline(self, size: Optional[int] = -1) -> str:  # type: ignore[override]  # the stub has a positional-only int
        line = self._rest or self._ask(False) + "\n"
        if size is None or size < 0:
            size = len(line)
        line, self._rest = line[:size], line[size:]
        return line

    def read(self, size: Optional[int] = -1) -> str:
        """Returns one answer of the client as the whole input."""
        return self.readline(size)

    def close(self) -> None:
        """Does nothing: `exit()` closes sys.stdin, but the next run may still read."""
