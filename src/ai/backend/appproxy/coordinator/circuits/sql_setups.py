"""Stores set-ups of circuits in SQL, and deletes expired records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, delete, insert, select, update

from ai.backend.appproxy.coordinator.circuits.model import Setup
from ai.backend.appproxy.coordinator.circuits.tables import endpoint_loads, endpoint_usage, resting_slots, setups
from ai.backend.appproxy.coordinator.workers.tables import worker_nodes
from ai.backend.infra.database import Database

_COLUMNS = setups.c


class SqlSetups:
    """Stores set-ups by the hash of their token."""

    _db: Database

    async def add_setup(self, token_hash: str, setup: Setup, expires_at: datetime) -> None:
        row = {
            "token_hash": token_hash,
            "session_id": setup.session_id,
            "document": setup,
            "expires_at": expires_at,
            "is_used": False,
        }
        await self._db.execute(insert(setups), row)

    async def setup(self, token_hash: str, now: datetime) -> Setup | None:
        is_valid = (_COLUMNS.token_hash == token_hash) & (_COLUMNS.expires_at > now) & _COLUMNS.is_used.is_(False)
        rows = await self._db.fetch(select(_COLUMNS.document).where(is_valid))
        setup: Setup | None = rows[0].document if rows else None
        return setup

    async def use_setup(self, token_hash: str, now: datetime) -> bool:
        is_valid = (_COLUMNS.token_hash == token_hash) & (_COLUMNS.expires_at > now) & _COLUMNS.is_used.is_(False)
        return await self._db.execute(update(setups).where(is_valid).values(is_used=True)) > 0

    async def release_setup(self, token_hash: str) -> None:
        await self._db.execute(update(setups).where(_COLUMNS.token_hash == token_hash).values(is_used=False))

    async def remove_setups(self, session_ids: Sequence[UUID]) -> None:
        await self._db.execute(delete(setups).where(_COLUMNS.session_id.in_(session_ids)))

    async def purge(self, now: datetime) -> None:
        def work(s: Connection) -> None:
            s.execute(delete(setups).where(_COLUMNS.expires_at <= now))
            s.execute(delete(resting_slots).where(resting_slots.c.until <= now))
            s.execute(delete(worker_nodes).where(worker_nodes.c.seen_at <= now - timedelta(days=1)))
            s.execute(delete(endpoint_usage).where(endpoint_usage.c.created_at <= now - timedelta(days=1)))
            is_node = (worker_nodes.c.worker_id == endpoint_loads.c.worker_id) & (
                worker_nodes.c.node == endpoint_loads.c.node
            )
            s.execute(delete(endpoint_loads).where(~select(worker_nodes.c.node).where(is_node).exists()))

        await self._db.run_write(work)
