"""The places at which a kill test may end the manager, see ``infra.crash_points``."""

from __future__ import annotations


def _around(*steps: str) -> tuple[str, ...]:
    return tuple(f"{when}-{step}" for step in steps for when in ("before", "after"))


CRASH_POINTS = _around(
    "commit-create",
    "commit-schedule",
    "agent-create",
    "commit-observe",
    "commit-destroy",
    "agent-destroy",
    "commit-terminate",
    "commit-restart",
    "agent-restart",
)
"""What every session that is created, perhaps restarted, and destroyed passes, in this order."""

RARE_CRASH_POINTS = _around("commit-dispatch", "commit-abandon", "commit-rename")
"""What is passed when an agent is slow, refuses or is lost, and when a session is renamed."""
