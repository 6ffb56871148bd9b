"""Named instructions at which a test may have a process of a runtime killed.

A no-op unless ``BACKENDAI_CRASH_AT`` names the point, which no product code sets. Kill tests use it to prove that
whatever instruction was the last one, the next start finds and cleans everything.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "BACKENDAI_CRASH_AT"


def reach(point: str) -> None:
    """Die here, at once, if a test asked for it."""
    if os.environ.get(VARIABLE) == point:
        os.kill(os.getpid(), signal.SIGKILL)
