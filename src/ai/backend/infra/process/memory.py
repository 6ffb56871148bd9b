"""Limits the memory of a daemon to one heap of the C library, which returns freed memory to the OS after peaks."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from ai.backend.infra.loop import cancel_all

log = logging.getLogger(__name__)
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1
"""Parameters in malloc.h of glibc."""
_KEPT_BYTES = 1 << 20
_CHECK_INTERVAL_S = 2.0
_STABLE_CHECKS = 3
_MIN_FALL_PART = 0.01
_MAX_CHANGE_PART = 0.001


def share_one_heap() -> None:
    """Makes all threads allocate from one heap. Only glibc supports this. Call it before threads start.

    Otherwise a thread gets a heap of its own under contention, whose free memory is never returned to the OS.
    """
    _set_malloc_option(_M_ARENA_MAX, 1)


def reuse_receive_buffers() -> None:
    """Lets the heap keep 1 MiB of free memory, from which receive buffers are taken, with glibc only (decision 0720).

    asyncio allocates 256 KiB for each read of a socket and returns all but the bytes that have arrived. By its defaults
    glibc takes such a block from the OS and gives it back each time, where less happens to be free at the end of the
    heap: a relay of small messages then costs up to four times its processor time.
    """
    _set_malloc_option(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    _set_malloc_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _set_malloc_option(option: int, value: int) -> None:
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(option, value)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disables the cyclic garbage collector while the block runs, which saves a third of a scheduling decision (ADR
    0122)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_rarely() -> None:
    """Runs the cyclic collector a tenth as often as CPython does, which saves a fifth of a busy manager's time (ADR
    0167)."""
    gc.set_threshold(30_000, 20, 10)


def freeze_objects() -> None:
    """Collects cycles, and excludes all present objects from later collections (decision 0740)."""
    gc.collect()
    gc.freeze()


class MemoryTrimmer:
    """Returns freed memory to the OS once after each peak, when the number of allocated blocks is stable (decision
    0016).

    It first calls each function of ``close_idle``, which close what is reopened when needed.
    """

    def __init__(
        self,
        close_idle: Sequence[Callable[[], Awaitable[None]]] = (),
        *,
        count_blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        self._rest = close_idle
        self._blocks = count_blocks
        self._peak = count_blocks()
        self._counts: deque[int] = deque(maxlen=_STABLE_CHECKS)

    async def run(self) -> None:
        """Excludes the objects of the start from collections, then checks the memory periodically until cancelled."""
        await asyncio.sleep(_CHECK_INTERVAL_S)  # no event ends a start: modules are loaded at first use, too
        freeze_objects()
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            try:
                await self.check()
            except Exception:  # the daemon works without it
                log.exception("freed memory could not be returned")

    async def check(self) -> bool:
        """Trims memory after a stable peak; returns True if memory was trimmed."""
        block_count = self._blocks()
        self._peak = max(self._peak, block_count)
        self._counts.append(block_count)
        block_change = max(self._counts) - min(self._counts)
        is_stable = len(self._counts) == _STABLE_CHECKS and block_change <= _MAX_CHANGE_PART * block_count
        if block_count > (1 - _MIN_FALL_PART) * self._peak or not is_stable:
            return False
        for close_idle in self._rest:
            await close_idle()
        trim_memory()
        self._peak = self._blocks()
        return True


@asynccontextmanager
async def trim_while_running(*close_idle: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Trims memory after peaks while the block runs; ``close_idle`` as in :class:`MemoryTrimmer`."""
    trim_task = asyncio.create_task(MemoryTrimmer(close_idle).run(), name="memory-trimmer")
    try:
        yield
    finally:
        await cancel_all(trim_task)


# From CPython 3.13 on the other name is deprecated.
_clear_type_cache: Callable[[], None] = getattr(sys, "_clear_internal_caches", sys._clear_type_cache)


def trim_memory() -> None:
    """Empties caches, collects cycles, and returns free memory to the OS."""
    if (yarl := sys.modules.get("yarl")) is not None:
        yarl.cache_clear()
    _clear_type_cache()  # it keeps the name of each attribute that was ever looked up
    gc.collect()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
