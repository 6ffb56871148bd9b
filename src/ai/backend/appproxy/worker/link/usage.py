"""Reports the use of circuits. Each report is sent until the coordinator has counted it, and it is counted once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from ai.backend.appproxy.worker.inference.endpoint import requests_by_session
from ai.backend.appproxy.worker.planes.plane import CircuitObservation
from ai.backend.common.wire.appproxy import CircuitUsage, InferenceUsage, UsageReport


class UsageReports:
    """Makes the usage reports that one worker node sends to the coordinator.

    A report is sent again until the coordinator has counted it. Only then the next report is made.
    """

    def __init__(self) -> None:
        self._sequence = 0
        self._pending: UsageReport | None = None
        self._reported: dict[UUID, int] = {}
        self._busy: set[UUID] = set()
        self._waits: dict[UUID, int] = {}

    def next_report(
        self,
        observations: Mapping[UUID, CircuitObservation],
        now: float,
        take_usage: Callable[[], list[InferenceUsage]] = list,
    ) -> UsageReport | None:
        """Returns the report to send: the one that is not counted yet, or else a new one. Returns None if nothing was
        used.

        ``take_usage`` returns the use of endpoints since it was called last. What was open or waited in the last report
        is reported once more when it is over.
        """
        if self._pending is not None:
            return self._pending
        circuit_usages: list[CircuitUsage] = []
        busy_circuit_ids: set[UUID] = set()
        for circuit_id, observation in observations.items():
            new_requests = _growth(observation.requests, self._reported.get(circuit_id, 0))
            is_busy = bool(observation.open or observation.queued)
            new_waits = _growth(observation.waits, self._waits.get(circuit_id, 0))
            if new_requests or is_busy or new_waits or circuit_id in self._busy:
                circuit_usage = CircuitUsage(
                    id=circuit_id,
                    requests=new_requests,
                    last_used=observation.last_used,
                    open=observation.open,
                    queued=observation.queued,
                    waits=new_waits,
                    in_flight=requests_by_session(observation.in_flight),
                )
                circuit_usages.append(circuit_usage)
            if is_busy:
                busy_circuit_ids.add(circuit_id)
        self._reported = {circuit_id: observation.requests for circuit_id, observation in observations.items()}
        self._waits = {circuit_id: observation.waits for circuit_id, observation in observations.items()}
        self._busy = busy_circuit_ids
        inference_usage = take_usage()
        if not circuit_usages and not inference_usage:
            return None
        self._sequence += 1
        self._pending = UsageReport(
            sequence=self._sequence, time=now, circuits=circuit_usages, inference=inference_usage
        )
        return self._pending

    def has_new_waits(self, observations: Mapping[UUID, CircuitObservation]) -> bool:
        """Returns True if requests have begun to wait for a route since the last report was made."""
        return any(
            observation.waits > self._waits.get(circuit_id, 0) for circuit_id, observation in observations.items()
        )

    def confirm_report(self, sequence: int) -> None:
        """Drops the pending report if its sequence number is at most ``sequence``."""
        if self._pending is not None and self._pending.sequence <= sequence:
            self._pending = None


def _growth(present_count: int, earlier_count: int) -> int:
    """Returns the increase of a circuit's count since the last report.

    A count that is smaller than the earlier one means that the circuit was removed and created again: then the whole
    count is the increase.
    """
    return present_count - earlier_count if present_count >= earlier_count else present_count
