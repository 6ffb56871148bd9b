"""Stores circuits in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.appproxy.coordinator.circuits.model import SlotTaken, StoredCircuit
from ai.backend.appproxy.coordinator.circuits.sql_links import SqlLinks
from ai.backend.appproxy.coordinator.circuits.sql_setups import SqlSetups
from ai.backend.appproxy.coordinator.circuits.tables import circuit_sessions, circuits, resting_slots, setups
from ai.backend.appproxy.coordinator.workers.tables import workers
from ai.backend.common.appproxy_errors import NoSuchObject
from ai.backend.common.wire.appproxy import AppMode, Circuit, FrontendMode, Slot
from ai.backend.infra.database import Database

_COLUMNS = circuits.c
_STORED = select(_COLUMNS.document, _COLUMNS.version, _COLUMNS.requests, _COLUMNS.last_used, _COLUMNS.failure)
_IS_INTERACTIVE = _COLUMNS.app_mode == AppMode.INTERACTIVE


class SqlCircuitStore(SqlLinks, SqlSetups):
    """Implements :class:`ai.backend.appproxy.coordinator.circuits.store.CircuitStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, circuit: Circuit, now: datetime) -> None:
        def work(s: Connection) -> None:
            _check_reservation(s, circuit, now)
            version = _increment_version(s, circuit.worker)
            row = {
                "id": circuit.id,
                "worker_id": circuit.worker,
                "port": circuit.port,
                "subdomain": circuit.subdomain,
                "app": circuit.app,
                "app_mode": circuit.app_mode,
                "user_id": circuit.user_id,
                "endpoint_id": circuit.endpoint_id,
                "document": circuit,
                "version": version,
                "requests": 0,
                "tokens": 0,
                "last_used": now,
            }
            s.execute(insert(circuits), row)
            _put_sessions(s, circuit)

        try:
            await self._db.run_write(work)
        except IntegrityError:
            raise SlotTaken from None

    async def replace(self, circuit: Circuit) -> None:
        def work(s: Connection) -> None:
            version = _increment_version(s, circuit.worker)
            values = {"document": circuit, "version": version, "failure": None}
            if s.execute(update(circuits).where(_COLUMNS.id == circuit.id).values(values)).rowcount == 0:
                raise NoSuchObject("circuit")
            s.execute(delete(circuit_sessions).where(circuit_sessions.c.circuit_id == circuit.id))
            _put_sessions(s, circuit)

        await self._db.run_write(work)

    async def remove(self, ids: Sequence[UUID], *, now: datetime, rest_until: datetime) -> Sequence[UUID]:
        def work(s: Connection) -> Sequence[UUID]:
            rows = s.execute(select(circuits).where(_COLUMNS.id.in_(ids))).all()
            for row in rows:
                _reserve_slot(s, row, rest_until)
            s.execute(delete(circuits).where(_COLUMNS.id.in_([row.id for row in rows])))
            for worker_id in sorted({row.worker_id for row in rows}):
                _increment_version(s, worker_id)
            return [row.id for row in rows]

        return await self._db.run_write(work) if ids else []

    async def circuit(self, circuit_id: UUID) -> StoredCircuit | None:
        return _first(await self._db.fetch(_STORED.where(_COLUMNS.id == circuit_id)))

    async def of_endpoint(self, endpoint_id: UUID) -> StoredCircuit | None:
        return _first(await self._db.fetch(_STORED.where(_COLUMNS.endpoint_id == endpoint_id)))

    async def of_session(self, session_id: UUID, app: str) -> Sequence[StoredCircuit]:
        circuit_ids_query = select(circuit_sessions.c.circuit_id).where(circuit_sessions.c.session_id == session_id)
        rows = await self._db.fetch(
            _STORED.where(_COLUMNS.id.in_(circuit_ids_query), _COLUMNS.app == app, _IS_INTERACTIVE)
        )
        return [_stored_circuit(row) for row in rows]

    async def ids_of_sessions(self, session_ids: Sequence[UUID]) -> Sequence[UUID]:
        circuit_ids_query = select(circuit_sessions.c.circuit_id).where(circuit_sessions.c.session_id.in_(session_ids))
        rows = await self._db.fetch(select(_COLUMNS.id).where(_COLUMNS.id.in_(circuit_ids_query), _IS_INTERACTIVE))
        return [row.id for row in rows]

    async def sessions(self) -> Sequence[UUID]:
        session_ids_query = (
            select(circuit_sessions.c.session_id)
            .join(circuits, _COLUMNS.id == circuit_sessions.c.circuit_id)
            .where(_IS_INTERACTIVE)
        )
        rows = await self._db.fetch(session_ids_query.union(select(setups.c.session_id)))
        return [row.session_id for row in rows]

    async def unused_since(self, moment: datetime) -> Sequence[UUID]:
        rows = await self._db.fetch(select(_COLUMNS.id).where(_IS_INTERACTIVE, _COLUMNS.last_used < moment))
        return [row.id for row in rows]

    async def circuits_without_slot(self) -> Sequence[UUID]:
        is_slot_missing = or_(
            and_(_COLUMNS.port.is_(None), workers.c.frontend_mode == FrontendMode.PORT),
            and_(_COLUMNS.subdomain.is_(None), workers.c.frontend_mode == FrontendMode.WILDCARD),
            _COLUMNS.port < workers.c.low_port,
            _COLUMNS.port > workers.c.high_port,
        )
        query = select(_COLUMNS.id).join(workers, workers.c.id == _COLUMNS.worker_id).where(is_slot_missing)
        return [row.id for row in await self._db.fetch(query)]

    async def slots(self, worker_id: UUID | None = None) -> Mapping[UUID, Sequence[Slot]]:
        query = select(_COLUMNS.worker_id, _COLUMNS.port, _COLUMNS.subdomain, _COLUMNS.id)
        if worker_id is not None:
            query = query.where(_COLUMNS.worker_id == worker_id)
        slots_of_worker: dict[UUID, list[Slot]] = defaultdict(list)
        for row in await self._db.fetch(query.order_by(_COLUMNS.port, _COLUMNS.subdomain)):
            frontend_mode = FrontendMode.WILDCARD if row.port is None else FrontendMode.PORT
            slot = Slot(
                frontend_mode=frontend_mode, in_use=True, port=row.port, subdomain=row.subdomain, circuit_id=row.id
            )
            slots_of_worker[row.worker_id].append(slot)
        return slots_of_worker

    async def resting_ports(self, worker_id: UUID, now: datetime, user_id: UUID | None) -> frozenset[int]:
        rest_columns = resting_slots.c
        query = select(rest_columns.slot).where(
            rest_columns.worker_id == worker_id,
            rest_columns.until > now,
            or_(rest_columns.user_id.is_(None), rest_columns.user_id != user_id),
        )
        return frozenset(int(row.slot) for row in await self._db.fetch(query))


def _increment_version(s: Connection, worker_id: UUID) -> int:
    is_worker = workers.c.id == worker_id
    if s.execute(update(workers).where(is_worker).values(version=workers.c.version + 1)).rowcount == 0:
        raise NoSuchObject("worker")
    version: int = s.execute(select(workers.c.version).where(is_worker)).scalar_one()
    return version


def _put_sessions(s: Connection, circuit: Circuit) -> None:
    rows = [{"circuit_id": circuit.id, "session_id": session_id} for session_id in dict.fromkeys(circuit.session_ids)]
    if rows:
        s.execute(insert(circuit_sessions), rows)


def _slot_of(circuit: Circuit | Row[Any]) -> str:
    return str(circuit.port) if circuit.port is not None else str(circuit.subdomain)


def _check_reservation(s: Connection, circuit: Circuit, now: datetime) -> None:
    """Raises SlotTaken if the slot of a new circuit is reserved for another user. Otherwise ends the reservation.

    A slot is reserved for the user of a past circuit; a subdomain name is reserved for ever.
    """
    rest_columns = resting_slots.c
    is_slot = (rest_columns.worker_id == circuit.worker) & (rest_columns.slot == _slot_of(circuit))
    rest_row = s.execute(select(rest_columns.user_id, rest_columns.until).where(is_slot)).one_or_none()
    if rest_row is None:
        return
    is_over = rest_row.until is not None and rest_row.until <= now
    if not is_over and (rest_row.user_id is None or rest_row.user_id != circuit.user_id):
        raise SlotTaken
    s.execute(delete(resting_slots).where(is_slot))


def _reserve_slot(s: Connection, row: Row[Any], until: datetime) -> None:
    values = {
        "worker_id": row.worker_id,
        "slot": _slot_of(row),
        "user_id": row.user_id,
        "until": until if row.port is not None else None,
        "circuit_id": row.id,
        "endpoint_id": row.endpoint_id,
    }
    s.execute(insert(resting_slots), values)


def _stored_circuit(row: Any) -> StoredCircuit:
    return StoredCircuit(
        circuit=row.document,
        version=row.version,
        requests=row.requests,
        last_used=row.last_used,
        failure=row.failure,
    )


def _first(rows: Iterable[Any]) -> StoredCircuit | None:
    return next((_stored_circuit(row) for row in rows), None)
