"""Routes of circuits, for managers and workers (spec 03-14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ai.backend.appproxy.coordinator.circuits.model import StoredCircuit
from ai.backend.appproxy.coordinator.circuits.schemas import (
    BulkRemoval,
    CircuitList,
    CircuitStatistics,
    SessionList,
    SessionRemoval,
)
from ai.backend.appproxy.coordinator.circuits.service import CircuitService
from ai.backend.appproxy.coordinator.workers.schemas import Success
from ai.backend.appproxy.coordinator.workers.service import id_of
from ai.backend.common.appproxy_errors import NoSuchObject
from ai.backend.common.wire.appproxy import AppMode, Circuit
from ai.backend.infra.http.routes import Call, route


@dataclass(slots=True)
class CircuitsApi:
    """Routes of circuits."""

    circuits: CircuitService

    @route("GET", "/api/circuit/{circuit_id}")
    async def get(self, call: Call) -> Circuit:
        """Returns a circuit."""
        return (await self._stored(call)).circuit

    @route("GET", "/api/circuit/{circuit_id}/statistics")
    async def statistics(self, call: Call) -> CircuitStatistics:
        """Returns a circuit with its number of requests and its last use."""
        stored_circuit = await self._stored(call)
        return CircuitStatistics(
            **msgspec.structs.asdict(stored_circuit.circuit),
            requests=stored_circuit.requests,
            last_access=int(stored_circuit.last_used.timestamp()) if stored_circuit.requests else None,
            ttl=self._ttl(stored_circuit),
        )

    @route("DELETE", "/api/circuit/{circuit_id}")
    async def remove(self, call: Call) -> Success:
        """Removes a circuit from coordinator and worker."""
        if not await self.circuits.remove([id_of(call.params["circuit_id"], "circuit")]):
            raise NoSuchObject("circuit")
        return Success()

    @route("DELETE", "/api/circuit/_/bulk", query=BulkRemoval)
    async def remove_many(self, call: Call[Any, BulkRemoval]) -> Success:
        """Removes circuits from coordinator and workers; ids without a circuit are ignored."""
        await self.circuits.remove(call.query.circuit_ids)
        return Success()

    @route("GET", "/api/worker/{worker_id}/circuits")
    async def of_worker(self, call: Call) -> CircuitList:
        """Lists the circuits of a worker."""
        worker_id = id_of(call.params["worker_id"], "worker")
        return CircuitList(circuits=list(await self.circuits.store.of_worker(worker_id)))

    @route("GET", "/api/session")
    async def sessions(self, call: Call) -> SessionList:
        """Lists the sessions that browsers reach or may reach, so that a manager finds those that have ended."""
        return SessionList(session_ids=list(await self.circuits.store.sessions()))

    @route("DELETE", "/api/session/_/bulk", query=SessionRemoval)
    async def remove_sessions(self, call: Call[Any, SessionRemoval]) -> Success:
        """Removes the circuits and unused tokens of sessions."""
        await self.circuits.remove_sessions(call.query.session_ids)
        return Success()

    async def _stored(self, call: Call) -> StoredCircuit:
        return await self.circuits.get(id_of(call.params["circuit_id"], "circuit"))

    def _ttl(self, stored: StoredCircuit) -> int | None:
        timeout_s = self.circuits.limits.circuit_s
        if stored.circuit.app_mode is AppMode.INFERENCE or timeout_s <= 0:
            return None
        age_s = (self.circuits.clock.now() - stored.last_used).total_seconds()
        return max(0, int(timeout_s - age_s))
