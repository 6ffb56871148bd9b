"""Implements a minimal event loop on poll(2), with readiness callbacks, timers and idle work.

asyncio starts too slowly.
"""

from __future__ import annotations

import os
import select
import time

from .light import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional

    ReadyCallback = Callable[[int], None]

READ_EVENTS = select.POLLIN | select.POLLHUP | select.POLLERR
WRITE_EVENTS = select.POLLOUT
_MAX_CALLBACK_FAILURES = 100


class Timer:
    """Holds a pending call of the loop; `cancel` is idempotent."""

    __slots__ = ("action", "due")

    def __init__(self, due_time: float, action: Callable[[], None]) -> None:
        self.due = due_time
        self.action: Optional[Callable[[], None]] = action

    def cancel(self) -> None:
        """Cancels the timer's call."""
        self.action = None


class Loop:
    """Runs callbacks until `stop`. Signals wake the loop through a pipe; `on_wakeup` then reaps dead children."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._ready_callbacks: Dict[int, ReadyCallback] = {}
        self._timers: List[Timer] = []
        self._running = True
        self._failures = 0
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.on_wakeup: Callable[[], None] = lambda: None
        self.before_wait: Callable[[], bool] = lambda: False
        self.watch(self._wake_read, READ_EVENTS, self._on_wakeup_signal)

    def watch(self, fd: int, poll_events: int, on_ready: ReadyCallback) -> None:
        """Calls `on_ready` with the poll events whenever `fd` is ready; replaces an earlier watch of `fd`."""
        self._ready_callbacks[fd] = on_ready
        self._poll.register(fd, poll_events)

    def unwatch(self, fd: int) -> None:
        """Stops watching `fd`; must be called before the descriptor is closed."""
        if self._ready_callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Calls `action` once after `delay_s` seconds."""
        timer = Timer(time.monotonic() + delay_s, action)
        self._timers.append(timer)
        return timer

    def stop(self) -> None:
        """Ends `run` after the current round of polling."""
        self._running = False

    def run(self) -> None:
        """Runs the loop until `stop`: calls the callbacks of ready descriptors and the due timers in each round.

        `before_wait` runs once a round; while it returns True the round does not sleep.
        """
        while self._running:
            has_more_work = self.before_wait()
            for fd, poll_events in self._poll.poll(0 if has_more_work else self._poll_timeout_ms()):
                on_ready = self._ready_callbacks.get(fd)
                if on_ready is not None:
                    self._call_safely(on_ready, poll_events)
            self._run_due_timers()

    def _call_safely(self, action: Callable[..., None], *poll_events: int) -> None:
        try:
            action(*poll_events)
        except Exception:  # one mistake of ours must not cost the session; many of them must not burn a core
            self._failures += 1
            if self._failures > _MAX_CALLBACK_FAILURES:
                raise
            import traceback

            traceback.print_exc()

    def _poll_timeout_ms(self) -> Optional[int]:
        due_times = [timer.due for timer in self._timers if timer.action is not None]
        if not due_times:
            return None
        return max(0, int((min(due_times) - time.monotonic()) * 1000) + 1)

    def _run_due_timers(self) -> None:
        if not self._timers:
            return
        now = time.monotonic()
        due_timers = [pending_timer for pending_timer in self._timers if pending_timer.due <= now]
        self._timers = [
            pending_timer
            for pending_timer in self._timers
            if pending_timer.due > now and pending_timer.action is not None
        ]
        for timer in due_timers:
            if timer.action is not None:
                self._call_safely(timer.action)

    def _on_wakeup_signal(self, _events: int) -> None:
        try:
            os.read(self._wake_read, 4096)
        except OSError:
            pass  # already drained: the wake-up itself is what counts
        self.on_wakeup()
