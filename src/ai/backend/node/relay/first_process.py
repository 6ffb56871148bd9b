"""Contains the duties of a container's first process other than relaying: starts the runner, reaps orphans, kills.

Shared by :mod:`container`, whose process is the relay too, and :mod:`reaper`, whose relay is another container.
"""

from __future__ import annotations

import os
import select
import time

from .light import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_FAILED_START_EXIT_CODE = 70


class FirstProcess:
    """Starts the runner as a child of this process, at most once, and reaps ended processes.

    ``pid`` is 0 before it started; ``status`` is that of ``waitpid`` once it has ended; ``kill_at`` is when all
    processes are killed, by the monotonic clock.
    """

    def __init__(self, poll: select.poll) -> None:
        self.pid = 0
        self.status: Optional[int] = None
        self.kill_at: Optional[float] = None
        self._is_stopping = False
        self.wakeup, wakeup_write = os.pipe()
        for fd in (self.wakeup, wakeup_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_args: None)
        for signal_number in STOP_SIGNALS:
            signal.signal(signal_number, self._on_stop_signal)
        poll.register(self.wakeup, select.POLLIN)

    def start(self, run_runner: Callable[[], int]) -> None:
        """Starts the runner: ``run_runner`` is called in a child, which ends with the code that it returns."""
        self.pid = os.fork()
        if self.pid:
            return
        exit_code = _FAILED_START_EXIT_CODE
        try:
            signal.set_wakeup_fd(-1)
            for signal_number in (signal.SIGCHLD, *STOP_SIGNALS):
                signal.signal(signal_number, signal.SIG_DFL)
            exit_code = run_runner()
        except BaseException as error:  # noqa: BLE001  # this process must not go on as a second first one
            os.write(2, ("runner: %s: %s\n" % (type(error).__name__, error)).encode("utf-8", "replace"))
        finally:
            os._exit(exit_code)

    def on_wakeup(self) -> None:
        """Reaps every ended child process, and stores the runner's exit status if the runner has ended.

        Call it when ``wakeup`` is readable.
        """
        os.read(self.wakeup, 512)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = status

    def kill_if_due(self) -> None:
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.kill_at = None
            signal_all(signal.SIGKILL)

    def _on_stop_signal(self, *_args: Any) -> None:
        if not self.pid:
            self.status = 0
        elif not self._is_stopping:
            self._is_stopping = True
            signal_all(signal.SIGTERM)


def signal_all(signal_number: int) -> None:
    """Sends a signal to all other processes of the PID namespace if this process is process 1; else does nothing.

    In any other process `kill(-1)` would hit processes outside of the container.
    """
    if os.getpid() == 1:
        try:
            os.kill(-1, signal_number)
        except (ProcessLookupError, PermissionError):
            return


def timeout_ms(*deadlines: Optional[float]) -> Optional[int]:
    """Returns the milliseconds until the earliest of the given deadlines, for ``poll``; None if no deadline is set."""
    set_deadlines = [deadline for deadline in deadlines if deadline is not None]
    return max(0, int((min(set_deadlines) - time.monotonic()) * 1000) + 1) if set_deadlines else None


def shell_code(wait_status: int) -> int:
    """Returns the exit code for a status of ``waitpid`` as a shell does."""
    return 128 + os.WTERMSIG(wait_status) if os.WIFSIGNALED(wait_status) else os.WEXITSTATUS(wait_status)
