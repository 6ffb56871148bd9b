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

        def transact(conn: Connection) -> list[UsedKernel]:
            rows: list[Row[Any]] = []
            if has_ended:
                rows += conn.execute(_select_ended(query, after).limit(limit)).all()
            if len(rows) < limit:
                rows += conn.execute(
                    _select_running(query, None if has_ended else after).limit(limit - len(rows))
                ).all()
            return [UsedKernel(**row._mapping) for row in rows]

        return await self._db.run_read(transact)

    async def claimed(self, query: UsageQuery) -> Sequence[UsedClaim]:
        span_columns, claim_columns = sessions_tables.claim_spans.c, sessions_tables.device_claims.c
        shared_names = ("domain_name", "group_id", "group_name")
        ended_query = select(*(span_columns[name] for name in (*shared_names, "slots", "started_at", "terminated_at")))
        held_query = select(
            *(claim_columns[name] for name in shared_names),
            claim_columns.occupied_slots.label("slots"),
            claim_columns.allocated_at.label("started_at"),
            null().label("terminated_at"),
        )

        def transact(conn: Connection) -> list[UsedClaim]:
            ended_in_period = ended_query.where(
                span_columns.started_at < query.end,
                span_columns.terminated_at >= query.start,
                *_owner_conditions(span_columns, query),
            )
            held_in_period = held_query.where(
                claim_columns.allocated_at < query.end, *_owner_conditions(claim_columns, query)
            )
            rows = [*conn.execute(ended_in_period).all(), *conn.execute(held_in_period).all()]
            return [UsedClaim(**row._mapping) for row in rows]

        return await self._db.run_read(transact)


def _owner_conditions(columns: Any, query: UsageQuery) -> list[ColumnElement[bool]]:
    """Returns the SQL conditions of a query on groups, domain and user."""
    conditions: list[ColumnElement[bool]] = []
    if query.group_ids is not None:
        conditions.append(columns.group_id.in_(query.group_ids))
    if query.domain_name is not None:
        conditions.append(columns.domain_name == query.domain_name)
    if query.user_id is not None:
        conditions.append(columns.user_id == query.user_id)
    return conditions


def _select_kernels(query: UsageQuery) -> Select[Any]:
    kernel, session = sessions_tables.kernels.c, sessions_tables.sessions.c
    conditions: list[ColumnElement[bool]] = [kernel.started_at < query.end, *_owner_conditions(session, query)]
    columns = (
        *(
            kernel.id.label("kernel_id"),
            kernel.session_id,
            (kernel.id == kernel.session_id).label("is_main"),
            kernel.image,
            kernel.agent,
        ),
        *(
            kernel.container_id,
            kernel.status,
            kernel.status_info,
            kernel.requested_slots.label("slots"),
            kernel.last_stat,
            kernel.created_at,
        ),
        *(
            kernel.started_at,
            kernel.terminated_at,
            session.name,
            session.access_key,
            session.user_id,
            session.user_email.label("email"),
        ),
        *(session.domain_name, session.group_id, session.group_name, session.cluster_mode, session.mounts),
    )
    return select(*columns).join(sessions_tables.sessions, session.id == kernel.session_id).where(*conditions)


def _select_ended(query: UsageQuery, cursor: Cursor | None) -> Select[Any]:
    kernel = sessions_tables.kernels.c
    condition = kernel.terminated_at >= query.start
    if cursor is not None:
        last_ended_at = cursor.terminated_at  # written so that the index is used from here
        condition = and_(
            kernel.terminated_at >= last_ended_at,
            or_(kernel.terminated_at > last_ended_at, kernel.id > cursor.kernel_id),
        )
    return (
        _select_kernels(query)
        .where(kernel.terminated_at.is_not(None), condition)
        .order_by(kernel.terminated_at, kernel.id)
    )


def _select_running(query: UsageQuery, cursor: Cursor | None) -> Select[Any]:
    kernel = sessions_tables.kernels.c
    kernels_query = (
        _select_kernels(query)
        .where(kernel.terminated_at.is_(None), kernel.status != KernelStatus.PENDING)
        .order_by(kernel.id)
    )
    return kernels_query.where(kernel.id > cursor.kernel_id) if cursor is not None else kernels_query
