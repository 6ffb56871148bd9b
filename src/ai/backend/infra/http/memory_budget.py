"""Limits the memory that requests hold together.

A limit on one body is none on a thousand of them, and most of a body comes before anybody knows who sends it.
"""

from __future__ import annotations

import asyncio

from ai.backend.common.errors import Unavailable

UNVERIFIED_BYTES = 64 << 20
"""The budget in bytes for bodies of unauthenticated senders, which only signatures over the body need to be read."""
VERIFIED_BYTES = 512 << 20
PATIENCE_S = 30.0
SMALL = 65_536
"""Bodies up to this size are not counted: their connections cost as much."""


class MemoryBudget:
    """A budget of bytes; a request for more than remains waits."""

    def __init__(self, size: int, *, patience_s: float = PATIENCE_S) -> None:
        self.remaining = size
        self._size = size
        self._patience_s = patience_s
        self._returned = asyncio.Event()

    async def acquire(self, amount: int) -> int:
        """Acquires bytes, at most the whole budget, and returns the amount to release.

        Raises:
            Unavailable: others did not give back enough in time.
        """
        amount = min(amount, self._size)
        try:
            async with asyncio.timeout(self._patience_s):
                while self.remaining < amount:
                    await self._returned.wait()
        except TimeoutError:
            raise Unavailable("Too many large requests at once; try again.") from None
        self.remaining -= amount
        return amount

    def release(self, amount: int) -> None:
        self.remaining += amount
        self._returned.set()
        self._returned = asyncio.Event()
