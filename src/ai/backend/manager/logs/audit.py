"""Collects records of the audit trail and writes them in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.logs.model import AuditQuery, AuditRecord, StoredAuditRecord
from ai.backend.manager.logs.store import AuditStore

_MAX_PENDING = 10_000


class AuditService:
    """Collects the audit records of this process and writes them in batches."""

    def __init__(self, store: AuditStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._pending: list[AuditRecord] = []

    async def record(
        self,
        caller: Caller | None,
        operation: str,
        *,
        request_id: str,
        object_type: str,
        object_id: str | None,
        outcome: str,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Records an operation of a caller in the audit trail. Records are written in batches, so that replies are not
        delayed.
        """
        record = AuditRecord(
            at=self._clock.now(),
            request_id=request_id[:64],
            user_id=caller.user_id if caller is not None else None,
            access_key=caller.access_key if caller is not None else None,
            operation=operation[:128],
            object_type=object_type[:32],
            object_id=object_id[:128] if object_id is not None else None,
            outcome=outcome[:64],
            detail=detail or {},
        )
        self._pending.append(record)
        if len(self._pending) >= _MAX_PENDING:
            await self.flush()

    async def recent(self, caller: Caller, *, limit: int = 100) -> Sequence[AuditRecord]:
        """Returns the newest records of the audit trail. Raises Forbidden unless the caller is a superadmin."""
        require(caller, Operation.READ_AUDIT_TRAIL)
        await self.flush()
        return await self._store.recent(limit)

    async def records(self, caller: Caller, query: AuditQuery) -> Sequence[StoredAuditRecord]:
        """Returns the audit records that a query selects, newest first. Raises Forbidden unless the caller is a
        superadmin.
        """
        require(caller, Operation.READ_AUDIT_TRAIL)
        await self.flush()
        return await self._store.records(query)

    async def flush(self) -> None:
        """Writes the pending audit records, which stay pending if the store fails."""
        batch = self._pending[:]
        if batch:
            await self._store.append(batch)
            del self._pending[: len(batch)]
