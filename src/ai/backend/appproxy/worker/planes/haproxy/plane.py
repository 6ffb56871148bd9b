"""Serves circuits by the data plane on HAProxy.

HAProxy passes on what it can decide by two maps: circuits by slot, and cookies that the gate has admitted. All the rest
goes to an embedded plane behind it: set-ups, refusals, models, circuits with networks of clients, routes by gateways,
and circuits that find no backend. It holds the same circuits, so that nothing depends on a map being complete.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.inference.endpoint import Counters
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane, Frontend
from ai.backend.appproxy.worker.planes.haproxy.admissions import Admissions, ReportingGate
from ai.backend.appproxy.worker.planes.haproxy.backends import Address, Backends, CircuitUse
from ai.backend.appproxy.worker.planes.haproxy.config import FRAMED, Bind, Files, Pool, configuration, weights_of
from ai.backend.appproxy.worker.planes.plane import (
    Applied,
    Capabilities,
    CircuitObservation,
    ConnectionFilter,
    Counts,
    refusal_of,
)
from ai.backend.appproxy.worker.upstreams import Dialer, resolve
from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import AppMode, Circuit, InferenceUsage, ProxyProtocol
from ai.backend.core.proxy.changes import Changes, effects_of, removed_ids
from ai.backend.core.proxy.routing import RouteKey, key_of
from ai.backend.infra.files import write_atomically
from ai.backend.infra.haproxy.process import HaproxyProcess, make_haproxy_folder
from ai.backend.infra.haproxy.runtime import CommandFailed, RuntimeApi, Use
from ai.backend.infra.loop import PeriodicCall, cancel_all

log = logging.getLogger(__name__)
_BACKLOG = 1024
_SWEEP_S = 0.5
_NO_OBSERVATION = CircuitObservation(requests=0, last_used=0.0, open=0, received=0, sent=0, in_flight={})
_NOT_FRAMED = (
    "E00001: Server misconfigured - proxy-worker: HAProxy serves HTTP/2 to direct addresses only,"
    " and without networks of clients or limits of tokens"
)
_ROUTES, _MANY_ROUTES, _LARGE_BACKENDS = 4, 64, 8


class HaproxyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of the HAProxy plane: program, threads, protocol, certificate, and the number of circuits.

    ``circuits`` is the number of circuits that HAProxy passes on by itself; further ones are served by this process, or
    refused where their protocol is HTTP/2. ``token_key`` verifies the tokens of endpoints.
    """

    folder: Path
    program: str = "haproxy"
    threads: int = 1
    circuits: int = 256
    protocol: ProxyProtocol = ProxyProtocol.HTTP
    certificate: tuple[Path, Path] | None = None
    token_key: bytes = b""


class HaproxyPlane:
    """Serves circuits of one protocol by a process of HAProxy.

    The listening sockets are of this process, so that clients wait while HAProxy is started anew. A command that fails
    ends HAProxy: it comes back with the state that this process has.
    """

    def __init__(
        self,
        frontend: Frontend,
        gate: Gate,
        dialer: Dialer,
        options: HaproxyOptions,
        *,
        limits: Limits | None = None,
        connections_per_address: int = 0,
        logs_access: bool = False,
        inference: Counters | None = None,
    ) -> None:
        self._frontend = frontend
        self._options = options
        self._limits = limits or Limits()
        self._connections_per_address = connections_per_address
        self._files = Files(folder=options.folder)
        self._inner = EmbeddedPlane(
            replace(frontend, behind=self._files.worker, tls=None),
            ReportingGate.from_gate(gate, self._on_admitted),
            dialer,
            limits=self._limits,
            logs_access=logs_access,
            inference=inference,
        )
        self._has_trusted_proxies = gate.has_trusted_proxies
        self._sockets: dict[int, socket.socket] = {}
        self._busy_ports: dict[int, str] = {}
        self._circuits: dict[UUID, Circuit] = {}
        self._values: dict[UUID, tuple[str, str]] = {}
        self._admissions = Admissions()
        self._past: dict[UUID, CircuitUse] = {}
        self._uses: Mapping[tuple[str, str], Use] = {}
        self._last_used: dict[UUID, float] = {}
        self._pools = _pools_for(options.circuits)
        self._backends = Backends(self._pools)
        self._api = RuntimeApi(self._files.commands)
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._certificate = self._refused_certificate = b""
        self._process: HaproxyProcess

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(protocols=frozenset((self._options.protocol,)), frontends=frozenset((self._frontend.mode,)))

    @property
    def counts(self) -> Counts:
        return self._inner.counts

    @property
    def pid(self) -> int | None:
        """Returns the process id of HAProxy."""
        return self._process.pid

    async def start(self) -> None:
        make_haproxy_folder(self._options.folder)
        self._open_sockets()
        certificate = self._write_certificate()
        binds = [Bind(fd=listener.fileno(), certificate=certificate) for listener in self._sockets.values()]
        config_text = configuration(
            self._files,
            binds,
            self._pools,
            self._limits,
            protocol=self._options.protocol,
            domain=self._frontend.domain,
            is_secure=self._frontend.is_secure,
            threads=self._options.threads,
            connections_per_address=self._connections_per_address,
            token_key=self._options.token_key,
        )
        for path, content in ((self._files.config, config_text), (self._files.circuits, ""), (self._files.permits, "")):
            write_atomically(path, content.encode(), mode=0o600)
        await self._inner.start()
        fds = [listener.fileno() for listener in self._sockets.values()]
        self._process = HaproxyProcess(
            self._options.program, self._files.config, self._files.commands, fds, self._on_start
        )
        try:
            await self._process.start()
        except BaseException:
            await self.stop()
            raise
        self._spawn(PeriodicCall("haproxy", _SWEEP_S, self._sweep).run())

    def _open_sockets(self) -> None:
        frontend = self._frontend
        ports = [frontend.port or 0] if frontend.domain is not None else list(frontend.ports.values())
        for port in ports:
            family = socket.AF_INET6 if ":" in frontend.host else socket.AF_INET
            try:
                self._sockets[port] = socket.create_server((frontend.host, port), family=family, backlog=_BACKLOG)
            except OSError as e:
                self._busy_ports[port] = e.strerror or str(e)
                log.warning("the port %d cannot be used: %s", port, self._busy_ports[port])
        if not self._sockets:
            raise InvalidInput(f"The frontend cannot listen on {frontend.host}: {self._busy_ports or 'no port is set'}")

    def _write_certificate(self) -> Path | None:
        """Writes the certificate and its key into one file, which HAProxy reads."""
        if self._options.certificate is None:
            return None
        self._certificate = self._read_certificate(self._options.certificate)
        write_atomically(self._files.certificate, self._certificate, mode=0o600)
        return self._files.certificate

    @staticmethod
    def _read_certificate(files: tuple[Path, Path]) -> bytes:
        return b"\n".join(file.read_bytes() for file in files)

    async def _renew_certificate(self) -> None:
        """Sends the frontend's certificate to the running HAProxy if the certificate file has changed.

        A new certificate that HAProxy refuses is logged once, and the one in use stays.
        """
        if self._options.certificate is None:
            return
        with suppress(OSError):  # it is read again at the next sweep
            content = self._read_certificate(self._options.certificate)
            if content in (self._certificate, self._refused_certificate):
                return
            try:
                await self._api.replace_file("cert", self._files.certificate, content.decode("ascii", "ignore"))
            except CommandFailed as e:  # perhaps the key comes later than its certificate
                self._refused_certificate = content
                log.warning("the certificate %s is not used, the one of before is: %s", self._options.certificate[0], e)
                return
            write_atomically(self._files.certificate, content, mode=0o600)
            self._certificate = content
            log.info("the certificate %s was replaced", self._options.certificate[0])

    # What HAProxy knows

    async def _on_start(self) -> None:
        """Sends all circuits and admissions to a new HAProxy process.

        Until then it passes all requests to the embedded plane.
        """
        async with self._lock:
            for circuit_id in self._circuits:
                self._past[circuit_id] = _add_uses(
                    self._past.get(circuit_id), self._backends.use_of(circuit_id, self._uses)
                )
            self._backends, self._uses, self._values = Backends(self._pools), {}, {}
            commands = []
            for circuit in self._circuits.values():
                commands += await self._map_circuit(circuit, drain_s=0.0)
            commands += [_add_command(self._files.permits, key, "1") for key in self._admissions.expiries_by_key]
            await self._run_commands(commands)

    async def _run_commands(self, commands: list[str]) -> None:
        try:
            await self._api.command(*commands)
        except (BackendError, CommandFailed) as e:
            log.warning("haproxy is started anew, with the present circuits: %s", e)
            self._process.kill()

    async def _map_circuit(self, circuit: Circuit, *, drain_s: float) -> list[str]:
        """Returns the commands by which HAProxy begins or stops to pass a circuit on."""
        routes = await self._routes_of(circuit) if self._can_pass_circuit(circuit) else {}
        now, assignment = asyncio.get_running_loop().time(), None
        if routes:
            assignment = self._backends.assign(circuit.id, routes, now=now, drain_s=drain_s)
        if assignment is None:
            return self._unmap_circuit(circuit.id) + self._backends.drain_circuit(circuit.id, now=now, drain_s=drain_s)
        commands_before, commands_after = assignment
        slot = (
            str(self._frontend.ports[circuit.port]) if circuit.port else f"{circuit.subdomain}{self._frontend.domain}"
        )
        access_kind = "p" if circuit.open_to_public or self._options.protocol is ProxyProtocol.TCP else "c"
        owner_id = circuit.endpoint_id if self._options.protocol in FRAMED else circuit.id.hex
        map_entry = (slot, f"{access_kind}/{self._backends.backend_of(circuit.id)}/{owner_id}")
        if map_entry != self._values.get(circuit.id):
            commands_before += [*self._unmap_circuit(circuit.id), _add_command(self._files.circuits, *map_entry)]
            self._values[circuit.id] = map_entry
        return commands_before + commands_after

    def _unmap_circuit(self, circuit: UUID) -> list[str]:
        map_entry = self._values.pop(circuit, None)
        return [f"del map {self._files.circuits} {map_entry[0]}"] if map_entry is not None else []

    def _can_pass_circuit(self, circuit: Circuit) -> bool:
        """Returns True if HAProxy itself can decide which requests to a circuit it passes on as permitted.

        For a circuit with permits these are requests with cookies that the gate has accepted; others go to the worker.
        """
        if circuit.allowed_client_ips is not None or self._has_trusted_proxies:
            return False
        if self._options.protocol in FRAMED:
            limits = circuit.serving.limits if circuit.serving is not None else None
            if limits is not None and not limits.is_empty:
                return False
            return circuit.open_to_public or circuit.endpoint_id is not None
        if self._options.protocol is ProxyProtocol.TCP or circuit.app_mode is AppMode.INFERENCE:
            return circuit.open_to_public and circuit.serving is None
        return True

    async def _routes_of(self, circuit: Circuit) -> dict[RouteKey, Address]:
        """Returns the addresses of a circuit's routes. The result is empty if one route has no plain address."""
        weights = weights_of({key_of(route): route.traffic_ratio for route in circuit.route_info})
        routes = {}
        for route in circuit.route_info:
            if route.gateway is not None or route.revision is not None:
                return {}
            if weight := weights[key_of(route)]:
                try:
                    host = await resolve(asyncio.get_running_loop(), route.kernel_host)
                except (OSError, BackendError):
                    return {}
                routes[key_of(route)] = Address(host, route.kernel_port, weight)
        return routes

    # The SPI

    async def apply(self, changes: Changes) -> Applied:
        async with self._lock:
            is_framed = self._options.protocol in FRAMED
            inner_applied = Applied(version=changes.version) if is_framed else await self._inner.apply(changes)
            refusals, commands = dict(inner_applied.failed), []
            for circuit in changes.circuits:
                refusal = refusal_of(circuit, self.capabilities) or self._refusal_of_port(circuit)
                if refusal is not None:
                    refusals[circuit.id] = refusal
            removed_circuits = removed_ids(changes, self._circuits) | {
                failed_id for failed_id in refusals if failed_id in self._circuits
            }
            for circuit_id in removed_circuits:
                commands += self._forget_circuit(circuit_id)
            for circuit in changes.circuits:
                if circuit.id not in refusals:
                    commands += await self._put_circuit(circuit)
                    if is_framed and circuit.id not in self._values:
                        refusals[circuit.id] = _NOT_FRAMED
                        commands += self._forget_circuit(circuit.id)
            if newly_failed := refusals.keys() - inner_applied.failed.keys():
                await self._inner.apply(Changes(version=changes.version, removed=tuple(newly_failed)))
            await self._run_commands(commands)
        return Applied(version=changes.version, failed=refusals)

    def _refusal_of_port(self, circuit: Circuit) -> str | None:
        reason = self._busy_ports.get(self._frontend.ports.get(circuit.port or 0, 0))
        return f"E20003: Timed out while waiting for proxy frontend to set up: {reason}" if reason else None

    async def _put_circuit(self, circuit: Circuit) -> list[str]:
        old_circuit = self._circuits.get(circuit.id)
        if old_circuit == circuit:
            return []
        effects = effects_of(old_circuit, circuit)
        self._circuits[circuit.id] = circuit
        self._last_used.setdefault(circuit.id, time.time())
        commands = self._take_slot(circuit)
        if effects.is_revoked:
            commands += self._revoke_circuit(circuit.id)
        return commands + await self._map_circuit(circuit, drain_s=effects.drain_s)

    def _take_slot(self, circuit: Circuit) -> list[str]:
        """Takes the port or host name from another circuit that has it, and returns the HAProxy commands for that."""
        for other_circuit in self._circuits.values():
            slots = [
                (candidate.frontend_mode, candidate.port, candidate.subdomain) for candidate in (other_circuit, circuit)
            ]
            if other_circuit.id != circuit.id and slots[0] == slots[1]:
                return self._unmap_circuit(other_circuit.id)
        return []

    def _revoke_circuit(self, circuit: UUID) -> list[str]:
        """Refuses new requests to a circuit, and then closes the open connections."""
        permit_commands = [
            f"del map {self._files.permits} {key}" for key in self._admissions.take_keys(circuit=circuit)
        ]
        return [*self._unmap_circuit(circuit), *permit_commands, *self._backends.close_circuit(circuit)]

    def _forget_circuit(self, circuit: UUID) -> list[str]:
        commands = self._revoke_circuit(circuit)
        for values_by_circuit in (self._circuits, self._past, self._last_used):
            values_by_circuit.pop(circuit, None)
        return commands

    async def refresh(self) -> None:
        async with self._lock:
            await self._read_uses()

    async def _read_uses(self) -> None:
        try:
            self._uses = await self._api.read_uses()
        except BackendError as e:
            log.debug("haproxy cannot be observed: %s", e)
            return
        now = time.time()
        for circuit in self._circuits:
            use = self._backends.use_of(circuit, self._uses)
            if use.open or use.idle_s is not None:
                last_used = now if use.open else now - (use.idle_s or 0)
                self._last_used[circuit] = max(self._last_used[circuit], last_used)

    def observe(self) -> Mapping[UUID, CircuitObservation]:
        observations, inner_observations = {}, self._inner.observe()
        for circuit_id in self._circuits:
            inner_observation = inner_observations.get(circuit_id, _NO_OBSERVATION)
            use = _add_uses(self._past.get(circuit_id), self._backends.use_of(circuit_id, self._uses))
            in_flight = dict(inner_observation.in_flight)
            for route_key, open_count in use.in_flight.items():
                in_flight[route_key] = in_flight.get(route_key, 0) + open_count
            observations[circuit_id] = replace(
                inner_observation,
                requests=inner_observation.requests + use.requests,
                last_used=max(inner_observation.last_used, self._last_used.get(circuit_id, 0.0)),
                open=inner_observation.open + use.open,
                received=inner_observation.received + use.received,
                sent=inner_observation.sent + use.sent,
                in_flight=in_flight,
            )
        return observations

    def take_usage(self) -> list[InferenceUsage]:
        return self._inner.take_usage()

    def set_waiting_callback(self, callback: Callable[[], None]) -> None:
        self._inner.set_waiting_callback(callback)

    async def cut(self, connections: ConnectionFilter) -> int:
        async with self._lock:
            await self._read_uses()
            cut_count, commands = await self._inner.cut(connections), []
            for circuit in self._circuits.values():
                if connections.circuit in (None, circuit.id) and connections.user in (None, circuit.user_id):
                    use = self._backends.use_of(circuit.id, self._uses)
                    cut_count += use.open if connections.route is None else use.in_flight.get(connections.route, 0)
                    commands += self._backends.cut(circuit.id, connections.route)
            await self._run_commands(commands)
        return cut_count

    # In the background

    def _on_admitted(self, circuit: UUID, key: str) -> None:
        """Sends HAProxy a cookie that the gate has accepted, so that HAProxy accepts it without asking the gate."""
        removed_keys = self._admissions.add(circuit, key, time.monotonic())
        if removed_keys is not None:
            self._spawn(self._report_admission(key, removed_keys))

    async def _report_admission(self, key: str, removed_keys: Iterable[str]) -> None:
        async with self._lock:
            commands = [
                f"del map {self._files.permits} {removed_key}"
                for removed_key in removed_keys
                if removed_key not in self._admissions.expiries_by_key
            ]
            if key in self._admissions.expiries_by_key:  # else the circuit was revoked meanwhile
                commands.append(_add_command(self._files.permits, key, "1"))
            await self._run_commands(commands)

    async def _sweep(self) -> None:
        async with self._lock:
            await self._read_uses()
            commands = self._backends.sweep(self._uses, asyncio.get_running_loop().time())
            expired_keys = self._admissions.take_keys(now=time.monotonic())
            commands += [f"del map {self._files.permits} {key}" for key in expired_keys]
            await self._run_commands(commands)
            await self._renew_certificate()

    def _spawn(self, awaitable: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(awaitable)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, *, drain_s: float = 0.0) -> None:
        for listener in self._sockets.values():
            listener.close()
        await asyncio.gather(self._process.stop(drain_s), self._inner.stop(drain_s=drain_s))
        await cancel_all(*self._tasks)


def _pools_for(circuits: int) -> list[Pool]:
    """Returns the groups of HAProxy backends that are enough for a number of circuits.

    A circuit whose routes drain may have two backends for a while.
    """
    return [
        Pool(prefix="a", backends=circuits + circuits // 4 + 2, servers=_ROUTES, balance="leastconn"),
        Pool(prefix="w", backends=_LARGE_BACKENDS, servers=_MANY_ROUTES, balance="roundrobin"),
        Pool(prefix="l", backends=_LARGE_BACKENDS, servers=_MANY_ROUTES, balance="leastconn"),
    ]


def _add_command(path: Path, key: str, value: str) -> str:
    return f"add map {path} {key} {value}"


def _add_uses(past_use: CircuitUse | None, present_use: CircuitUse) -> CircuitUse:
    """Adds the counts of earlier HAProxy runs to the present counts."""
    if past_use is None:
        return present_use
    return replace(
        present_use,
        requests=past_use.requests + present_use.requests,
        received=past_use.received + present_use.received,
        sent=past_use.sent + present_use.sent,
    )
