"""Reads the history of kernels and device claims in SQL. The index ``ix_kernels_span`` finds the kernels of a period in
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, null, or_, select

from ai.backend.common.states import KernelStatus
from ai.backend.infra.database import Database
from ai.backend.manager.sessions import tables as sessions_tables
from ai.backend.manager.usage.model import Cursor, UsageQuery, UsedClaim, UsedKernel


class SqlUsageStore:
    """Implements :class:`ai.backend.manager.usage.service.UsageStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def used(self, query: UsageQuery, *, after: Cursor | None = None, limit: int = 1_000) -> Sequence[UsedKernel]:
        has_ended = after is None or after.terminated_at is not None

        def work(conn: Connection) -> list[UsedKernel]:
            rows: list[Row[Any]] = []
            if has_ended:
                rows += conn.execute(_ended(query, after).limit(limit)).all()
            if len(rows) < limit:
                rows += conn.execute(_running(query, None if has_ended else after).limit(limit - len(rows))).all()
            return [UsedKernel(**row._mapping) for row in rows]

        return await self._db.run_read(work)

    async def claimed(self, query: UsageQuery) -> Sequence[UsedClaim]:
        ended, held = sessions_tables.claim_spans.c, sessions_tables.device_claims.c
        shared = ("domain_name", "group_id", "group_name")
        of_ended = select(*(ended[name] for name in (*shared, "slots", "started_at", "terminated_at")))
        of_held = select(
            *(held[name] for name in shared),
            held.occupied_slots.label("slots"),
            held.allocated_at.label("started_at"),
            null().label("terminated_at"),
        )

        def work(conn: Connection) -> list[UsedClaim]:
            past = of_ended.where(
                ended.started_at < query.end, ended.terminated_at >= query.start, *_owners(ended, query)
            )
            present = of_held.where(held.allocated_at < query.end, *_owners(held, query))
            rows = [*conn.execute(past).all(), *conn.execute(present).all()]
            return [UsedClaim(**row._mapping) for row in rows]

        return await self._db.run_read(work)


def _owners(columns: Any, query: UsageQuery) -> list[ColumnElement[bool]]:
    """Returns the SQL conditions of a query on groups, domain and user."""
    conditions: list[ColumnElement[bool]] = []
    if query.group_ids is not None:
        conditions.append(columns.group_id.in_(query.group_ids))
    if query.domain_name is not None:
        conditions.append(columns.domain_name == query.domain_name)
    if query.user_id is not None:
        conditions.append(columns.user_id == query.user_id)
    return conditions


def _kernels(query: UsageQuery) -> Select[Any]:
    k, c = sessions_tables.kernels.c, sessions_tables.sessions.c
    conditions: list[ColumnElement[bool]] = [k.started_at < query.end, *_owners(c, query)]
    columns = (
        *(k.id.label("kernel_id"), k.session_id, (k.id == k.session_id).label("is_main"), k.image, k.agent),
        *(k.container_id, k.status, k.status_info, k.requested_slots.label("slots"), k.last_stat, k.created_at),
        *(k.started_at, k.terminated_at, c.name, c.access_key, c.user_id, c.user_email.label("email")),
        *(c.domain_name, c.group_id, c.group_name, c.cluster_mode, c.mounts),
    )
    return select(*columns).join(sessions_tables.sessions, c.id == k.session_id).where(*conditions)


def _ended(query: UsageQuery, after: Cursor | None) -> Select[Any]:
    k = sessions_tables.kernels.c
    condition = k.terminated_at >= query.start
    if after is not None:
        at = after.terminated_at  # written so that the index is used from here
        condition = and_(k.terminated_at >= at, or_(k.terminated_at > at, k.id > after.kernel_id))
    return _kernels(query).where(k.terminated_at.is_not(None), condition).order_by(k.terminated_at, k.id)


def _running(query: UsageQuery, after: Cursor | None) -> Select[Any]:
    k = sessions_tables.kernels.c
    selected = _kernels(query).where(k.terminated_at.is_(None), k.status != KernelStatus.PENDING).order_by(k.id)
    return selected.where(k.id > after.kernel_id) if after is not None else selected
