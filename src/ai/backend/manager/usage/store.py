"""The port to the history of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ai.backend.manager.usage.model import Cursor, UsageQuery, UsedKernel


class UsageStore(Protocol):
    """Reads the history of kernels."""

    async def used(self, query: UsageQuery, *, after: Cursor | None = None, limit: int = 1_000) -> Sequence[UsedKernel]:
        """Returns a page of the kernels that match, those that have ended first; empty at the end.

        No kernel is returned twice. One that ends between two pages may be missed.
        """
        ...
