"""Named places at which a kill test ends this process.

``BACKENDAI_CRASH_POINT=<name>`` or ``<name>:<n>`` makes the n-th passage (default the first) of that place a SIGKILL
of the process itself. Without the variable every call is one comparison. The daemons list their places.
"""

from __future__ import annotations

import os
import signal


class _Countdown:
    """The place that is wanted, and how many passages are left."""

    def __init__(self, setting: str) -> None:
        self.name, _, count = setting.partition(":")
        self.left = int(count) if count.isdecimal() else 1


_countdown = _Countdown(os.environ.get("BACKENDAI_CRASH_POINT", ""))


def crash_point(name: str) -> None:
    """End this process with SIGKILL if the environment asks for it here."""
    if name != _countdown.name:
        return
    _countdown.left -= 1
    if _countdown.left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
