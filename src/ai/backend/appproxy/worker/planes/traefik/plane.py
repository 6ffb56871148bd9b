"""Serves circuits by the data plane on Traefik, which the operator runs (spec 03-16).

Traefik asks this worker's gate about each request, and passes the bytes itself. Circuits whose requests a worker must
read (models, routes by gateways) are relayed to an embedded plane of this process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.inference.endpoint import Counters
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane, Frontend
from ai.backend.appproxy.worker.planes.plane import (
    Applied,
    Capabilities,
    CircuitObservation,
    ConnectionFilter,
    Counts,
    refusal_of,
)
from ai.backend.appproxy.worker.planes.traefik.control import LEASE_S, TraefikControl
from ai.backend.appproxy.worker.planes.traefik.gate_server import GateServer
from ai.backend.appproxy.worker.planes.traefik.sockets import (
    OpenSocket,
    find_listening_pid,
    may_end_connections,
    open_sockets,
    shut_down,
)
from ai.backend.appproxy.worker.planes.traefik.tree import (
    TreeOptions,
    entry_point_of,
    http_tree,
    is_tcp,
    relay_tree,
    shared_tree,
    tcp_tree,
)
from ai.backend.appproxy.worker.upstreams import Dialer, resolve
from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import Circuit, FrontendMode, InferenceUsage, ProxyProtocol
from ai.backend.core.proxy.changes import Changes, effects_of, removed_ids
from ai.backend.core.proxy.cookies import permit_name
from ai.backend.core.proxy.routing import RouteKey, key_of
from ai.backend.infra.loop import PeriodicCall, cancel_all

log = logging.getLogger(__name__)
_SWEEP_S = 0.5
_MISCONFIGURED = "E00001: Server misconfigured - proxy-worker: "
_TIMED_OUT = "E20003: Timed out while waiting for proxy frontend to set up: "


class TraefikOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of the Traefik plane: Traefik's control, the port of Traefik's API, and two addresses.

    ``gate`` is the address at which this worker answers Traefik, and ``relay`` the one where it takes connections from
    Traefik, both on this host; port 0 is any free one, for one node. ``api_port`` is that of Traefik's own API.
    """

    control: TraefikControl
    api_port: int
    gate: tuple[str, int] = ("127.0.0.1", 0)
    relay: tuple[str, int] = ("127.0.0.1", 0)
    protocol: ProxyProtocol = ProxyProtocol.HTTP


@dataclass(slots=True)
class _State:
    """Holds the state of a circuit while the circuit is served.

    ``addresses`` are those of its routes; None: this process serves it. ``draining`` has the addresses of removed
    routes, with the time at which they are cut.
    """

    circuit: Circuit
    addresses: dict[RouteKey, str] | None
    tree: Mapping[str, str]
    requests: int = 0
    last_used: float = field(default_factory=time.time)
    draining: dict[RouteKey, tuple[str, float]] = field(default_factory=dict)


class TraefikPlane:
    """Serves circuits of one protocol by configuring a Traefik process on the same host.

    Traefik runs as the same user as this worker.
    """

    def __init__(
        self,
        frontend: Frontend,
        gate: Gate,
        dialer: Dialer,
        options: TraefikOptions,
        *,
        limits: Limits | None = None,
        logs_access: bool = False,
        inference: Counters | None = None,
    ) -> None:
        self._frontend, self._options, self._limits = frontend, options, limits or Limits()
        self._is_secure = frontend.is_secure
        self._inner = EmbeddedPlane(
            replace(frontend, behind=options.relay, tls=None),
            gate,
            dialer,
            limits=self._limits,
            logs_access=logs_access,
            inference=inference,
        )
        self._gate = GateServer(gate, self._circuit_of, self._count_request, self._count_refusal)
        self._admits_connection = gate.admits_connection
        self._states: dict[UUID, _State] = {}
        self._inner_ids: set[UUID] = set()
        self._sockets: list[OpenSocket] = []
        self._entry_points: frozenset[str] = frozenset()
        self._lock = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._tree_options: TreeOptions

    @property
    def capabilities(self) -> Capabilities:
        protocols = frozenset((self._options.protocol,))
        return Capabilities(protocols=protocols, frontends=frozenset((self._frontend.mode,)), counts_bytes=False)

    @property
    def counts(self) -> Counts:
        return self._inner.counts

    async def start(self) -> None:
        try:
            self._entry_points = await self._options.control.start()
            reason = await asyncio.to_thread(lambda: may_end_connections(self._find_traefik_pid()))
            if reason is not None:
                raise InvalidInput(
                    f"This worker cannot end connections of Traefik, as it must when access is revoked: {reason}."
                    " Run both as one user, and let the worker trace it: CAP_SYS_PTRACE, or kernel.yama.ptrace_scope 0."
                )
            await self._start_listening()
        except BaseException:
            await self._options.control.close()
            raise

    async def _start_listening(self) -> None:
        host, port = self._options.gate
        try:
            port = await self._gate.start(host, port)
        except OSError as e:
            raise InvalidInput(f"The gate of Traefik cannot listen on {host}:{port}: {e.strerror}") from None
        try:
            await self._inner.start()
        except OSError as e:
            await self._gate.stop()
            relay_address = "{}:{}".format(*self._options.relay)
            raise InvalidInput(f"The relay of Traefik cannot listen on {relay_address}: {e.strerror}") from None
        relay_host, relay_port = self._inner.addresses[0]
        self._tree_options = TreeOptions(
            gate=f"http://{host}:{port}",
            relay=f"{relay_host}:{relay_port}",
            domain=self._frontend.domain,
            connect_s=self._limits.connect_s,
            first_byte_s=self._limits.first_byte_s,
        )
        periodic_calls = (
            PeriodicCall("traefik", _SWEEP_S, self._sweep),
            PeriodicCall("lease of traefik", LEASE_S / 4, self._options.control.keep_lease),
        )
        self._tasks += [asyncio.create_task(periodic_call.run()) for periodic_call in periodic_calls]

    def _find_traefik_pid(self) -> int:
        return find_listening_pid(self._options.api_port)

    # What the gate asks and says

    def _circuit_of(self, circuit_id: UUID) -> Circuit | None:
        state = self._states.get(circuit_id)
        return state.circuit if state is not None else None

    def _count_request(self, circuit: Circuit) -> None:
        state = self._states.get(circuit.id)
        if state is not None:
            state.requests += 1
            state.last_used = time.time()

    def _count_refusal(self, reason: str) -> None:
        self.counts.refused[reason] += 1

    # The SPI

    async def apply(self, changes: Changes) -> Applied:
        async with self._lock:
            refusals: dict[UUID, str] = {}
            for circuit in changes.circuits:
                refusal = self._refusal_of(circuit)
                if refusal is not None:
                    refusals[circuit.id] = refusal
            revoked_ids = {
                gone_id for gone_id in removed_ids(changes, self._states) | refusals.keys() if gone_id in self._states
            }
            revoked_states = [self._states.pop(revoked_id) for revoked_id in revoked_ids]
            put_circuits = [circuit for circuit in changes.circuits if circuit.id not in refusals]
            revoked_states += [self._states[circuit.id] for circuit in put_circuits if await self._put_circuit(circuit)]
            await self._apply_inner(changes)
            tree = shared_tree(self._tree_options)
            for state in self._states.values():
                tree |= state.tree
            try:
                await self._options.control.write(tree)
            except BackendError as e:
                log.warning("the circuits of version %d are not served: %s", changes.version, e)
                refusals |= {
                    circuit.id: _TIMED_OUT + e.message for circuit in changes.circuits if circuit.id not in refusals
                }
            for state in revoked_states:  # nothing comes any more: what is open is cut
                await self._end_connections(self._circuit_filter(state))
        return Applied(version=changes.version, failed=refusals)

    def _refusal_of(self, circuit: Circuit) -> str | None:
        refusal = refusal_of(circuit, self.capabilities)
        if refusal is not None:
            return refusal
        if circuit.frontend_mode is FrontendMode.PORT and circuit.port not in self._frontend.ports:
            return f"{_MISCONFIGURED}{circuit.port} is no port of this worker"
        if entry_point_of(circuit) not in self._entry_points:
            return f"{_TIMED_OUT}Traefik has no entry point {entry_point_of(circuit)}"
        if self._is_relayed(circuit):
            if circuit.frontend_mode is FrontendMode.WILDCARD:
                return f"{_MISCONFIGURED}by host names, Traefik serves neither models nor routes by gateways"
            if circuit.allowed_client_ips is not None:
                return f"{_MISCONFIGURED}Traefik serves networks of clients to direct addresses only"
        return None

    def _is_relayed(self, circuit: Circuit) -> bool:
        """Returns True if Traefik passes the connections of a circuit to the embedded plane of this worker.

        This is so for circuits with serving options, as endpoints have, and for circuits with a route that has a
        gateway or a revision.
        """
        return circuit.serving is not None or any(
            route.gateway is not None or route.revision is not None for route in circuit.route_info
        )

    async def _put_circuit(self, circuit: Circuit) -> bool:
        """Adds or replaces a circuit. Returns True if its open connections must be cut."""
        old_state = self._states.get(circuit.id)
        effects = effects_of(old_state.circuit if old_state is not None else None, circuit)
        addresses = None if self._is_relayed(circuit) else await self._addresses_of(circuit)
        tree = self._tree_of(circuit, addresses)
        for other_state in [entry for entry in self._states.values() if entry.circuit.id != circuit.id]:
            if (
                entry_point_of(other_state.circuit) == entry_point_of(circuit)
                and other_state.circuit.subdomain == circuit.subdomain
            ):
                other_state.tree = {}  # the coordinator has given the slot to this one
        if old_state is None:
            self._states[circuit.id] = _State(circuit, addresses, tree)
            return False
        deadline = asyncio.get_running_loop().time() + effects.drain_s
        for key in effects.drained:
            if old_state.addresses is not None and key in old_state.addresses:
                old_state.draining.setdefault(key, (old_state.addresses[key], deadline))
        kept_keys = {key_of(route) for route in circuit.route_info}
        old_state.draining = {key: entry for key, entry in old_state.draining.items() if key not in kept_keys}
        old_state.circuit, old_state.addresses, old_state.tree = circuit, addresses, tree
        return effects.is_revoked

    def _tree_of(self, circuit: Circuit, addresses: Mapping[RouteKey, str] | None) -> Mapping[str, str]:
        if addresses is None:
            return relay_tree(circuit, self._tree_options)
        if is_tcp(circuit):
            if not circuit.open_to_public and circuit.allowed_client_ips is None:
                return {}
            return tcp_tree(circuit, addresses)
        permit_cookie = permit_name(circuit.id, is_secure=self._is_secure)
        return http_tree(circuit, addresses, permit_cookie, self._tree_options)

    async def _addresses_of(self, circuit: Circuit) -> dict[RouteKey, str]:
        """Returns the addresses of routes as ``host:port``. A host that cannot be resolved gets no requests."""
        addresses: dict[RouteKey, str] = {}
        for route in circuit.route_info:
            try:
                host = await resolve(asyncio.get_running_loop(), route.kernel_host)
            except (OSError, BackendError) as e:
                log.warning("a route of circuit %s cannot be reached: %s", circuit.id, e)
                host = "127.0.0.1"
                addresses[key_of(route)] = f"{host}:1"
                continue
            addresses[key_of(route)] = f"[{host}]:{route.kernel_port}" if ":" in host else f"{host}:{route.kernel_port}"
        return addresses

    async def _apply_inner(self, changes: Changes) -> None:
        """Makes the embedded plane serve exactly the circuits whose connections Traefik passes to it."""
        relayed_ids = {circuit_id for circuit_id, state in self._states.items() if state.addresses is None}
        circuits = tuple(self._states[circuit_id].circuit for circuit_id in relayed_ids)
        if relayed_ids or self._inner_ids:
            await self._inner.apply(Changes(version=changes.version, circuits=circuits, is_complete=True))
        self._inner_ids = relayed_ids

    # Connections

    def _circuit_filter(self, state: _State) -> Callable[[OpenSocket], bool]:
        """Returns a function that is True for the sockets of Traefik that belong to a circuit.

        A circuit with a port is recognized by this port, a circuit with a host name by the addresses of its routes.
        """
        circuit = state.circuit
        if circuit.frontend_mode is FrontendMode.PORT and circuit.port is not None:
            port = self._frontend.ports[circuit.port]
            return lambda open_socket: open_socket.local[1] == port
        addresses = set((state.addresses or {}).values()) | {address for address, _ in state.draining.values()}
        return lambda open_socket: _format_address(open_socket.remote) in addresses

    async def _end_connections(self, is_selected: Callable[[OpenSocket], bool]) -> int:
        """Ends the connections of Traefik for which ``is_selected`` is True, and returns their number."""

        def shut_down_selected() -> int:
            pid = self._find_traefik_pid()
            return shut_down(pid, [open_socket for open_socket in open_sockets(pid) if is_selected(open_socket)])

        try:
            return await asyncio.to_thread(shut_down_selected)
        except (OSError, BackendError) as e:
            log.error("connections of Traefik cannot be ended: %s", e)
            return 0

    async def refresh(self) -> None:
        try:
            self._sockets = await asyncio.to_thread(lambda: open_sockets(self._find_traefik_pid()))
        except (OSError, BackendError) as e:
            log.debug("Traefik cannot be observed: %s", e)
        await self._inner.refresh()

    def _in_flight(self, state: _State) -> dict[RouteKey, int]:
        """Returns the number of open connections by route.

        Circuits that share an address count the same connections.
        """
        keys_by_address = {address: route_key for route_key, address in (state.addresses or {}).items()}
        keys_by_address |= {address: route_key for route_key, (address, _) in state.draining.items()}
        counts: dict[RouteKey, int] = {}
        for open_socket in self._sockets:
            route_key = keys_by_address.get(_format_address(open_socket.remote))
            if route_key is not None:
                counts[route_key] = counts.get(route_key, 0) + 1
        return counts

    def observe(self) -> Mapping[UUID, CircuitObservation]:
        observations = {}
        inner_observations = self._inner.observe()
        for circuit_id, state in self._states.items():
            if circuit_id in inner_observations:
                observations[circuit_id] = inner_observations[circuit_id]
                continue
            in_flight = self._in_flight(state)
            if in_flight:
                state.last_used = time.time()
            observations[circuit_id] = CircuitObservation(
                requests=state.requests,
                last_used=state.last_used,
                open=sum(in_flight.values()),
                received=0,
                sent=0,
                in_flight=in_flight,
            )
        return observations

    def take_usage(self) -> list[InferenceUsage]:
        return self._inner.take_usage()

    def set_waiting_callback(self, callback: Callable[[], None]) -> None:
        self._inner.set_waiting_callback(callback)

    async def cut(self, connections: ConnectionFilter) -> int:
        cut_count = 0
        for state in list(self._states.values()):
            circuit = state.circuit
            if connections.circuit not in (None, circuit.id) or connections.user not in (None, circuit.user_id):
                continue
            if state.addresses is None:
                cut_count += await self._inner.cut(replace(connections, circuit=circuit.id))
            elif connections.route is None:
                cut_count += await self._end_connections(self._circuit_filter(state))
            elif connections.route in state.addresses:
                address = state.addresses[connections.route]
                cut_count += await self._end_connections(_address_filter(address))
        return cut_count

    async def _sweep(self) -> None:
        async with self._lock:
            now = asyncio.get_running_loop().time()
            for state in self._states.values():
                for key in [key for key, (_, deadline) in state.draining.items() if deadline <= now]:
                    address, _ = state.draining.pop(key)
                    if not any(address in (any_state.addresses or {}).values() for any_state in self._states.values()):
                        await self._end_connections(_address_filter(address))

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Stops the gate server and the embedded plane, but leaves the configuration of the circuits in Traefik.

        Traefik asks a gate that no longer answers, and admits nobody. What is open is cut after the time to drain.
        """
        deadline = time.monotonic() + drain_s
        while time.monotonic() < deadline:
            await self.refresh()
            if not any(observation.open for observation in self.observe().values()):
                break
            await asyncio.sleep(_SWEEP_S)
        await cancel_all(*self._tasks)
        if drain_s or self._states:
            await self.cut(ConnectionFilter())
        await self._gate.stop()
        await self._inner.stop()
        await self._options.control.close()


def _address_filter(address: str) -> Callable[[OpenSocket], bool]:
    """Returns a filter of the connections to an address."""
    return lambda open_socket: _format_address(open_socket.remote) == address


def _format_address(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
