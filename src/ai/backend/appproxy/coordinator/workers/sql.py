"""Stores workers in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.appproxy.coordinator.workers.model import Worker
from ai.backend.appproxy.coordinator.workers.tables import authorities, worker_nodes, workers
from ai.backend.common.appproxy_errors import NoSuchObject
from ai.backend.common.wire.appproxy import WorkerRegistration
from ai.backend.infra.database import Database
from ai.backend.infra.tls.certificates import TlsIdentity

_NODE_COLUMNS = worker_nodes.c


class SqlWorkerStore:
    """Implements :class:`ai.backend.appproxy.coordinator.workers.store.WorkerStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def put(self, registration: WorkerRegistration, now: datetime, alive_since: datetime) -> Worker:
        first_port, last_port = registration.port_range or (None, None)
        values: dict[str, Any] = {
            "frontend_mode": registration.frontend_mode,
            "protocol": registration.protocol,
            "hostname": registration.hostname,
            "use_tls": registration.use_tls,
            "api_port": registration.api_port,
            "low_port": first_port,
            "high_port": last_port,
            "wildcard_domain": registration.wildcard_domain,
            "wildcard_port": registration.wildcard_port,
            "filtered_apps_only": registration.filtered_apps_only,
            "accepted_traffics": tuple(registration.accepted_traffics),
            "app_filters": tuple(registration.app_filters),
            "updated_at": now,
        }
        has_authority = workers.c.authority == registration.authority

        def work(s: Connection) -> Worker:
            if s.execute(update(workers).where(has_authority).values(values)).rowcount == 0:
                new_values = {"id": uuid4(), "authority": registration.authority, "created_at": now, "version": 0}
                s.execute(insert(workers), {**values, **new_values})
            worker_id = s.execute(select(workers.c.id).where(has_authority)).scalar_one()
            _touch(s, worker_id, registration.node, now)
            return _worker(s.execute(_worker_query(alive_since).where(workers.c.id == worker_id)).one())

        return await self._db.run_write(work)

    async def touch(self, worker_id: UUID, node: str, now: datetime) -> None:
        def work(s: Connection) -> None:
            if s.execute(select(workers.c.id).where(workers.c.id == worker_id)).first() is None:
                raise NoSuchObject("worker")
            _touch(s, worker_id, node, now)

        await self._db.run_write(work)

    async def delete(self, worker_id: UUID) -> bool:
        return await self._db.execute(delete(workers).where(workers.c.id == worker_id)) > 0

    async def worker(self, worker_id: UUID, alive_since: datetime) -> Worker | None:
        rows = await self._db.fetch(_worker_query(alive_since).where(workers.c.id == worker_id))
        return _worker(rows[0]) if rows else None

    async def workers(self, alive_since: datetime) -> Sequence[Worker]:
        return [_worker(row) for row in await self._db.fetch(_worker_query(alive_since).order_by(workers.c.authority))]


class SqlAuthorityStore:
    """Implements :class:`ai.backend.appproxy.coordinator.workers.store.AuthorityStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def authority(self, new: TlsIdentity) -> TlsIdentity:
        query = select(authorities.c.key, authorities.c.certificate)
        rows = await self._db.fetch(query)
        if not rows:
            # another coordinator may have inserted it meanwhile
            with suppress(IntegrityError):
                await self._db.execute(insert(authorities), {"id": 1, "key": new.key, "certificate": new.certificate})
            rows = await self._db.fetch(query)
        return TlsIdentity(key=rows[0].key, certificate=rows[0].certificate)


def _touch(s: Connection, worker_id: UUID, node: str, now: datetime) -> None:
    is_node = (_NODE_COLUMNS.worker_id == worker_id) & (_NODE_COLUMNS.node == node)
    if s.execute(update(worker_nodes).where(is_node).values(seen_at=now)).rowcount == 0:
        row = {"worker_id": worker_id, "node": node, "seen_at": now, "is_linked": False, "acked": -1, "sequence": 0}
        s.execute(insert(worker_nodes), row)


def _worker_query(alive_since: datetime) -> Select[Any]:
    node_count = (
        select(func.count())
        .where(_NODE_COLUMNS.worker_id == workers.c.id, _NODE_COLUMNS.seen_at >= alive_since)
        .scalar_subquery()
    )
    return select(workers, node_count.label("nodes"))


def _worker(row: Row[Any]) -> Worker:
    fields = dict(row._mapping)
    first_port, last_port = fields.pop("low_port"), fields.pop("high_port")
    return Worker(
        **fields, port_range=(first_port, last_port) if first_port is not None and last_port is not None else None
    )
