"""Tracks the circuits of the embedded plane with their routes, connections and counts, and finds a slot's circuit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol
from uuid import UUID

from ai.backend.appproxy.worker.inference.endpoint import Counters, endpoint_of
from ai.backend.appproxy.worker.planes.plane import CircuitObservation, ConnectionFilter
from ai.backend.common.wire.appproxy import Circuit, FrontendMode
from ai.backend.core.proxy.breaker import Breaker
from ai.backend.core.proxy.changes import effects_of
from ai.backend.core.proxy.routing import RouteChooser, RouteKey, Target, key_of


class OpenConnection(Protocol):
    """Represents an open connection of a circuit: a request that is being answered, or a tunnel."""

    @property
    def route(self) -> RouteKey | None: ...

    def cut(self) -> None:
        """Ends the connection at once, so that the peer sees a broken connection."""


class CircuitState:
    """Holds the state of a circuit while the circuit is served."""

    def __init__(self, circuit: Circuit, counters: Counters) -> None:
        self.circuit = circuit
        self.chooser = RouteChooser(circuit.route_info)
        self.breaker = Breaker()
        self.endpoint = endpoint_of(circuit, counters, self.breaker)
        self.in_flight: dict[RouteKey, int] = {}
        self.connections: set[OpenConnection] = set()
        self.draining: dict[RouteKey, float] = {}
        self.mode = circuit.app_mode.value
        self.requests = 0
        self.received = 0
        self.sent = 0
        self.last_used = time.time()
        self.is_removed = False

    def update(self, circuit: Circuit, now: float) -> None:
        """Replaces the circuit. Connections that are no longer permitted are cut, and removed routes drain."""
        effects = effects_of(self.circuit, circuit)
        self.circuit = circuit
        self.chooser.update(circuit.route_info)
        route_keys = frozenset(key_of(route) for route in circuit.route_info)
        self.breaker.retain(route_keys)
        for key in effects.drained:
            self.draining.setdefault(key, now + effects.drain_s)
        self.draining = {key: deadline for key, deadline in self.draining.items() if key not in route_keys}
        if effects.is_revoked:
            self.cut()
        if self.endpoint is not None:
            self.endpoint.update(circuit)

    def remove(self) -> None:
        """Cuts all connections of the circuit, and admits no further ones."""
        self.is_removed = True
        self.cut()

    def choose(self, now: float, failed_routes: frozenset[RouteKey] = frozenset()) -> Target | None:
        """Chooses the route to which a request of this circuit is sent.

        Routes that fail are used again where all others are excluded.
        """
        ejected_routes = self.breaker.ejected_keys(len(self.circuit.route_info), now)
        return self.chooser.choose(self.in_flight, ejected_routes | failed_routes) or self.chooser.choose(
            self.in_flight, failed_routes
        )

    def add_connection(self, connection: OpenConnection) -> None:
        self.connections.add(connection)

    def remove_connection(self, connection: OpenConnection) -> None:
        self.connections.discard(connection)
        self.last_used = time.time()

    def change_in_flight(self, key: RouteKey, step: int) -> None:
        """Changes the number of requests in flight of a route."""
        request_count = self.in_flight.get(key, 0) + step
        if request_count > 0:
            self.in_flight[key] = request_count
        else:
            self.in_flight.pop(key, None)

    def cut(self, route: RouteKey | None = None) -> int:
        """Cuts the connections to one route, or to all routes."""
        matching_connections = [
            candidate for candidate in self.connections if route is None or candidate.route == route
        ]
        for connection in matching_connections:
            connection.cut()
        return len(matching_connections)

    def end_drains(self, now: float) -> None:
        """Cuts the open connections to removed routes whose drain deadline has passed."""
        for key in [key for key, deadline in self.draining.items() if deadline <= now]:
            del self.draining[key]
            self.cut(key)

    def observe(self) -> CircuitObservation:
        if self.connections:
            self.last_used = time.time()
        return CircuitObservation(
            requests=self.requests,
            last_used=self.last_used,
            open=len(self.connections),
            received=self.received,
            sent=self.sent,
            in_flight=dict(self.in_flight),
            queued=self.endpoint.queued if self.endpoint is not None else 0,
            waits=self.endpoint.waits if self.endpoint is not None else 0,
        )


class CircuitTable:
    """Holds all circuits of the plane by id, port and subdomain."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.by_id: dict[UUID, CircuitState] = {}
        self.by_port: dict[int, CircuitState] = {}
        self.by_subdomain: dict[str, CircuitState] = {}

    def __iter__(self) -> Iterator[CircuitState]:
        return iter(list(self.by_id.values()))

    def put(self, circuit: Circuit, now: float) -> CircuitState:
        """Adds a circuit to the table, or replaces the circuit with the same id. Returns the state of the circuit.

        A port or subdomain that another circuit had is assigned to this circuit, because the coordinator decides about
        them.
        """
        state = self.by_id.get(circuit.id)
        if state is None:
            state = self.by_id[circuit.id] = CircuitState(circuit, self._counters)
        else:
            self._free_slot(state)
            state.update(circuit, now)
        if circuit.frontend_mode is FrontendMode.PORT and circuit.port is not None:
            self.by_port[circuit.port] = state
        elif circuit.subdomain is not None:
            self.by_subdomain[circuit.subdomain] = state
        return state

    def remove(self, circuit_id: UUID) -> CircuitState | None:
        """Removes a circuit and cuts its connections."""
        state = self.by_id.pop(circuit_id, None)
        if state is not None:
            self._free_slot(state)
            state.remove()
        return state

    def cut(self, connections: ConnectionFilter) -> int:
        """Cuts the open connections that a filter selects, and returns the number of cut connections."""
        return sum(
            state.cut(connections.route)
            for state in self
            if connections.circuit in (None, state.circuit.id) and connections.user in (None, state.circuit.user_id)
        )

    def _free_slot(self, state: CircuitState) -> None:
        port, subdomain = state.circuit.port, state.circuit.subdomain
        if port is not None and self.by_port.get(port) is state:
            del self.by_port[port]
        if subdomain is not None and self.by_subdomain.get(subdomain) is state:
            del self.by_subdomain[subdomain]
