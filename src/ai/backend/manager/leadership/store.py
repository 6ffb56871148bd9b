"""Who does what only one of several managers may do."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Held by ``holder`` until it runs out. ``token`` grows whenever the holder changes."""

    name: str
    holder: str
    token: int


class LeaseStore(Protocol):
    """Leases by the clock of the store, which all managers share."""

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> Lease | None:
        """Take a lease that is free or has run out, or make one's own last for ``ttl_s`` from now; None: another's."""
        ...

    async def release(self, lease: Lease) -> None:
        """Let another have it at once. Harmless if it is not held any more."""

    async def holders(self, prefix: str) -> dict[str, str]:
        """Holder by name, of the leases of such names that have not run out."""
        ...

    def fenced(self, lease: Lease) -> AbstractContextManager[None]:
        """Within the block, and in the tasks that begin in it, whatever is written to the same database is written
        only if the lease is still of this token; else the write raises Conflict and nothing of it is done."""
        ...
