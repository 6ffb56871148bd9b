"""The C library's heap of a daemon."""

from __future__ import annotations

import ctypes

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
