"""Places in the life of a kernel where a test may kill the agent.

``BACKENDAI_CRASH_POINT=<name>`` makes the process kill itself with SIGKILL on reaching that point; without it a point
costs one comparison. ``CRASH_POINTS`` lists them all, in the order in which a kernel passes them.
"""

from __future__ import annotations

import os
import signal

CREATE_STEPS = ("devices", "hooks", "workload", "channel", "bootstrap", "post-create")
"""Names of the creation's steps in order; a destruction releases them in reverse."""

CRASH_POINTS: tuple[str, ...] = (
    "create.accept.before",
    "create.accept.after",
    *(f"create.{step}.{when}" for step in CREATE_STEPS for when in ("before", "after")),
    "create.running.before",
    "create.running.after",
    "restart.accept.after",
    "restart.released",
    "destroy.accept.before",
    "destroy.accept.after",
    *(f"destroy.{step}.{when}" for step in reversed(CREATE_STEPS) for when in ("before", "after")),
    "destroy.terminated.before",
    "destroy.terminated.after",
)

_ARMED = os.environ.get("BACKENDAI_CRASH_POINT", "")


def crash_point(name: str) -> None:
    """Kill this process here if this point is armed."""
    if name == _ARMED:
        os.kill(os.getpid(), signal.SIGKILL)
