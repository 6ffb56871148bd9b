"""The C library's heap of a daemon."""

from __future__ import annotations

import ctypes
import gc

_M_ARENA_MAX = -8
"""From malloc.h of glibc."""


def share_one_heap() -> None:
    """Let all threads allocate from one heap, with glibc; elsewhere nothing happens. Call it before there are threads.

    By default a thread that finds the heap in use gets one of its own. What a peak has left in it is then free for
    that thread alone, and is never given back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def collect_rarely() -> None:
    """Look for cycles a tenth as often as CPython does: a manager that works makes many objects that live, and few
    cycles; looking through the former cost a fifth of its time. ADR 0167."""
    gc.set_threshold(10_000, 20, 10)
