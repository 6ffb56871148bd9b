"""Stores in SQL the parts of circuits that serve the links of workers."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, and_, insert, select, update

from ai.backend.appproxy.coordinator.circuits.model import Delivery
from ai.backend.appproxy.coordinator.circuits.tables import (
    circuits,
    endpoint_loads,
    endpoint_usage,
    resting_slots,
)
from ai.backend.appproxy.coordinator.workers.tables import worker_nodes, workers
from ai.backend.common.appproxy_errors import NoSuchObject
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import (
    Ack,
    AppMode,
    Circuit,
    CircuitUsage,
    EndpointLoad,
    EndpointLoads,
    InferenceUsage,
    UsageReport,
    UsageRow,
)
from ai.backend.infra.database import Database
from ai.backend.infra.database.prepared import Prepared

log = logging.getLogger(__name__)
_NODE_COLUMNS = worker_nodes.c
_CIRCUITS = circuits.c
_LOADS = endpoint_loads.c
_VERSIONS = Prepared(select(workers.c.id, workers.c.version))


class SqlLinks:
    """Stores, in SQL, the workers' versions, and what their nodes acknowledge and report."""

    _db: Database

    async def versions(self) -> Mapping[UUID, int]:
        return {row.id: row.version for row in await self._db.fetch(_VERSIONS)}

    async def of_worker(self, worker_id: UUID) -> Sequence[Circuit]:
        return (await self.changes(worker_id, -1))[2]

    async def changes(self, worker_id: UUID, since: int) -> tuple[int, Sequence[UUID], Sequence[Circuit]]:
        is_of_worker = _CIRCUITS.worker_id == worker_id

        def work(s: Connection) -> tuple[int, Sequence[UUID], Sequence[Circuit]]:
            # The version first: what changes in between comes again with the next one.
            version = s.execute(select(workers.c.version).where(workers.c.id == worker_id)).scalar_one_or_none()
            if version is None:
                raise NoSuchObject("worker")
            circuit_ids = s.execute(select(_CIRCUITS.id).where(is_of_worker)).scalars().all()
            changed_circuits = (
                s.execute(select(_CIRCUITS.document).where(is_of_worker, _CIRCUITS.version > since)).scalars().all()
            )
            return version, circuit_ids, changed_circuits

        return await self._db.run_read(work)

    async def link(self, worker_id: UUID, node: str, *, is_linked: bool, now: datetime) -> None:
        is_node = (_NODE_COLUMNS.worker_id == worker_id) & (_NODE_COLUMNS.node == node)
        values = {"seen_at": now, "is_linked": is_linked, "acked": -1} if is_linked else {"is_linked": False}

        def work(s: Connection) -> None:
            if s.execute(update(worker_nodes).where(is_node).values(values)).rowcount == 0 and is_linked:
                s.execute(insert(worker_nodes), {"worker_id": worker_id, "node": node, "sequence": 0, **values})

        await self._db.run_write(work)

    async def acknowledge(self, worker_id: UUID, node: str, ack: Ack) -> None:
        is_node = (_NODE_COLUMNS.worker_id == worker_id) & (_NODE_COLUMNS.node == node)

        def work(s: Connection) -> None:
            s.execute(update(worker_nodes).where(is_node).values(acked=ack.version))
            for circuit_id, reason in ack.failed.items():
                is_circuit = (_CIRCUITS.id == circuit_id) & (_CIRCUITS.worker_id == worker_id)
                s.execute(update(circuits).where(is_circuit).values(failure=reason[:500]))

        await self._db.run_write(work)

    async def delivery(self, circuit_id: UUID, alive_since: datetime) -> Delivery | None:
        def work(s: Connection) -> Delivery | None:
            query = select(_CIRCUITS.worker_id, _CIRCUITS.version, _CIRCUITS.failure).where(_CIRCUITS.id == circuit_id)
            row = s.execute(query).one_or_none()
            if row is None:
                return None
            nodes = s.execute(
                select(_NODE_COLUMNS.is_linked, _NODE_COLUMNS.acked).where(
                    _NODE_COLUMNS.worker_id == row.worker_id, _NODE_COLUMNS.seen_at >= alive_since
                )
            ).all()
            acked_versions = [node.acked for node in nodes if node.is_linked]
            return Delivery(
                worker_id=row.worker_id,
                version=row.version,
                acked=acked_versions,
                nodes=len(nodes),
                failure=row.failure,
            )

        return await self._db.run_read(work)

    async def loads(self, alive_since: datetime) -> EndpointLoads:
        def work(s: Connection) -> EndpointLoads:
            endpoint_rows = s.execute(
                select(
                    *(_CIRCUITS.id, _CIRCUITS.endpoint_id),
                    *(_CIRCUITS.requests, _CIRCUITS.tokens, _CIRCUITS.last_used),
                ).where(_CIRCUITS.app_mode == AppMode.INFERENCE, _CIRCUITS.endpoint_id.is_not(None))
            ).all()
            is_node = and_(_NODE_COLUMNS.worker_id == _LOADS.worker_id, _NODE_COLUMNS.node == _LOADS.node)
            load_rows = s.execute(
                select(endpoint_loads, _NODE_COLUMNS.is_linked, _NODE_COLUMNS.seen_at).join(worker_nodes, is_node)
            ).all()
            queued_requests: defaultdict[UUID, int] = defaultdict(int)
            open_requests: defaultdict[UUID, defaultdict[UUID, int]] = defaultdict(lambda: defaultdict(int))
            for load_row in load_rows:
                if load_row.is_linked and load_row.seen_at >= alive_since:
                    queued_requests[load_row.circuit_id] += load_row.queued
                    for session_id, request_count in load_row.in_flight.items():
                        open_requests[load_row.circuit_id][session_id] += request_count
            loads = [
                EndpointLoad(
                    endpoint_id=row.endpoint_id,
                    queued=queued_requests[row.id],
                    in_flight=dict(open_requests[row.id]),
                    requests=row.requests,
                    tokens=row.tokens,
                    last_used=row.last_used.timestamp(),
                )
                for row in endpoint_rows
            ]
            return EndpointLoads(version=sum(load_row.wakes for load_row in load_rows), loads=loads)

        return await self._db.run_read(work)

    async def usage(self, after: int, limit: int) -> Sequence[UsageRow]:
        columns = endpoint_usage.c
        query = select(columns.id, columns.document).where(columns.id > after).order_by(columns.id).limit(limit)
        return [UsageRow(id=row.id, usage=row.document) for row in await self._db.fetch(query)]

    async def count(self, worker_id: UUID, node: str, usage: UsageReport, now: datetime) -> int:
        is_node = (_NODE_COLUMNS.worker_id == worker_id) & (_NODE_COLUMNS.node == node)

        def work(s: Connection) -> int:
            is_uncounted = is_node & (_NODE_COLUMNS.sequence < usage.sequence)
            if s.execute(update(worker_nodes).where(is_uncounted).values(sequence=usage.sequence)).rowcount:
                endpoint_of_circuit = _endpoints_of(s, worker_id)
                inference_reports = _owned_reports(
                    usage, endpoint_of_circuit | _ended_endpoints_of(s, worker_id, usage)
                )
                if inference_reports:
                    s.execute(
                        insert(endpoint_usage),
                        [{"document": inference_report, "created_at": now} for inference_report in inference_reports],
                    )
                for circuit_id, tokens in _tokens_of(inference_reports).items():
                    if circuit_id in endpoint_of_circuit:
                        is_counted_circuit = _CIRCUITS.id == circuit_id
                        s.execute(update(circuits).where(is_counted_circuit).values(tokens=_CIRCUITS.tokens + tokens))
                for report in usage.circuits:
                    if report.id in endpoint_of_circuit:
                        _put_load(s, worker_id, node, report)
                    is_circuit = (_CIRCUITS.id == report.id) & (_CIRCUITS.worker_id == worker_id)
                    new_values = {"requests": _CIRCUITS.requests + report.requests}
                    s.execute(update(circuits).where(is_circuit).values(new_values))
                    last_used = _last_used(report, usage.time, now)
                    s.execute(
                        update(circuits).where(is_circuit, _CIRCUITS.last_used < last_used).values(last_used=last_used)
                    )
            sequence = s.execute(select(_NODE_COLUMNS.sequence).where(is_node)).scalar_one_or_none()
            return usage.sequence if sequence is None else sequence

        return await self._db.run_write(work)


def _endpoints_of(s: Connection, worker_id: UUID) -> dict[UUID, UUID | None]:
    """Returns the endpoint of each inference circuit of a worker, by the id of the circuit."""
    is_inference_circuit = (_CIRCUITS.worker_id == worker_id) & (_CIRCUITS.app_mode == AppMode.INFERENCE)
    return {
        row.id: row.endpoint_id
        for row in s.execute(select(_CIRCUITS.id, _CIRCUITS.endpoint_id).where(is_inference_circuit))
    }


def _ended_endpoints_of(s: Connection, worker_id: UUID, usage: UsageReport) -> dict[UUID, UUID | None]:
    """Returns, by circuit, the endpoints of circuits in a usage report that the worker had until recently."""
    circuit_ids = {report.circuit for report in usage.inference}
    rest_columns = resting_slots.c
    is_ended_circuit = (
        (rest_columns.worker_id == worker_id)
        & rest_columns.circuit_id.in_(circuit_ids)
        & rest_columns.endpoint_id.is_not(None)
    )
    query = select(rest_columns.circuit_id, rest_columns.endpoint_id).where(is_ended_circuit)
    return {row.circuit_id: row.endpoint_id for row in s.execute(query)} if circuit_ids else {}


def _owned_reports(usage: UsageReport, endpoint_of_circuit: Mapping[UUID, UUID | None]) -> list[InferenceUsage]:
    """Returns the usage reports about circuits of the reporting worker, with the endpoint of each circuit.

    Reports about other circuits are dropped, because they would be charged to other owners.
    """
    unowned_count = sum(
        report.circuit not in endpoint_of_circuit or report.endpoint not in (None, endpoint_of_circuit[report.circuit])
        for report in usage.inference
    )
    if unowned_count:
        log.warning("%d reports about circuits of others, or ones that have long ended, are not counted", unowned_count)
    return [
        replace(report, endpoint=endpoint_of_circuit[report.circuit])
        for report in usage.inference
        if report.circuit in endpoint_of_circuit and report.endpoint in (None, endpoint_of_circuit[report.circuit])
    ]


def _tokens_of(reports: Sequence[InferenceUsage]) -> dict[UUID, int]:
    """Returns the number of prompt and response tokens in the reports, by circuit."""
    tokens: defaultdict[UUID, int] = defaultdict(int)
    for report in reports:
        tokens[report.circuit] += report.prompt_tokens + report.output_tokens
    return {circuit_id: token_count for circuit_id, token_count in tokens.items() if token_count}


def _put_load(s: Connection, worker_id: UUID, node: str, report: CircuitUsage) -> None:
    """Stores an endpoint's open and waiting requests at one node, and counts the requests that began to wait."""
    is_load = and_(_LOADS.worker_id == worker_id, _LOADS.node == node, _LOADS.circuit_id == report.id)
    load_values = {"queued": report.queued, "in_flight": dict(report.in_flight)}
    updated_values = {**load_values, "wakes": _LOADS.wakes + report.waits}
    if s.execute(update(endpoint_loads).where(is_load).values(updated_values)).rowcount == 0:
        key_values = {"worker_id": worker_id, "node": node, "circuit_id": report.id}
        s.execute(insert(endpoint_loads), {**key_values, **load_values, "wakes": report.waits})


def _last_used(report: CircuitUsage, sent_at: float, now: datetime) -> datetime:
    """Returns the time of a circuit's last use by the coordinator's clock; reports give it by the worker's clock.

    A circuit with open connections is in use now.
    """
    age_s = 0.0 if report.open else max(0.0, sent_at - report.last_used)
    return now - timedelta(seconds=age_s) if age_s < 10**9 else datetime.fromtimestamp(0, UTC)
