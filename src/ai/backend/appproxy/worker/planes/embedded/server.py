"""Holds the objects that all connections of the embedded plane share.

These are the circuits, the gate, the limits, the pools, the counts, and the clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.inference.endpoint import Counters
from ai.backend.appproxy.worker.planes.embedded.circuits import CircuitState, CircuitTable
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.plane import Counts
from ai.backend.appproxy.worker.upstreams import Dialer
from ai.backend.core.proxy.hosts import subdomain_of
from ai.backend.infra.http.connections import ConnectionCount, ConnectionLimits

log = logging.getLogger(__name__)
access_log = logging.getLogger("ai.backend.appproxy.worker.access_log")
SWEEP_S = 0.5


class Timed(Protocol):
    """Represents a connection with a deadline in the time of the event loop."""

    deadline: float

    def expire(self) -> None:
        """Ends the connection, because its deadline has passed."""


class Shared:
    """Holds the parts that every connection of one embedded plane uses."""

    def __init__(
        self,
        *,
        gate: Gate,
        dialer: Dialer,
        limits: Limits,
        scheme: str,
        domain: str | None,
        inference: Counters,
        connections_per_address: int = 0,
        logs_access: bool = False,
    ) -> None:
        self.inference = inference
        self.table = CircuitTable(inference)
        self.gate = gate
        self.dialer = dialer
        self.limits = limits
        self.scheme = scheme
        self.domain = domain
        self.counts = Counts()
        self.timed: set[Timed] = set()
        self.connection_count = ConnectionCount(ConnectionLimits(per_address=connections_per_address))
        self.is_draining = False
        self.model_bytes = 0
        self.logs_access = logs_access
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()

    def circuit_of(self, host: str, port: int | None) -> CircuitState | None:
        """Returns the circuit of a frontend's port, or of a host name below the domain.

        Returns None if there is no circuit.
        """
        if port is not None:
            return self.table.by_port.get(port)
        subdomain = subdomain_of(host, self.domain) if self.domain else None
        return self.table.by_subdomain.get(subdomain) if subdomain else None

    def sweep(self) -> None:
        """Ends connections whose deadline has passed, and cuts connections to removed routes after their drain time."""
        now = self.loop.time()
        for connection in [c for c in self.timed if c.deadline <= now]:
            connection.expire()
        for state in self.table:
            if state.draining:
                state.end_drains(now)

    def spawn(self, coroutine: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        """Runs a coroutine in the background until the plane stops."""
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def log_response(self, state: CircuitState, method: bytes, target: bytes, status: int, started_at: float) -> None:
        """Counts a response, and logs it without the query and the client's address."""
        self.counts.responses[state.mode, status] += 1
        if self.logs_access:
            path = target.partition(b"?")[0].decode("ascii", "replace")
            duration_ms = 1000 * (time.monotonic() - started_at)
            access_log.info("%s %s %s %d %.1f ms", state.circuit.id, method.decode(), path, status, duration_ms)
