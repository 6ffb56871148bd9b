"""Serves circuits by the embedded data plane."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

import msgspec

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.inference.endpoint import Counters
from ai.backend.appproxy.worker.planes.embedded.behind_proxy import BehindProxy
from ai.backend.appproxy.worker.planes.embedded.http_connection import MODELS_SLOT, HttpConnection
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.server import SWEEP_S, Shared
from ai.backend.appproxy.worker.planes.embedded.tcp import TcpClient
from ai.backend.appproxy.worker.planes.embedded.upstream import UpstreamPool
from ai.backend.appproxy.worker.planes.plane import (
    Applied,
    Capabilities,
    CircuitObservation,
    ConnectionFilter,
    Counts,
    refusal_of,
)
from ai.backend.appproxy.worker.upstreams import Dialer
from ai.backend.common.errors import InvalidInput
from ai.backend.common.wire.appproxy import FrontendMode, InferenceUsage, ProxyProtocol
from ai.backend.core.proxy.changes import Changes, removed_ids
from ai.backend.infra.loop import cancel_all

log = logging.getLogger(__name__)
_BACKLOG = 1024
_DRAIN_STEP_S = 0.05


class Frontend(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the address at which clients connect: a port for each circuit, or one port for all host names.

    ``ports`` is for the first form, ``port`` and ``domain`` are for the second one. The domain begins with a dot.

    ``ports`` has the port to listen on for each slot: they differ behind a balancer with ports of its own.

    ``models`` is the address of the base URL of all models, if there is one. ``behind`` is a unix socket or an address:
    the clients of the frontend come there, by another proxy of this worker, and it listens nowhere else.

    ``tls`` is spoken by the listeners; ``is_secure``: by clients, also where a balancer in front speaks it.
    """

    host: str
    ports: Mapping[int, int] = msgspec.field(default_factory=dict)
    port: int | None = None
    domain: str | None = None
    tls: ssl.SSLContext | None = None
    is_secure: bool = False
    models: tuple[str, int] | None = None
    behind: Path | tuple[str, int] | None = None

    @property
    def mode(self) -> FrontendMode:
        return FrontendMode.PORT if self.domain is None else FrontendMode.WILDCARD


class EmbeddedPlane:
    """Serves circuits by asyncio in this process.

    The whole port range is opened at the start, so that no other program takes a slot, and no circuit waits for one.
    """

    def __init__(
        self,
        frontend: Frontend,
        gate: Gate,
        dialer: Dialer,
        *,
        limits: Limits | None = None,
        connections_per_address: int = 0,
        logs_access: bool = False,
        inference: Counters | None = None,
    ) -> None:
        self._frontend = frontend
        self._gate = gate
        self._dialer = dialer
        self._limits = limits or Limits()
        self._connections_per_address = connections_per_address
        self._logs_access = logs_access
        self._inference = inference or Counters()
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._busy_ports: dict[int, str] = {}
        self._shared: Shared
        self._pool: UpstreamPool

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            protocols=frozenset((ProxyProtocol.HTTP, ProxyProtocol.TCP)), frontends=frozenset((self._frontend.mode,))
        )

    @property
    def counts(self) -> Counts:
        return self._shared.counts

    async def start(self) -> None:
        frontend = self._frontend
        self._shared = Shared(
            gate=self._gate,
            dialer=self._dialer,
            limits=self._limits,
            scheme="https" if frontend.is_secure else "http",
            domain=frontend.domain,
            inference=self._inference,
            connections_per_address=self._connections_per_address,
            logs_access=self._logs_access,
        )
        self._pool = UpstreamPool(self._shared)
        if frontend.behind is not None:
            await self._listen_behind_proxy(frontend.behind)
        elif frontend.domain is not None:
            await self._listen(frontend.port or 0, None)
        else:
            for slot, port in frontend.ports.items():
                await self._listen(port, slot)
        if frontend.models is not None:
            await self._listen(frontend.models[1], MODELS_SLOT, host=frontend.models[0])
        if not self._listeners:
            raise InvalidInput(f"The frontend cannot listen on {frontend.host}: {self._busy_ports or 'no port is set'}")
        for port, reason in self._busy_ports.items():
            log.warning("the slot of port %d cannot be used: %s", port, reason)
        self._sweeper = asyncio.create_task(self._sweep())

    async def _listen(self, port: int, slot: int | None, *, host: str | None = None) -> None:
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(
                lambda: self._make_client(slot),
                host or self._frontend.host,
                port,
                ssl=self._frontend.tls,
                backlog=_BACKLOG,
                reuse_address=True,
            )
        except OSError as e:
            self._busy_ports[port] = e.strerror or str(e)
        else:
            self._busy_ports.pop(port, None)
            self._listeners.append(listener)

    async def _listen_behind_proxy(self, listen_address: Path | tuple[str, int]) -> None:
        slots_by_port = {port: slot for slot, port in self._frontend.ports.items()}

        def make_client(address: str, port: int) -> asyncio.Protocol | None:
            if self._frontend.domain is not None:
                return self._make_client(None, address)
            return self._make_client(slots_by_port[port], address) if port in slots_by_port else None

        loop = asyncio.get_running_loop()
        if isinstance(listen_address, tuple):
            self._listeners.append(
                await loop.create_server(lambda: BehindProxy(make_client), *listen_address, backlog=_BACKLOG)
            )
            return
        _remove_socket_file(listen_address)
        self._listeners.append(
            await loop.create_unix_server(lambda: BehindProxy(make_client), listen_address, backlog=_BACKLOG)
        )
        _restrict_to_owner(listen_address)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Returns the addresses on which the plane listens."""
        return [listener.sockets[0].getsockname()[:2] for listener in self._listeners]

    def _make_client(self, slot: int | None, peer: str | None = None) -> asyncio.Protocol:
        state = self._shared.table.by_port.get(slot) if slot is not None else None
        if state is not None and state.circuit.protocol is ProxyProtocol.TCP:
            return TcpClient(self._shared, state, peer)
        return HttpConnection(self._shared, self._pool, slot, peer)

    async def apply(self, changes: Changes) -> Applied:
        circuit_table, now = self._shared.table, self._shared.loop.time()
        for circuit_id in removed_ids(changes, circuit_table.by_id):
            circuit_table.remove(circuit_id)
        refusals: dict[UUID, str] = {}
        for circuit in changes.circuits:
            refusal = refusal_of(circuit, self.capabilities)
            if refusal is None and circuit.port is not None and circuit.frontend_mode is FrontendMode.PORT:
                refusal = await self._port_refusal(circuit.port)
            if refusal is None:
                circuit_table.put(circuit, now)
            else:
                circuit_table.remove(circuit.id)
                refusals[circuit.id] = refusal
        return Applied(version=changes.version, failed=refusals)

    async def _port_refusal(self, port: int) -> str | None:
        slot, listen_port = port, self._frontend.ports.get(port)
        if listen_port is None:
            return f"E00001: Server misconfigured - coordinator: {slot} is no port of this worker"
        port = listen_port
        if port in self._busy_ports:
            await self._listen(port, slot)
        reason = self._busy_ports.get(port)
        return (
            f"E20003: Timed out while waiting for proxy frontend to set up: port {port}: {reason}" if reason else None
        )

    async def refresh(self) -> None:
        """Does nothing, because the counts of circuits that :meth:`observe` returns are always current."""

    def take_usage(self) -> list[InferenceUsage]:
        return self._inference.book.take()

    def set_waiting_callback(self, callback: Callable[[], None]) -> None:
        self._inference.on_waiting = callback

    def observe(self) -> Mapping[UUID, CircuitObservation]:
        return {state.circuit.id: state.observe() for state in self._shared.table}

    async def cut(self, connections: ConnectionFilter) -> int:
        return self._shared.table.cut(connections)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._shared.sweep()
            self._pool.close_idle()

    async def stop(self, *, drain_s: float = 0.0) -> None:
        shared = self._shared
        shared.is_draining = True
        for listener in self._listeners:
            listener.close()
        for connection in list(shared.timed):
            if isinstance(connection, HttpConnection):
                connection.drain()
        await self._drain(drain_s)
        for state in shared.table:
            state.cut()
        self._pool.close_idle(closes_all=True)
        for connection in list(shared.timed):
            connection.expire()
        await cancel_all(*shared.tasks, *((self._sweeper,) if self._sweeper else ()))

    async def _drain(self, drain_s: float) -> None:
        """Waits until no connection is open, at most for the given time."""
        deadline = self._shared.loop.time() + drain_s
        for _ in range(int(drain_s / _DRAIN_STEP_S)):
            if self._shared.loop.time() >= deadline or not any(state.connections for state in self._shared.table):
                return
            await asyncio.sleep(_DRAIN_STEP_S)


def _remove_socket_file(path: Path) -> None:
    path.unlink(missing_ok=True)


def _restrict_to_owner(path: Path) -> None:
    path.chmod(0o600)
