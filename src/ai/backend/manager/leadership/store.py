"""Declares the store of leases."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import msgspec


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Represents a named lease, which only ``holder`` has until the lease expires.

    ``token`` grows whenever the holder changes.
    """

    name: str
    holder: str
    token: int


class LeaseStore(Protocol):
    """Stores leases, which expire by the clock of the store that all managers share."""

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> Lease | None:
        """Acquires or renews a lease for ``ttl_s`` from now, or returns None if another holder has the lease."""
        ...

    async def release(self, lease: Lease) -> None:
        """Releases a lease at once, or does nothing if the lease is not held any more."""

    async def holders(self, prefix: str) -> dict[str, str]:
        """Returns, by name, the holders of the unexpired leases whose names begin with the prefix."""
        ...

    def fenced(self, lease: Lease) -> AbstractContextManager[None]:
        """Makes all writes to the database of the lease within a ``with`` block fail if the lease was lost.

        This includes writes of tasks that are started within the block. A write raises Conflict and has no effect if
        the token of the lease has changed.
        """
        ...
