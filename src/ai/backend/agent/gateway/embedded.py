"""Authenticates the clients of the service gateway in the agent's own process."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Collection

from ai.backend.agent.gateway.model import Route
from ai.backend.agent.gateway.plane import BACKLOG, MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS, Clients
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.pending import PendingConnections
from ai.backend.infra.tls.certificates import TlsIdentity, is_issued_by
from ai.backend.infra.tls.connection import TlsConnection
from ai.backend.infra.tls.contexts import server_context

log = logging.getLogger(__name__)


class _ServerObject(ssl.SSLObject):
    """Represents the server's side of a TLS handshake. ``route`` is the route that the client has named."""

    route: Route | None = None


class _Accepted(TlsConnection):
    """Represents the TLS connection of an accepted client. Calls ``on_connected`` once before it reads a byte."""

    def __init__(self, context: ssl.SSLContext, on_connected: Callable[[_Accepted, str], None]) -> None:
        super().__init__(context, server_side=True)
        self._on_connected = on_connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._on_connected(self, str((transport.get_extra_info("peername") or ("",))[0]))


class EmbeddedPlane:
    """Implements a :class:`~ai.backend.agent.gateway.plane.GatewayPlane` in this process."""

    descriptors = 2

    def __init__(self, identity: TlsIdentity, clients: Clients, handshake_timeout_s: float) -> None:
        self._identity = identity
        self._clients = clients
        self._handshake_timeout_s = handshake_timeout_s
        self._authorities: frozenset[str] = frozenset()
        self._context: ssl.SSLContext
        self._server: asyncio.Server | None = None
        self._pending = PendingConnections(MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket, authorities: Collection[str]) -> None:
        await self.trust(authorities)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, sock=listener.dup(), backlog=BACKLOG)

    async def trust(self, authorities: Collection[str]) -> None:
        if self._authorities and self._authorities >= set(authorities):
            return
        self._authorities = frozenset(authorities)
        self._context = server_context(self._identity, self._authorities)
        self._context.sslobject_class = _ServerObject
        self._context.sni_callback = self._choose_route

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await cancel_all(*self._tasks)

    def _accept(self) -> _Accepted:
        return _Accepted(self._context, self._on_connected)

    def _on_connected(self, client: _Accepted, address: str) -> None:
        task = asyncio.create_task(self._authenticate(client), name="gateway-handshake")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._pending.add(address, task)

    def _choose_route(self, tls: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        """Finds the route that a client names in its first message. If there is no such route, the handshake fails."""
        route = self._clients.find_route(name)
        if route is None or not isinstance(tls, _ServerObject):
            self._clients.refuse("route")
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        tls.route = route
        return None

    async def _authenticate(self, client: _Accepted) -> None:
        """Waits for the TLS handshake, and accepts a client whose certificate comes from the authority of its route."""
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                await client.handshake
        except (OSError, TimeoutError) as e:
            log.debug("a client of the gateway is not authenticated: %s", e)
            if getattr(e, "reason", "") != "CALLBACK_FAILED":  # counted already
                self._clients.refuse("handshake")
            client.abort()
            return
        except asyncio.CancelledError:
            self._clients.refuse("handshake")
            client.abort()
            raise
        tls = client.ssl_object
        assert isinstance(tls, _ServerObject)
        route = tls.route
        # The context accepts the authorities of all routes.
        if route is None or not is_issued_by(tls.getpeercert(binary_form=True), route.authority):
            self._clients.refuse("authority")
            client.abort()
            return
        self._clients.connect(route, client)
