"""Stores device claims in SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import StaleVersion
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import LIVE_SESSION_STATUSES, ClaimStatus
from ai.backend.infra.database import Database
from ai.backend.infra.database.prepared import IsOneOf, Prepared
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions import tables
from ai.backend.manager.sessions.claims.model import (
    Claim,
    ClaimChange,
    ClaimQuery,
    ClaimUser,
    claim_deltas,
    claim_exists,
    no_such_claim,
    too_many_claims,
)
from ai.backend.manager.sessions.sql_bulk import move_slots

_CLAIM_FIELDS = tuple(field for field in Claim.__struct_fields__)
_CLAIM, _SESSION = tables.device_claims.c, tables.sessions.c
_IS_HELD = _CLAIM.agent.is_not(None)
_IS_LIVE = _SESSION.status.in_(LIVE_SESSION_STATUSES)  # one by one, so that the index of statuses is searched

_SELECT_HELD = Prepared(select(tables.device_claims).where(_IS_HELD))
_SELECT_ON_AGENTS = Prepared(select(tables.device_claims).where(IsOneOf(_CLAIM.agent, "agents")))


def _row(claim: Claim) -> dict[str, Any]:
    return {name: getattr(claim, name) for name in _CLAIM_FIELDS}


def _claim(row: Any) -> Claim:
    return Claim(**{name: getattr(row, name) for name in _CLAIM_FIELDS})


def write_claims(conn: Connection, changes: Sequence[ClaimChange]) -> None:
    """Updates claims in the caller's transaction. The caller updates the slots of agents. Raises StaleVersion."""
    for change in changes:
        values = {**_row(change.new), "version": change.old.version + 1}
        is_current = (_CLAIM.id == change.old.id, _CLAIM.version == change.old.version)
        if conn.execute(update(tables.device_claims).where(*is_current).values(values)).rowcount != 1:
            raise StaleVersion(f"claim {change.old.id} is not at version {change.old.version} any more")
        if (ended_span := _ended_span_row(change)) is not None:
            conn.execute(insert(tables.claim_spans), ended_span)
        if change.new.status is ClaimStatus.DELETED:
            live_sessions = select(_SESSION.id).where(_IS_LIVE, _SESSION.claim_id == change.old.id).limit(1)
            if conn.execute(live_sessions).first() is not None:
                raise StaleVersion(f"a session names the claim {change.old.id}")
            conn.execute(delete(tables.device_claims).where(_CLAIM.id == change.old.id))


def _ended_span_row(change: ClaimChange) -> dict[str, Any] | None:
    """Returns the row of an allocation that has ended, for reports of usage."""
    old_claim = change.old
    if old_claim.allocated_at is None or change.new.status.holds_devices:
        return None
    owner_fields = {name: getattr(old_claim, name) for name in ("domain_name", "group_id", "group_name", "user_id")}
    ended_at = max(change.new.status_changed, old_claim.allocated_at)
    span_times = {"started_at": old_claim.allocated_at, "terminated_at": ended_at}
    return {**owner_fields, **span_times, "claim_id": old_claim.id, "slots": old_claim.occupied_slots}


def check_named_claims(conn: Connection, claim_ids: Collection[UUID]) -> None:
    """Raises NotFound if one of these claims does not exist or is being deleted, and locks the rows of the claims."""
    rows = conn.execute(select(_CLAIM.id, _CLAIM.is_deleting).where(_CLAIM.id.in_(claim_ids)).with_for_update()).all()
    if {row.id for row in rows if not row.is_deleting} != set(claim_ids):
        raise no_such_claim()


def held_claims(conn: Connection, agent_ids: Collection[AgentId] | None = None) -> list[Claim]:
    """Returns the claims that hold devices of the given agents, or of all agents if ``agent_ids`` is None."""
    rows = _SELECT_HELD.all(conn) if agent_ids is None else _SELECT_ON_AGENTS.all(conn, {"agents": agent_ids})
    return [_claim(row) for row in rows]


def occupied_by_claims(conn: Connection, *conditions: ColumnElement[bool]) -> ResourceSlot:
    """Returns the slots that claims hold."""
    slots_query = select(_CLAIM.occupied_slots).where(_IS_HELD, *conditions)
    return sum(conn.execute(slots_query).scalars(), ResourceSlot())


class SqlClaims:
    """Implements :class:`ai.backend.manager.sessions.claims.store.ClaimStore`."""

    _db: Database

    async def insert_claim(self, claim: Claim, *, max_claims: int | None) -> None:
        def transact(conn: Connection) -> None:
            conn.execute(insert(tables.device_claims), _row(claim))
            count_query = (
                select(func.count()).select_from(tables.device_claims).where(_CLAIM.access_key == claim.access_key)
            )
            if max_claims is not None and conn.execute(count_query).scalar_one() > max_claims:
                raise too_many_claims(max_claims)

        try:
            await self._db.run_write(transact)
        except IntegrityError as e:
            raise claim_exists(claim.name) from e

    async def save_claims(self, changes: Sequence[ClaimChange]) -> None:
        def transact(conn: Connection) -> None:
            write_claims(conn, changes)
            move_slots(conn, claim_deltas(changes))

        await self._db.run_write(transact)

    async def claims(self, query: ClaimQuery) -> Page[Claim]:
        conditions: list[ColumnElement[bool]] = [
            column == value
            for column, value in (
                (_CLAIM.user_id, query.user_id),
                (_CLAIM.group_id, query.group_id),
                (_CLAIM.domain_name, query.domain_name),
                (_CLAIM.name, query.name),
            )
            if value is not None
        ]
        if query.ids is not None:
            conditions.append(_CLAIM.id.in_(query.ids))
        if query.agents is not None:
            conditions.append(_CLAIM.agent.in_(query.agents))
        if query.is_held:
            conditions.append(_IS_HELD)
        page_query = select(tables.device_claims).where(*conditions).order_by(_CLAIM.created_at.desc(), _CLAIM.id)
        count_query = select(func.count()).select_from(tables.device_claims).where(*conditions)

        def transact(conn: Connection) -> Page[Claim]:
            rows = conn.execute(page_query.limit(query.limit).offset(query.offset)).all()
            return Page(items=[_claim(row) for row in rows], total_count=conn.execute(count_query).scalar_one())

        return await self._db.run_read(transact)

    async def claims_by_id(self, claim_ids: Collection[UUID]) -> list[Claim]:
        if not claim_ids:
            return []
        query = select(tables.device_claims).where(_CLAIM.id.in_(claim_ids))
        return await self._db.run_read(lambda conn: [_claim(row) for row in conn.execute(query).all()])

    async def claims_on(self, agent_id: AgentId) -> list[Claim]:
        return await self._db.run_read(lambda conn: held_claims(conn, [agent_id]))

    async def claim_users(self, claim_ids: Collection[UUID]) -> list[ClaimUser]:
        if not claim_ids:
            return []
        query = (
            select(_SESSION.claim_id, _SESSION.id, _SESSION.name, _SESSION.status)
            .where(_IS_LIVE, _SESSION.claim_id.in_(claim_ids))
            .order_by(_SESSION.created_at, _SESSION.id)
        )
        rows = await self._db.run_read(lambda conn: conn.execute(query).all())
        return [ClaimUser(claim_id=row.claim_id, session_id=row.id, name=row.name, status=row.status) for row in rows]
