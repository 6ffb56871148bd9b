"""Stores model services in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, Table, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ai.backend.common.errors import StaleVersion
from ai.backend.common.serving import EndpointStatus
from ai.backend.common.structs import replace
from ai.backend.infra.database import Database
from ai.backend.infra.database.rows import put_row, row_of
from ai.backend.manager.query.model import Page
from ai.backend.manager.query.sql import compile_filter, compile_order
from ai.backend.manager.secrets.sealer import Sealer, open_environ, seal_environ
from ai.backend.manager.serving import tables
from ai.backend.manager.serving.model import (
    AutoscalingRule,
    Endpoint,
    EndpointQuery,
    EndpointToken,
    Replica,
    Revision,
    RevisionSpec,
    Service,
    ServingChange,
    ServingEvent,
)
from ai.backend.manager.serving.store import name_taken, too_many_endpoints

_ENDPOINTS, _EVENTS, _TOKENS = tables.endpoints, tables.endpoint_events, tables.endpoint_tokens
_REVISIONS, _REPLICAS = tables.endpoint_revisions, tables.endpoint_replicas
_RULES = tables.endpoint_scaling_rules
_HIDDEN_FIELDS = frozenset({"policy", "published", "scaled", "scaling", "version"})


class SqlServingStore:
    """Implements :class:`ai.backend.manager.serving.store.ServingStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def insert(self, service: Service, event: ServingEvent, *, limit: int) -> None:
        endpoint = service.endpoint

        def transact(conn: Connection) -> None:
            is_own = (_ENDPOINTS.c.user_id == endpoint.user_id, _ENDPOINTS.c.active_name.is_not(None))
            if conn.execute(select(func.count()).select_from(_ENDPOINTS).where(*is_own)).scalar_one() >= limit:
                raise too_many_endpoints(limit)
            conn.execute(insert(_ENDPOINTS), row_of(endpoint))
            _write(conn, service.revisions, service.replicas, service.rules, [event])

        try:
            await self._db.run_write(transact)
        except IntegrityError:
            raise name_taken(endpoint.name) from None

    async def save(self, change: ServingChange) -> None:
        endpoint = change.endpoint

        def transact(conn: Connection) -> None:
            is_unchanged = (_ENDPOINTS.c.id == endpoint.id, _ENDPOINTS.c.version == change.version)
            row = {**row_of(endpoint), "version": change.version + 1}
            if conn.execute(update(_ENDPOINTS).where(*is_unchanged).values(row)).rowcount == 0:
                raise StaleVersion(f"endpoint {endpoint.id} was changed meanwhile")
            for table in (_REVISIONS, _REPLICAS, _RULES):
                if change.dropped:
                    conn.execute(delete(table).where(table.c.id.in_(change.dropped)))
            _write(conn, change.revisions, change.replicas, change.rules, change.events)

        await self._db.run_write(transact)

    async def get(self, endpoint_id: UUID) -> Service | None:
        services = await self._db.run_read(lambda conn: _load(conn, [_ENDPOINTS.c.id == endpoint_id]))
        return services[0] if services else None

    async def get_by_rule(self, rule_id: UUID) -> Service | None:
        endpoint_of_rule = select(_RULES.c.endpoint_id).where(_RULES.c.id == rule_id)
        services = await self._db.run_read(lambda conn: _load(conn, [_ENDPOINTS.c.id.in_(endpoint_of_rule)]))
        return services[0] if services else None

    async def live(self) -> list[Service]:
        is_live = _ENDPOINTS.c.status != EndpointStatus.DESTROYED
        return await self._db.run_read(lambda conn: _load(conn, [is_live]))

    async def search(self, query: EndpointQuery) -> Page[Service]:
        columns = _ENDPOINTS.c
        conditions: list[ColumnElement[bool]] = [
            column == value
            for column, value in (
                (columns.user_id, query.user_id),
                (columns.access_key, query.access_key),
                (columns.domain_name, query.domain_name),
                (columns.group_id, query.group_id),
                (columns.name, query.name),
            )
            if value is not None
        ]
        if not query.destroyed:
            conditions.append(columns.status != EndpointStatus.DESTROYED)
        conditions += compile_filter(_ENDPOINTS, query.filter, hidden=_HIDDEN_FIELDS)
        default_order = (columns.created_at.desc(), columns.id)
        order = compile_order(_ENDPOINTS, query.order, default_order, hidden=_HIDDEN_FIELDS)

        def transact(conn: Connection) -> Page[Service]:
            total = conn.execute(select(func.count()).select_from(_ENDPOINTS).where(*conditions)).scalar_one()
            selection = select(columns.id).where(*conditions).order_by(*order).limit(query.limit).offset(query.offset)
            endpoint_ids = list(conn.execute(selection).scalars())
            service_of_id = {service.endpoint.id: service for service in _load(conn, [columns.id.in_(endpoint_ids)])}
            return Page(items=[service_of_id[endpoint_id] for endpoint_id in endpoint_ids], total_count=total)

        return await self._db.run_read(transact)

    async def history(self, endpoint_id: UUID, *, limit: int, offset: int = 0) -> list[ServingEvent]:
        events_of_endpoint = select(_EVENTS).where(_EVENTS.c.endpoint_id == endpoint_id)
        rows = await self._db.fetch(events_of_endpoint.order_by(_EVENTS.c.id.desc()).limit(limit).offset(offset))
        return [ServingEvent(**_row_values(row, "id")) for row in rows]

    async def add_token(self, token: EndpointToken) -> None:
        await self._db.run_write(lambda conn: conn.execute(insert(_TOKENS), row_of(token)))

    async def tokens(self, endpoint_id: UUID, *, limit: int, offset: int = 0) -> Page[EndpointToken]:
        is_of_endpoint = _TOKENS.c.endpoint_id == endpoint_id
        page = select(_TOKENS).where(is_of_endpoint).order_by(_TOKENS.c.created_at.desc(), _TOKENS.c.id)

        def transact(conn: Connection) -> Page[EndpointToken]:
            total = conn.execute(select(func.count()).select_from(_TOKENS).where(is_of_endpoint)).scalar_one()
            rows = conn.execute(page.limit(limit).offset(offset))
            return Page(items=[EndpointToken(**row._mapping) for row in rows], total_count=total)

        return await self._db.run_read(transact)

    async def purge(self, *, before: datetime) -> int:
        def transact(conn: Connection) -> int:
            is_purgeable = (_ENDPOINTS.c.status == EndpointStatus.DESTROYED, _ENDPOINTS.c.destroyed_at < before)
            ended_endpoints = select(_ENDPOINTS.c.id).where(*is_purgeable)
            for table in (_REVISIONS, _REPLICAS, _RULES, _TOKENS, _EVENTS, tables.endpoint_usage):
                conn.execute(delete(table).where(table.c.endpoint_id.in_(ended_endpoints)))
            conn.execute(delete(_ENDPOINTS).where(*is_purgeable))
            return int(conn.execute(delete(_EVENTS).where(_EVENTS.c.at < before)).rowcount)

        return await self._db.run_write(transact)


def _write(
    conn: Connection,
    revisions: Iterable[Revision],
    replicas: Iterable[Replica],
    rules: Iterable[AutoscalingRule],
    events: Sequence[ServingEvent],
) -> None:
    for revision in revisions:
        put_row(conn, _REVISIONS, "id", row_of(revision))
    for replica in replicas:
        put_row(conn, _REPLICAS, "id", row_of(replica))
    for rule in rules:
        put_row(conn, _RULES, "id", row_of(rule))
    if events:
        conn.execute(insert(_EVENTS), [row_of(event) for event in events])


class RevisionSecrets:
    """Gives access to the sealed environment variables of revisions, as
    :class:`ai.backend.manager.maintenance.sql.FeatureSecrets`.
    """

    def sealed_texts(self, conn: Connection) -> Iterable[str]:
        return [text for _, spec in self._specs(conn) for text in spec.sealed_environ.values()]

    def seal(self, conn: Connection, sealer: Sealer) -> int:
        old_specs = [
            row for row in self._specs(conn) if not all(map(sealer.is_current, row[1].sealed_environ.values()))
        ]
        for revision_id, spec in old_specs:
            environ = seal_environ(sealer, open_environ(sealer, spec.sealed_environ))
            self._write_spec(conn, revision_id, spec, environ)
        return len(old_specs)

    def forget(self, conn: Connection, sealer: Sealer) -> None:
        for revision_id, spec in self._specs(conn):
            if any(sealer.missing_key_id(text) is not None for text in spec.sealed_environ.values()):
                self._write_spec(conn, revision_id, spec, {})

    def _specs(self, conn: Connection) -> list[tuple[UUID, RevisionSpec]]:
        return [(row.id, row.spec) for row in conn.execute(select(_REVISIONS.c.id, _REVISIONS.c.spec))]

    def _write_spec(self, conn: Connection, revision_id: UUID, spec: RevisionSpec, environ: dict[str, str]) -> None:
        changed_spec = replace(spec, sealed_environ=environ)
        conn.execute(update(_REVISIONS).where(_REVISIONS.c.id == revision_id).values(spec=changed_spec))


def _load(conn: Connection, conditions: Sequence[ColumnElement[bool]]) -> list[Service]:
    """Returns the endpoints that meet the conditions, with their revisions, replicas and rules, oldest first."""
    order = (_ENDPOINTS.c.created_at, _ENDPOINTS.c.id)
    endpoints = [
        Endpoint(**row._mapping) for row in conn.execute(select(_ENDPOINTS).where(*conditions).order_by(*order))
    ]
    if not endpoints:
        return []
    endpoint_ids = select(_ENDPOINTS.c.id).where(*conditions)
    revisions = _rows_by_endpoint(conn, _REVISIONS, endpoint_ids, _REVISIONS.c.number.desc())
    replicas = _rows_by_endpoint(conn, _REPLICAS, endpoint_ids, _REPLICAS.c.created_at)
    rules = _rows_by_endpoint(conn, _RULES, endpoint_ids, _RULES.c.created_at)
    return [
        Service(
            endpoint=endpoint,
            revisions=tuple(Revision(**row._mapping) for row in revisions[endpoint.id]),
            replicas=tuple(Replica(**row._mapping) for row in replicas[endpoint.id]),
            rules=tuple(AutoscalingRule(**row._mapping) for row in rules[endpoint.id]),
        )
        for endpoint in endpoints
    ]


def _rows_by_endpoint(conn: Connection, table: Table, endpoint_ids: Any, order: Any) -> dict[UUID, list[Row[Any]]]:
    rows: dict[UUID, list[Row[Any]]] = defaultdict(list)
    for row in conn.execute(select(table).where(table.c.endpoint_id.in_(endpoint_ids)).order_by(order, table.c.id)):
        rows[row.endpoint_id].append(row)
    return rows


def _row_values(row: Row[Any], *left_out: str) -> dict[str, Any]:
    return {name: value for name, value in row._mapping.items() if name not in left_out}
