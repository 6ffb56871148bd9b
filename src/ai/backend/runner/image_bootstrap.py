"""Runs the image's own script, which starts its services, before the session is ready, as the session's user."""

from __future__ import annotations

from . import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Tuple

    from .event_loop import Loop
    from .framing import Outbox

TIMEOUT_S = 30.0
"""The timeout in seconds, after which the session continues without the script."""


class ImageBootstrap:
    """One run of the script. `done` is called once: at its end or at the timeout."""

    def __init__(self, path: str, loop: Loop, outbox: Outbox) -> None:
        self._path = path
        self._loop = loop
        self._outbox = outbox
        self._pid = 0
        self.is_running = False
        self.done: Callable[[], None] = lambda: None

    def start(self, home: str, fds: Tuple[int, int, int]) -> None:
        argv = [process.find_executable("bash", "sh") or "/bin/sh", self._path]
        try:
            self._pid = process.spawn(argv, process.common_environment(home), home, fds)
        except OSError as e:
            self._outbox.warn(f"{self._path} cannot be started: {e}")
            return
        self.is_running = True
        self._loop.call_later(TIMEOUT_S, self._took_long)

    def child_died(self, pid: int, status: int) -> bool:
        """Handles the end of the script; returns False if `pid` is another process."""
        if pid != self._pid:
            return False
        self._pid = 0
        code = process.exit_of(status)[0]
        if code:
            self._outbox.warn(f"{self._path} ended with code {code}")
        self._finish()
        return True

    def _took_long(self) -> None:
        if self.is_running:
            self._outbox.warn(f"{self._path} has not returned within {TIMEOUT_S:g} s: going on without it")
            self._finish()

    def _finish(self) -> None:
        if self.is_running:
            self.is_running = False
            self.done()
