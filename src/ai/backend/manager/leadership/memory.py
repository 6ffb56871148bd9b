"""Stores leases in memory, and the fence that all writing methods of the stores in memory check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ai.backend.common.errors import Conflict
from ai.backend.manager.leadership.store import Lease

write_fence: ContextVar[Callable[[], None] | None] = ContextVar("memory_write_fence", default=None)
"""The function that raises Conflict if the current task may not write any more."""


def check_fence() -> None:
    """Raises Conflict if another manager has acquired the lease that the current task depends on."""
    fence = write_fence.get()
    if fence is not None:
        fence()


_EXPIRED_LEASE_KEPT_FOR = timedelta(days=1)


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class _LeaseRow:
    holder: str
    token: int
    expires_at: datetime


class MemoryLeaseStore:
    """Stores leases in memory, by the clock ``now`` that all managers share.

    Implements :class:`ai.backend.manager.leadership.store.LeaseStore`.
    """

    def __init__(self, now: Callable[[], datetime] = _utc_now) -> None:
        self._now = now
        self._rows: dict[str, _LeaseRow] = {}

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> Lease | None:
        check_fence()
        now, row = self._now(), self._rows.get(name)
        expires_at = now + timedelta(seconds=ttl_s)
        if row is None:
            self._rows[name] = _LeaseRow(holder, 1, expires_at)
            return Lease(name=name, holder=holder, token=1)
        if row.holder != holder and row.expires_at > now:
            return None
        token = row.token if row.holder == holder else row.token + 1
        self._rows[name] = _LeaseRow(holder, token, expires_at)
        return Lease(name=name, holder=holder, token=token)

    async def release(self, lease: Lease) -> None:
        check_fence()
        row = self._rows.get(lease.name)
        if row is not None and (row.holder, row.token) == (lease.holder, lease.token):
            self._rows[lease.name] = _LeaseRow("", row.token, self._now())

    async def holders(self, prefix: str) -> dict[str, str]:
        now = self._now()
        self._rows = {
            name: row
            for name, row in self._rows.items()
            if not name.startswith(prefix) or row.expires_at >= now - _EXPIRED_LEASE_KEPT_FOR
        }
        return {
            name: row.holder
            for name, row in self._rows.items()
            if name.startswith(prefix) and row.expires_at > now and row.holder
        }

    @contextmanager
    def fenced(self, lease: Lease) -> Iterator[None]:
        def check() -> None:
            row = self._rows.get(lease.name)
            if row is None or (row.holder, row.token) != (lease.holder, lease.token):
                raise Conflict(f"another manager has the lease {lease.name!r} by now", data={"lease": lease.name})

        reset_token = write_fence.set(check)
        try:
            yield
        finally:
            write_fence.reset(reset_token)
