"""A minimal event loop on poll(2) with readiness callbacks, timers and idle work, since asyncio starts slowly."""

from __future__ import annotations

import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional

    Ready = Callable[[int], None]

READ = select.POLLIN | select.POLLHUP | select.POLLERR
WRITE = select.POLLOUT
_MAX_FAILURES = 100


class Timer:
    """A pending call; `cancel` is idempotent."""

    __slots__ = ("action", "due")

    def __init__(self, due: float, action: Callable[[], None]) -> None:
        self.due = due
        self.action: Optional[Callable[[], None]] = action

    def cancel(self) -> None:
        """Makes the timer do nothing."""
        self.action = None


class Loop:
    """Runs until `stop`. Signals wake it through a pipe; `on_wakeup` then looks for dead children."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._ready: Dict[int, Ready] = {}
        self._timers: List[Timer] = []
        self._running = True
        self._failures = 0
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.on_wakeup: Callable[[], None] = lambda: None
        self.before_wait: Callable[[], bool] = lambda: False
        self.watch(self._wake_read, READ, self._woken)

    def watch(self, fd: int, events: int, ready: Ready) -> None:
        """Calls `ready(events)` whenever `fd` is ready; replaces an earlier watch of the same descriptor."""
        self._ready[fd] = ready
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stops watching; must be called before the descriptor is closed."""
        if self._ready.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def call_later(self, delay: float, action: Callable[[], None]) -> Timer:
        """Calls `action` after `delay` seconds."""
        timer = Timer(time.monotonic() + delay, action)
        self._timers.append(timer)
        return timer

    def stop(self) -> None:
        """Ends `run` after the current round."""
        self._running = False

    def run(self) -> None:
        """Runs the loop. `before_wait` runs once a round; while it returns True the round does not sleep."""
        while self._running:
            busy = self.before_wait()
            for fd, events in self._poll.poll(0 if busy else self._patience()):
                ready = self._ready.get(fd)
                if ready is not None:
                    self._guard(ready, events)
            self._fire()

    def _guard(self, action: Callable[..., None], *arguments: int) -> None:
        try:
            action(*arguments)
        except Exception:  # one mistake of ours must not cost the session; many of them must not burn a core
            self._failures += 1
            if self._failures > _MAX_FAILURES:
                raise
            import traceback

            traceback.print_exc()

    def _patience(self) -> Optional[int]:
        due = [t.due for t in self._timers if t.action is not None]
        if not due:
            return None
        return max(0, int((min(due) - time.monotonic()) * 1000) + 1)

    def _fire(self) -> None:
        if not self._timers:
            return
        now = time.monotonic()
        due = [t for t in self._timers if t.due <= now]
        self._timers = [t for t in self._timers if t.due > now and t.action is not None]
        for timer in due:
            if timer.action is not None:
                self._guard(timer.action)

    def _woken(self, _events: int) -> None:
        try:
            os.read(self._wake_read, 4096)
        except OSError:
            pass  # already drained: the wake-up itself is what counts
        self.on_wakeup()
