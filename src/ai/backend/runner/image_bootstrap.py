"""Runs the image's own script, which starts its services, before the session is ready, as the session's user."""

from __future__ import annotations

from . import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Tuple

    from .event_loop import Loop
    from .framing import Outbox

TIMEOUT_S = 30.0
"""The timeout in seconds, after which the session continues without the script."""


class ImageBootstrap:
    """Runs the image's start-up script. Calls `done` once: at the script's end or at the timeout."""

    def __init__(self, script_path: str, loop: Loop, outbox: Outbox) -> None:
        self._script_path = script_path
        self._loop = loop
        self._outbox = outbox
        self._pid = 0
        self.is_running = False
        self.problem: Optional[str] = None
        self.done: Callable[[], None] = lambda: None

    def start(self, home: str, stdio_fds: Tuple[int, int, int]) -> None:
        argv = [process.find_executable("bash", "sh") or "/bin/sh", self._script_path]
        try:
            self._pid = process.spawn(argv, process.common_environment(home), home, stdio_fds)
        except OSError as e:
            self._report_failure(f"cannot be started: {e}")
            return
        self.is_running = True
        self._loop.call_later(TIMEOUT_S, self._on_timeout)

    def child_died(self, pid: int, wait_status: int) -> bool:
        """Handles the end of the start-up script; returns False if `pid` is another process."""
        if pid != self._pid:
            return False
        self._pid = 0
        exit_code = process.exit_of(wait_status)[0]
        if exit_code:
            self._report_failure(f"ended with code {exit_code}")
        self._finish()
        return True

    def _report_failure(self, event: str) -> None:
        self.problem = f"the image's {self._script_path} {event}"
        self._outbox.warn(self.problem)

    def _on_timeout(self) -> None:
        if self.is_running:
            self._report_failure(f"has not returned within {TIMEOUT_S:g} s: the session goes on without it")
            self._finish()

    def _finish(self) -> None:
        if self.is_running:
            self.is_running = False
            self.done()
