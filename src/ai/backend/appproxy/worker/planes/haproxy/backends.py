"""Assigns circuits to backends of HAProxy, and routes to the servers of these backends.

The backends were declared in its configuration. A server goes through four states: free, active, draining (nothing
new), and closed, until HAProxy says that nothing is open to it; only then it is free again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple
from uuid import UUID

from ai.backend.appproxy.worker.planes.haproxy.config import Pool
from ai.backend.core.proxy.routing import RouteKey
from ai.backend.infra.haproxy.runtime import Use

WHOLE = "BACKEND"
"""HAProxy's name for a backend as a whole, in the place of a server's name."""
Uses = Mapping[tuple[str, str], Use]
NO_USE = Use(open=0, requests=0, received=0, sent=0, idle_s=None)


class ServerState(Enum):
    FREE = auto()
    ACTIVE = auto()
    DRAINING = auto()
    CLOSED = auto()


class Address(NamedTuple):
    """Holds the address and the weight of a route."""

    host: str
    port: int
    weight: int


@dataclass(slots=True)
class Server:
    name: str
    state: ServerState = ServerState.FREE
    key: RouteKey | None = None
    weight: int = 0
    deadline: float = 0.0
    is_checked: bool = False


@dataclass(slots=True)
class Backend:
    """Represents a backend of HAProxy: a named list of servers that is assigned to at most one circuit at a time.

    ``base`` holds the backend's counts at the time of the assignment, which do not belong to the present circuit.
    """

    name: str
    pool: Pool
    servers: list[Server]
    circuit: UUID | None = None
    base: Use = NO_USE

    def server_of(self, key: RouteKey) -> Server | None:
        """Returns the server that a route has at present."""
        for server in self.servers:
            if server.key == key and server.state in (ServerState.ACTIVE, ServerState.DRAINING):
                return server
        return None

    def path(self, server: Server) -> str:
        return f"{self.name}/{server.name}"


@dataclass(slots=True)
class CircuitUse:
    """Holds the counts of connections, requests and bytes of a circuit, summed over its HAProxy backends.

    Counts from before the backends were assigned to the circuit are left out.
    """

    open: int = 0
    requests: int = 0
    received: int = 0
    sent: int = 0
    idle_s: int | None = None
    in_flight: dict[RouteKey, int] = field(default_factory=dict)


class Backends:
    """Assigns the backends of one HAProxy process to circuits, and their servers to routes.

    Each method that changes something returns the HAProxy commands that make the change.
    """

    def __init__(self, pools: list[Pool]) -> None:
        self._pools = sorted(pools, key=lambda pool: pool.servers)
        self._free: dict[str, list[Backend]] = {}
        self._all: dict[str, Backend] = {}
        self._current: dict[UUID, Backend] = {}
        for pool in pools:
            backends = [
                Backend(n, pool, [Server(f"s{i + 1}") for i in range(pool.servers)]) for n in pool.backend_names()
            ]
            self._free[pool.prefix] = backends[::-1]
            self._all |= {backend.name: backend for backend in backends}

    def backend_of(self, circuit: UUID) -> str | None:
        """Returns the backend that receives new requests of a circuit."""
        backend = self._current.get(circuit)
        return backend.name if backend is not None else None

    def assign(
        self, circuit: UUID, routes: Mapping[RouteKey, Address], *, now: float, drain_s: float
    ) -> tuple[list[str], list[str]] | None:
        """Assigns the routes of a circuit to a backend, and drains the circuit's earlier routes.

        Returns None, and changes nothing, if no backend is free.

        The commands are for before and after the circuit is led to its backend: until then the old one serves it.
        """
        old_backend, backend = self._current.get(circuit), self._backend_for(circuit, routes)
        if backend is None:
            return None
        self._current[circuit], backend.circuit = backend, circuit
        is_checked, commands_before = len(routes) > 1, []
        for key, address in routes.items():
            commands_before += self._place_route(backend, key, address, is_checked=is_checked)
        commands_after = self._drain_servers(backend, kept_keys=routes, deadline=now + drain_s)
        if old_backend is not None and old_backend is not backend:
            commands_after += self._drain_servers(old_backend, kept_keys=(), deadline=now + drain_s)
        return commands_before, commands_after

    def _backend_for(self, circuit: UUID, routes: Mapping[RouteKey, Address]) -> Backend | None:
        balance = "leastconn" if len({address.weight for address in routes.values()}) == 1 else "roundrobin"
        current_backend = self._current.get(circuit)
        if (
            current_backend is not None
            and current_backend.pool.balance == balance
            and _has_free_servers(current_backend, routes)
        ):
            return current_backend
        for pool in self._pools:
            if pool.balance == balance and pool.servers >= len(routes) and self._free[pool.prefix]:
                return self._free[pool.prefix].pop()
        return None

    def _place_route(self, backend: Backend, key: RouteKey, address: Address, *, is_checked: bool) -> list[str]:
        server = backend.server_of(key)
        commands = []
        if server is None:
            server = next(s for s in backend.servers if s.state is ServerState.FREE)
            server.key, server.weight, server.is_checked = key, -1, False
            commands += [
                f"set server {backend.path(server)} addr {address.host} port {address.port}",
                f"disable health {backend.path(server)}",
                f"set server {backend.path(server)} health up",
            ]
        path = backend.path(server)
        if server.weight != address.weight:
            commands.append(f"set server {path} weight {address.weight}")
        if server.is_checked != is_checked:
            commands.append(f"{'enable' if is_checked else 'disable'} health {path}")
            if not is_checked:  # a check that failed before would keep it down for ever
                commands.append(f"set server {path} health up")
        if server.state is not ServerState.ACTIVE:
            commands.append(f"set server {path} state ready")
        server.weight, server.is_checked, server.state = address.weight, is_checked, ServerState.ACTIVE
        return commands

    def _drain_servers(self, backend: Backend, kept_keys: Container[RouteKey], *, deadline: float) -> list[str]:
        commands = []
        for server in backend.servers:
            if server.state is ServerState.ACTIVE and server.key not in kept_keys:
                server.state, server.deadline = ServerState.DRAINING, deadline
                commands.append(f"set server {backend.path(server)} state drain")
        return commands

    def drain_circuit(self, circuit: UUID, *, now: float, drain_s: float) -> list[str]:
        """Lets the backends of a circuit drain, and returns the HAProxy commands for that.

        Its backends get no new connections. Open connections end by themselves, or are cut after ``drain_s``.
        """
        backend = self._current.pop(circuit, None)
        return [] if backend is None else self._drain_servers(backend, kept_keys=(), deadline=now + drain_s)

    def close_circuit(self, circuit: UUID) -> list[str]:
        """Takes all backends away from a circuit, and returns the commands that cut their open connections."""
        self._current.pop(circuit, None)
        return [command for backend in self._backends_of(circuit) for command in self._close_servers(backend)]

    def _close_servers(self, backend: Backend) -> list[str]:
        commands = []
        for server in backend.servers:
            if server.state is not ServerState.FREE:
                commands += self._close_server(backend, server)
        return commands

    def _close_server(self, backend: Backend, server: Server) -> list[str]:
        """Closes a server, and returns the commands that refuse new connections and then cut the open ones."""
        server.state = ServerState.CLOSED
        path = backend.path(server)
        return [f"set server {path} state maint", f"shutdown sessions server {path}"]

    def cut(self, circuit: UUID, route: RouteKey | None = None) -> list[str]:
        """Returns the commands that cut the open connections to a circuit, or to one of its routes."""
        return [
            f"shutdown sessions server {backend.path(server)}"
            for backend in self._backends_of(circuit)
            for server in backend.servers
            if server.state is not ServerState.FREE and route in (None, server.key)
        ]

    def sweep(self, uses: Uses, now: float) -> list[str]:
        """Closes drained servers, frees backends without open connections, and returns the necessary commands."""
        commands = []
        for backend in self._used_backends():
            for server in backend.servers:
                is_unused = not uses.get((backend.name, server.name), NO_USE).open
                if server.state is ServerState.CLOSED and is_unused:
                    server.state, server.key = ServerState.FREE, None
                elif server.state is ServerState.CLOSED or (
                    server.state is ServerState.DRAINING and (is_unused or server.deadline <= now)
                ):
                    commands += self._close_server(backend, server)
            is_abandoned = self._current.get(backend.circuit) is not backend if backend.circuit else False
            if is_abandoned and all(server.state is ServerState.FREE for server in backend.servers):
                backend.circuit, backend.base = None, uses.get((backend.name, WHOLE), NO_USE)
                self._free[backend.pool.prefix].append(backend)
        return commands

    def use_of(self, circuit: UUID, uses: Uses) -> CircuitUse:
        """Returns the counts of connections, requests and bytes of a circuit, summed over its backends."""
        circuit_use = CircuitUse()
        for backend in self._backends_of(circuit):
            backend_use = uses.get((backend.name, WHOLE), backend.base)
            circuit_use.open += backend_use.open
            circuit_use.requests += backend_use.requests - backend.base.requests
            circuit_use.received += backend_use.received - backend.base.received
            circuit_use.sent += backend_use.sent - backend.base.sent
            if backend_use.requests > backend.base.requests and backend_use.idle_s is not None:
                circuit_use.idle_s = (
                    backend_use.idle_s if circuit_use.idle_s is None else min(backend_use.idle_s, circuit_use.idle_s)
                )
            for server in backend.servers:
                open_count = uses.get((backend.name, server.name), NO_USE).open
                if server.key is not None and open_count:
                    circuit_use.in_flight[server.key] = circuit_use.in_flight.get(server.key, 0) + open_count
        return circuit_use

    def _backends_of(self, circuit: UUID) -> list[Backend]:
        return [backend for backend in self._used_backends() if backend.circuit == circuit]

    def _used_backends(self) -> Iterator[Backend]:
        return (backend for backend in self._all.values() if backend.circuit is not None)


def _has_free_servers(backend: Backend, routes: Mapping[RouteKey, Address]) -> bool:
    needed_count = sum(backend.server_of(key) is None for key in routes)
    return sum(server.state is ServerState.FREE for server in backend.servers) >= needed_count
