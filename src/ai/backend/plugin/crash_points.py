"""Named places in the code at which a test may end the process with SIGKILL.

The environment variable ``BACKENDAI_CRASH_POINT`` holds ``name`` or ``name:n``: the process dies when it passes that
place for the n-th time, by default the first. No product code sets the variable. Each daemon and each runtime lists its
places in its own ``crash_points``; a test compares the lists with the calls.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "BACKENDAI_CRASH_POINT"
_passages: dict[str, int] = {}


def crash_point(name: str) -> None:
    """End this process with SIGKILL if the environment names this place and this passage."""
    target, _, count = os.environ.get(VARIABLE, "").partition(":")
    if name != target:
        return
    _passages[name] = _passages.get(name, 0) + 1
    if _passages[name] >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
