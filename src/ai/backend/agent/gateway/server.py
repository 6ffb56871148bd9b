"""Listens for clients of routes, and connects them to services."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.gateway.direct import DirectClient, DirectPorts
from ai.backend.agent.gateway.model import Route, RouteRecord, Traffic
from ai.backend.agent.gateway.routes import Routes
from ai.backend.agent.gateway.sockets import socket_of
from ai.backend.agent.gateway.splice import Splice
from ai.backend.agent.kernels.store import NamedValues
from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.wire.execution import RouteOpened
from ai.backend.common.wire.link import ByteStream
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.pending import PendingConnections
from ai.backend.infra.tls.certificates import TlsIdentity, create_server_identity, is_issued_by
from ai.backend.infra.tls.connection import TlsConnection
from ai.backend.infra.tls.contexts import server_context

log = logging.getLogger(__name__)
_MAX_HANDSHAKES, _MAX_HANDSHAKES_OF_ADDRESS = 1024, 512
_BACKLOG = 1024
_SHARE_OF_DESCRIPTORS = 0.75
"""The part of this process's descriptors that connections may take: two each."""
_IDENTITY_KEY, _PORT_KEY = "identity", "port"

Connect = Callable[[str, int], Awaitable[ByteStream]]
"""Connects to a port of a running kernel. Raises BackendError."""


class _ServerObject(ssl.SSLObject):
    """The server's side of a handshake, with the route that the client has named."""

    route: Route | None = None


class _Accepted(TlsConnection):
    """A connection that was accepted; ``on_connected`` is called before the first byte."""

    def __init__(self, context: ssl.SSLContext, on_connected: Callable[[_Accepted, str], None]) -> None:
        super().__init__(context, server_side=True)
        self._on_connected = on_connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._on_connected(self, str((transport.get_extra_info("peername") or ("",))[0]))


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
        self._connect = connect
        self._listener: asyncio.Server | None = None
        self._context: ssl.SSLContext | None = None
        self._authorities: set[str] = set()
        self._identity: TlsIdentity | None = None
        self._pending = PendingConnections(_MAX_HANDSHAKES, _MAX_HANDSHAKES_OF_ADDRESS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._open_count = 0
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_connections = min(self._settings.max_connections, int(descriptors * _SHARE_OF_DESCRIPTORS / 2))
        self._lock = asyncio.Lock()
        self.routes = Routes(values)
        self.traffic = Traffic()
        self._direct = DirectPorts(self._address.host, settings.container.port_range) if self._settings.direct else None

    @property
    def open_count(self) -> int:
        """Returns the number of connections that reach, or are about to reach, a service."""
        return self._open_count

    async def start(self, live_kernels: Collection[str]) -> None:
        """Serves the routes of these kernels that were open when the agent ended, and forgets all others."""
        self.routes.restore(live_kernels, direct=self._direct is not None)
        for route in self.routes.all():
            try:
                await self._serve(route)
            except Unavailable as e:
                log.warning("the route %s cannot be reached: %s", route.name, e)
        self._spawn(self._cut_idle(), "gateway-idle")

    async def stop(self) -> None:
        """Cuts every connection. The routes stay stored. Safe without ``start`` and twice."""
        listener, self._listener = self._listener, None
        for server in [listener, *(route.listener for route in self.routes.all())]:
            if server is not None:
                server.close()
        await cancel_all(*self._tasks)
        for route in self.routes.all():
            for connection in list(route.connections):
                connection.abort()

    async def open(self, kernel_id: str, port: int, authority: str) -> RouteOpened:
        """Opens a route, see :meth:`~ai.backend.common.wire.link.AgentCommands.open_route`."""
        record = RouteRecord(kernel_id=kernel_id, port=port, authority=authority)
        async with self._lock:
            route = self.routes.find_equal(record) or self.routes.add(self._with_port(record))
            await self._serve(route)
        host, actual_port = self._announced_address(route)
        certificate = None if self._direct is not None or self._identity is None else self._identity.certificate
        return RouteOpened(name=route.name, host=host, port=actual_port, certificate=certificate)

    def close(self, name: str) -> None:
        """Closes a route, if there is one. Raises Unavailable."""
        self.routes.close(name)

    def end_kernel(self, kernel_id: str) -> None:
        """Closes every route of a kernel. Raises Unavailable."""
        for route in self.routes.of_kernel(kernel_id):
            self.close(route.name)

    def cut_kernel(self, kernel_id: str) -> None:
        """Cuts the connections of a kernel whose workload ends; its routes stay open for the next workload."""
        for route in self.routes.of_kernel(kernel_id):
            for connection in list(route.connections):
                connection.abort()

    # -- listeners

    def _with_port(self, record: RouteRecord) -> RouteRecord:
        """Returns the record with a port of the host where addresses are direct. Raises Unavailable."""
        if self._direct is None:
            return record
        with self._direct.take() as listener:  # it is taken again at once, as after a restart
            return msgspec.structs.replace(record, direct_port=listener.getsockname()[1])

    async def _serve(self, route: Route) -> None:
        """Listens, unless it listens already, and accepts clients of the route's authority. Raises Unavailable."""
        if self._direct is not None:
            await self._serve_directly(self._direct, route)
            return
        try:
            if self._identity is None:
                self._identity = self._load_identity()
            if self._context is None or not self._authorities >= {route.record.authority}:
                self._authorities = self.routes.authorities()
                self._context = server_context(self._identity, self._authorities)
                self._context.sslobject_class = _ServerObject
                self._context.sni_callback = self._choose_route
            if self._listener is None:
                await self._listen()
        except OSError as e:
            address = f"{self._address.host}:{self._address.port}"
            raise Unavailable(f"the service gateway cannot listen at {address}: {e}") from e

    async def _serve_directly(self, ports: DirectPorts, route: Route) -> None:
        if route.listener is not None or route.record.direct_port is None:
            return
        try:
            sock = ports.bind(route.record.direct_port)
        except OSError as e:
            raise Unavailable(f"the port {route.record.direct_port} of a route is taken: {e}") from e
        accept = partial(self._let_in, route)
        route.listener = await asyncio.get_running_loop().create_server(lambda: DirectClient(accept), sock=sock)

    async def _listen(self) -> None:
        """Listens at the port of the settings, or at the one of the last time, or at any. Raises OSError."""
        loop, host, port = asyncio.get_running_loop(), self._address.host, self._address.port
        ports = [port] if port else [int(self._values.get(_PORT_KEY) or 0), 0]
        for number in ports:
            try:
                self._listener = await loop.create_server(self._accept, host, number, backlog=_BACKLOG)
                break
            except OSError as e:
                if number == ports[-1]:
                    raise
                log.warning("port %d, where routes are reached, is taken (%s); they get another one", number, e)
        assert self._listener is not None
        actual_port = self._listener.sockets[0].getsockname()[1]
        self._values.put(_PORT_KEY, str(actual_port).encode())
        log.info("the service gateway listens at %s:%d", host, actual_port)

    def _load_identity(self) -> TlsIdentity:
        """Returns the gateway's key and certificate, which are made once. Raises OSError."""
        if (stored := self._values.get(_IDENTITY_KEY)) is not None:
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(stored, type=TlsIdentity)
        identity = create_server_identity("backendai service gateway")
        self._values.put(_IDENTITY_KEY, msgspec.json.encode(identity))
        return identity

    def _announced_address(self, route: Route) -> tuple[str, int]:
        host = self._announced.host or self._address.host
        if route.record.direct_port is not None:
            return host, route.record.direct_port
        assert self._listener is not None
        return host, self._announced.port or self._listener.sockets[0].getsockname()[1]

    # -- connections

    def _accept(self) -> _Accepted:
        assert self._context is not None
        return _Accepted(self._context, self._on_connected)

    def _on_connected(self, client: _Accepted, address: str) -> None:
        self._pending.add(address, self._spawn(self._authenticate(client), "gateway-handshake"))

    def _choose_route(self, tls: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        """Finds the route that a client names in its first message; without one the handshake ends there."""
        route = self.routes.find(name)
        if route is None or not isinstance(tls, _ServerObject):
            self._refuse("route")
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        tls.route = route
        return None

    async def _authenticate(self, client: _Accepted) -> None:
        """Awaits the handshake, and lets a client in that its route's authority has certified."""
        try:
            async with asyncio.timeout(self._settings.handshake_timeout):
                await client.handshake
        except (OSError, TimeoutError) as e:
            log.debug("a client of the gateway is not authenticated: %s", e)
            if getattr(e, "reason", "") != "CALLBACK_FAILED":  # counted already
                self._refuse("handshake")
            client.abort()
            return
        except asyncio.CancelledError:
            self._refuse("handshake")
            client.abort()
            raise
        tls = client.ssl_object
        assert isinstance(tls, _ServerObject)
        route = tls.route
        # The context accepts the authorities of all routes.
        if route is None or not is_issued_by(tls.getpeercert(binary_form=True), route.authority):
            self._refuse("authority")
            client.abort()
            return
        self._let_in(route, client)

    def _let_in(self, route: Route, client: asyncio.Transport) -> None:
        reason = None
        if not route.is_open:
            reason = "route"
        elif (
            self._open_count >= self._max_connections
            or len(route.connections) >= self._settings.max_connections_per_route
        ):
            reason = "limit"
        if reason is not None:
            self._refuse(reason)
            client.abort()
            return

        def on_end(ended: Splice) -> None:
            route.connections.discard(ended)
            self._open_count -= 1

        splice = Splice(client, self.traffic, on_end)
        route.connections.add(splice)
        self._open_count += 1
        self._spawn(self._reach_service(route, splice), "gateway-connect")

    async def _reach_service(self, route: Route, splice: Splice) -> None:
        try:
            stream = await self._connect(route.record.kernel_id, route.record.port)
            if splice.is_over:
                await stream.close()
                return
            sock, splice.copying = socket_of(stream)
            await splice.connect(sock)
        except (BackendError, OSError) as e:
            log.debug("the service of the route %s cannot be reached: %s", route.name, e)
            self._refuse("service")
            splice.abort()
        except BaseException:
            splice.abort()
            raise
        else:
            self.traffic.accepted += 1

    def _refuse(self, reason: str) -> None:
        self.traffic.refused[reason] += 1

    async def _cut_idle(self) -> None:
        """Cuts connections over which nothing has passed for the time of the settings."""
        while True:
            await asyncio.sleep(min(self._settings.idle_timeout / 4, 60.0))
            oldest = asyncio.get_running_loop().time() - self._settings.idle_timeout
            for route in self.routes.all():
                for connection in [each for each in route.connections if each.last_used < oldest]:
                    connection.abort()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
