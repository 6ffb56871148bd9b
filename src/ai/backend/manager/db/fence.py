"""The fence of whoever leads: each transaction in memory that writes looks at it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

write_fence: ContextVar[Callable[[], None] | None] = ContextVar("memory_write_fence", default=None)
"""Raises Conflict where nothing may be written any more."""


def check_fence() -> None:
    """Raises Conflict: whoever writes was fenced off."""
    fence = write_fence.get()
    if fence is not None:
        fence()
