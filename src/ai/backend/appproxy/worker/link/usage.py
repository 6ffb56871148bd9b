"""Reports of the use of circuits: each is sent until the coordinator has counted it, and counted once."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from ai.backend.appproxy.worker.planes.plane import CircuitObservation
from ai.backend.common.wire.appproxy import CircuitUsage, Usage


class UsageReports:
    """Makes the reports of one node. A report that is not counted yet is repeated before the next one is made."""

    def __init__(self) -> None:
        self._sequence = 0
        self._pending: Usage | None = None
        self._reported: dict[UUID, int] = {}

    def next(self, observations: Mapping[UUID, CircuitObservation], now: float) -> Usage | None:
        """Returns the report to send: the one that is not counted yet, or a new one; None if nothing was used."""
        if self._pending is not None:
            return self._pending
        circuits: list[CircuitUsage] = []
        for circuit_id, observation in observations.items():
            requests = observation.requests - self._reported.get(circuit_id, 0)
            if requests < 0:  # the circuit was removed and made again
                requests = observation.requests
            if requests or observation.open:
                usage = CircuitUsage(
                    id=circuit_id, requests=requests, last_used=observation.last_used, open=observation.open
                )
                circuits.append(usage)
        self._reported = {circuit_id: observation.requests for circuit_id, observation in observations.items()}
        if not circuits:
            return None
        self._sequence += 1
        self._pending = Usage(sequence=self._sequence, time=now, circuits=circuits)
        return self._pending

    def counted(self, sequence: int) -> None:
        """Drops the report of this number."""
        if self._pending is not None and self._pending.sequence <= sequence:
            self._pending = None
