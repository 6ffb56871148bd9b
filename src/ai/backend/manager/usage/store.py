"""The history of kernels, for reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ai.backend.manager.usage.model import Cursor, UsageQuery, UsedKernel


class UsageStore(Protocol):
    async def used(self, query: UsageQuery, *, after: Cursor | None = None, limit: int = 1_000) -> Sequence[UsedKernel]:
        """A page of the kernels that ran in that time, those that have ended first; empty at the end.

        None is read twice. One that ends while somebody reads page by page may be missed.
        """
        ...
