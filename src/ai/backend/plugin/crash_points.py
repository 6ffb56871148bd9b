"""Ends the process with SIGKILL at named places in the code, for tests.

``BACKENDAI_CRASH_POINT`` is ``name`` or ``name:n``: the process dies when it passes that place for the n-th time, by
default the first. Each daemon and runtime lists its places in its ``crash_points``.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "BACKENDAI_CRASH_POINT"
_crash_setting: str | None = None
"""The variable's value at the first passage, None before: a session passes fifty of these places."""
_passage_counts: dict[str, int] = {}


def crash_point(name: str) -> None:
    """Kills this process if the environment names this crash point, and it is reached as often as the variable says."""
    global _crash_setting  # noqa: PLW0603  # of the process, as its environment is
    if _crash_setting is None:
        _crash_setting = os.environ.get(VARIABLE, "")
    if not _crash_setting:
        return
    crash_name, _, crash_passage = _crash_setting.partition(":")
    if name != crash_name:
        return
    _passage_counts[name] = _passage_counts.get(name, 0) + 1
    if _passage_counts[name] >= int(crash_passage or 1):
        os.kill(os.getpid(), signal.SIGKILL)
