"""The fence of the leading manager, which every writing method of the stores in memory checks."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

write_fence: ContextVar[Callable[[], None] | None] = ContextVar("memory_write_fence", default=None)
"""Raises Conflict if the current task may no longer write."""


def check_fence() -> None:
    """Raises Conflict if another manager has taken over the lease."""
    fence = write_fence.get()
    if fence is not None:
        fence()
