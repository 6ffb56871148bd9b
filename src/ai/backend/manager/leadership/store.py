"""The port of the store of leases."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import msgspec


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that ``holder`` has until it expires. ``token`` grows whenever the holder changes."""

    name: str
    holder: str
    token: int


class LeaseStore(Protocol):
    """Stores leases; they expire by the clock of the store, which all managers share."""

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> Lease | None:
        """Acquires or renews a lease for ``ttl_s`` from now; None if another holder has it."""
        ...

    async def release(self, lease: Lease) -> None:
        """Releases a lease at once; does nothing if it is not held any more."""

    async def holders(self, prefix: str) -> dict[str, str]:
        """Returns name -> holder of the unexpired leases whose names begin with the prefix."""
        ...

    def fenced(self, lease: Lease) -> AbstractContextManager[None]:
        """Makes the writes to the same database, within the block and in tasks started in it, depend on the lease. A
        write raises Conflict and has no effect if the token of the lease has changed."""
        ...
