"""Named instructions at which a test may have a process of the runtime killed.

A no-op unless ``BACKENDAI_CRASH_AT`` names the point, which no product code sets. Kill tests use it to prove that
whatever instruction was the last one, the next start finds and cleans everything.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "BACKENDAI_CRASH_AT"

AGENT_POINTS = (
    "create.directory",
    "create.record",
    "create.home",
    "create.plan",
    "create.requested",
    "create.started",
    "stop.requested",
    "stop.exited",
    "remove.marked",
    "remove.killed",
    "remove.home",
    "remove.emptied",
)
"""Points of the agent's process, in the order in which a workload's life passes them."""
SHIM_POINTS = (
    "shim.forked",
    "shim.locked",
    "shim.cgroups",
    "shim.spawned",
    "shim.recorded",
    "shim.stopping",
    "shim.killed",
    "shim.exit-recorded",
)
"""Points of the shim's process."""


def reach(point: str) -> None:
    """Die here, at once, if a test asked for it."""
    if os.environ.get(VARIABLE) == point:
        os.kill(os.getpid(), signal.SIGKILL)
