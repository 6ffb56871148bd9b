"""Authenticates clients in a process of HAProxy, so that the agent's process does not handle TLS.

This process accepts a connection, reads without taking it which route it names, and passes it on to the frontend of
HAProxy that verifies by the authority of that route alone. HAProxy hands back one end of a socket pair for each client
that is authenticated. Both ways are sockets without names: no path leads to them.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ai.backend.agent.gateway.client_hello import ClientHello, hello_context, peek_hello
from ai.backend.agent.gateway.direct import DirectClient
from ai.backend.agent.gateway.model import Route
from ai.backend.agent.gateway.plane import MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS, Clients
from ai.backend.agent.gateway.proxy_header import read_header
from ai.backend.common.errors import BackendError, InvalidInput, LimitExceeded, Unavailable
from ai.backend.infra.files import write_atomically
from ai.backend.infra.haproxy.process import HaproxyProcess, make_haproxy_folder
from ai.backend.infra.haproxy.runtime import CommandFailed, RuntimeApi
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.pending import PendingConnections
from ai.backend.infra.tls.certificates import TlsIdentity
from ai.backend.infra.tls.contexts import server_context

log = logging.getLogger(__name__)
_FRONTENDS = 16
"""The number of frontends of HAProxy. As many authorities can have routes at once: there is one for each app proxy."""
_DESCRIPTOR_MESSAGE = b"\0\0"
"""The bytes that HAProxy expects beside the descriptor of a passed connection."""
_REFUSED_WORD = "refused"
_FULL_PAUSE_S, _FAILED_PAUSE_S = 0.02, 0.1
_MAX_TIMER_S = 20 * 86_400.0
"""HAProxy counts milliseconds in 31 bits."""
_SPARE_DESCRIPTORS = 200


@dataclass(slots=True, eq=False)
class _Waiting:
    """Describes a client that was passed to HAProxy and is not handed back yet.

    ``handed_back`` gets the connection that HAProxy opens for the client.
    """

    frontend: int
    name: str
    handed_back: asyncio.Future[socket.socket]

    def fail(self, reason: str) -> None:
        self.handed_back.set_exception(Unavailable(reason))
        self.handed_back.exception()  # nobody may wait for it yet


class HaproxyPlane:
    """Implements a :class:`~ai.backend.agent.gateway.plane.GatewayPlane` by a process of HAProxy.

    HAProxy has no state but the certificates of authorities, which are in its files as well: it is killed where a
    command fails, and comes back as it should be. It ends with this process, as do the connections to services.
    """

    descriptors = 3

    def __init__(
        self,
        folder: Path,
        program: str,
        identity: TlsIdentity,
        clients: Clients,
        *,
        handshake_timeout_s: float,
        idle_timeout_s: float,
        max_connections: int,
    ) -> None:
        self._folder = folder
        self._program = program
        self._identity = identity
        self._clients = clients
        self._handshake_timeout_s = handshake_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._max_connections = max_connections
        self._authorities: list[str | None] = [None] * _FRONTENDS
        self._hello_context = hello_context(server_context(identity))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        """The pairs of sockets to HAProxy, each with our end and HAProxy's: one for each frontend, and last the one for
        the way back.
        """
        self._waiting: dict[bytes, _Waiting] = {}
        self._pending = PendingConnections(MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._process: HaproxyProcess | None = None
        self._api = RuntimeApi(folder / "admin.sock")

    @property
    def pid(self) -> int | None:
        """Returns the process id of HAProxy."""
        return self._process.pid if self._process is not None else None

    async def start(self, listener: socket.socket, authorities: Collection[str]) -> None:
        make_haproxy_folder(self._folder)
        self._pairs = [socket.socketpair() for _ in range(_FRONTENDS + 1)]
        for sock in (pair_socket for pair in self._pairs for pair_socket in pair):
            sock.setblocking(False)
        self._write("gateway.pem", self._identity.key + self._identity.certificate)
        for frontend_number in range(_FRONTENDS):
            self._write(
                f"authority-{frontend_number}.pem", self._identity.certificate
            )  # nobody has one that it has issued
        await self.trust(authorities)
        self._write("haproxy.cfg", self._configuration())
        config_path, command_socket_path = self._folder / "haproxy.cfg", self._folder / "admin.sock"
        fds = [haproxy_socket.fileno() for _, haproxy_socket in self._pairs]
        process = HaproxyProcess(
            self._program, config_path, command_socket_path, fds, self._on_start, self._on_end, self._on_line
        )
        try:
            await process.start()
        except BaseException:
            await process.stop(0)
            raise
        self._process = process
        asyncio.get_running_loop().add_reader(self._pairs[-1][0], self._on_handed_back)
        listener.setblocking(False)
        self._spawn(self._accept(listener), "gateway-accept")

    def _write(self, name: str, content: str) -> None:
        write_atomically(self._folder / name, content.encode(), mode=0o600)

    def _configuration(self) -> str:
        hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        max_connections = max(1, min(self._max_connections + MAX_HANDSHAKES, (hard_limit - _SPARE_DESCRIPTORS) // 3))
        idle_timeout_ms = int(1000 * min(2 * self._idle_timeout_s + 60, _MAX_TIMER_S))
        lines = [
            "global",
            f"  stats socket {self._folder / 'admin.sock'} mode 600 level admin",
            "  nbthread 1",
            f"  maxconn {max_connections}",
            "  log stderr format raw daemon",
            # A session that one authority has verified must not be resumed at a route of another one.
            "  tune.ssl.cachesize 0",
            "  ssl-default-bind-options ssl-min-ver TLSv1.3 no-tls-tickets",
            "defaults",
            "  mode tcp",
            "  log global",
            "  log-format -",
            "  option dontlog-normal",
            f"  maxconn {max_connections}",
            "  timeout connect 5s",
            f"  timeout client {max(1000, int(2000 * self._handshake_timeout_s))}ms",
            f"  timeout server {idle_timeout_ms}ms",
            f"  timeout tunnel {idle_timeout_ms}ms",
        ]
        for frontend_number, (_, haproxy_socket) in enumerate(self._pairs[:-1]):
            certificate, authority = self._folder / "gateway.pem", self._folder / f"authority-{frontend_number}.pem"
            lines += [
                f"frontend f{frontend_number}",
                f"  bind sockpair@{haproxy_socket.fileno()} ssl crt {certificate} ca-file {authority} verify required",
                f"  unique-id-format %[ssl_fc_client_random,hex].{frontend_number}",
                f'  error-log-format "{_REFUSED_WORD} %[ssl_fc_client_random,hex].{frontend_number}"',
                "  default_backend agent",
            ]
        agent_fd = self._pairs[-1][1].fileno()
        lines += [
            "backend agent",
            f"  server agent sockpair@{agent_fd} send-proxy-v2 proxy-v2-options authority,unique-id",
        ]
        return "\n".join(lines) + "\n"

    async def _on_start(self) -> None:
        """Does nothing at a start of HAProxy, since HAProxy has read its files already."""

    def _on_end(self) -> None:
        """Cuts all connections when HAProxy has ended, also connections whose descriptors HAProxy may have taken."""
        for waiting_client in self._waiting.values():
            if not waiting_client.handed_back.done():
                waiting_client.fail("haproxy has ended")
        self._clients.cut_all()

    def _on_line(self, line: str) -> None:
        """Cuts a client that HAProxy has refused. Otherwise the client would stay open until the handshake's time is
        over.
        """
        first_word, _, unique_id = line.partition(" ")
        if first_word == _REFUSED_WORD and (waiting_client := self._find_waiting_client(unique_id)) is not None:
            waiting_client.fail("haproxy does not authenticate the client")

    def _find_waiting_client(self, unique_id: str) -> _Waiting | None:
        """Returns the client with this random number, if it was passed to this frontend."""
        client_random, _, frontend = unique_id.partition(".")
        with suppress(ValueError):
            waiting_client = self._waiting.get(bytes.fromhex(client_random))
            if (
                waiting_client is not None
                and not waiting_client.handed_back.done()
                and frontend == str(waiting_client.frontend)
            ):
                return waiting_client
        return None

    async def trust(self, authorities: Collection[str]) -> None:
        for authority in authorities:
            if authority not in self._authorities:
                await self._assign_frontend(authority, other_authorities=authorities)

    async def _assign_frontend(self, authority: str, other_authorities: Collection[str]) -> None:
        """Assigns an authority to a frontend of HAProxy whose present authority is not needed any more."""
        unused_frontends = [
            frontend_number
            for frontend_number, frontend_authority in enumerate(self._authorities)
            if frontend_authority is None or frontend_authority not in other_authorities
        ]
        if not unused_frontends:
            raise LimitExceeded(f"{_FRONTENDS} app proxies have routes here, as many as there may be")
        frontend_number = unused_frontends[0]
        self._authorities[frontend_number] = None  # until HAProxy verifies by the new one
        self._write(f"authority-{frontend_number}.pem", authority)
        if self._process is not None:
            path = self._folder / f"authority-{frontend_number}.pem"
            try:
                await self._api.replace_file("ca-file", path, authority)
            except (BackendError, CommandFailed) as e:
                log.warning("haproxy is started anew, with the present certificates: %s", e)
                self._process.kill()
        self._authorities[frontend_number] = authority

    # -- from a client to HAProxy

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listener)
            except OSError as e:
                log.warning("the service gateway cannot accept a connection: %s", e)
                await asyncio.sleep(_FAILED_PAUSE_S)  # no descriptor is free: nothing tells when one is
                continue
            self._pending.add(str(address[0]), self._spawn(self._authenticate(client), "gateway-handshake"))

    async def _authenticate(self, client: socket.socket) -> None:
        """Accepts a client that HAProxy has authenticated and handed back, and cuts every other client."""
        try:
            route, returned_socket = await self._pass_to_haproxy(client)
        except asyncio.CancelledError:
            self._clients.refuse("handshake")
            _cut(client)
            raise
        except (BackendError, OSError, TimeoutError) as e:
            log.debug("a client of the gateway is not authenticated: %s", e)
            self._clients.refuse("handshake")
            _cut(client)
            return
        if route is None or returned_socket is None:
            self._clients.refuse("route")
            client.close()
            return
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(DirectClient, sock=returned_socket)
        except OSError:
            returned_socket.close()
            _cut(client)
            return
        # Not in ``connection_made``: a transport of uvloop that is cut there leaves the socket to the collector, which
        # closes its descriptor once more, when it may be that of another connection.
        self._clients.connect(route, transport, tcp=client)

    async def _pass_to_haproxy(self, client: socket.socket) -> tuple[Route | None, socket.socket | None]:
        """Passes a client to HAProxy. Returns the client's route and the socket that HAProxy hands back for the
        client.
        """
        for option_level, option in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY),
        ):
            client.setsockopt(option_level, option, 1)
        async with asyncio.timeout(self._handshake_timeout_s):
            hello = await peek_hello(client, self._hello_context)
            if (route := self._clients.find_route(hello.name)) is None:
                client.recv(len(hello.record))  # what is left unread would become a reset, and the alert would be lost
                client.send(hello.alert)
                return None, None
            return route, await self._wait_returned_socket(client, hello, route)

    async def _wait_returned_socket(self, client: socket.socket, hello: ClientHello, route: Route) -> socket.socket:
        if hello.random in self._waiting or route.record.authority not in self._authorities:
            raise InvalidInput("another client has the same random number, or the route is not served yet")
        frontend = self._authorities.index(route.record.authority)
        waiting_client = _Waiting(frontend, route.name, asyncio.get_running_loop().create_future())
        self._waiting[hello.random] = waiting_client
        try:
            while True:
                try:
                    socket.send_fds(self._pairs[frontend][0], [_DESCRIPTOR_MESSAGE], [client.fileno()])
                    break
                except OSError as e:  # HAProxy is starting, or has very much to do
                    log.debug("haproxy takes no connection: %s", e)
                    await asyncio.sleep(_FULL_PAUSE_S)  # it does not tell when it takes more
            return await waiting_client.handed_back
        except asyncio.CancelledError:
            if waiting_client.handed_back.done() and waiting_client.handed_back.exception() is None:
                waiting_client.handed_back.result().close()
            raise
        finally:
            del self._waiting[hello.random]

    # -- from HAProxy to a service

    def _on_handed_back(self) -> None:
        with suppress(BlockingIOError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._pairs[-1][0], len(_DESCRIPTOR_MESSAGE), 1)
                for fd in fds:
                    self._spawn(self._match_returned_socket(socket.socket(fileno=fd)), "gateway-handed-back")
                if not data:
                    return

    async def _match_returned_socket(self, sock: socket.socket) -> None:
        """Passes a connection that HAProxy has opened to the waiting client to whom the connection belongs.

        The frontend and the name must be those by which the client was passed on, since the client's random number
        alone may be that of another client.
        """
        sock.setblocking(False)
        try:
            async with asyncio.timeout(self._handshake_timeout_s):
                header = await read_header(sock)
        except (OSError, TimeoutError, InvalidInput) as e:
            log.warning("haproxy has handed back what is not understood: %s", e)
            sock.close()
            return
        except asyncio.CancelledError:
            sock.close()
            raise
        waiting_client = self._find_waiting_client(header.unique_id)
        if waiting_client is None or header.authority != waiting_client.name:
            sock.close()
            return
        waiting_client.handed_back.set_result(sock)

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        if self._pairs:
            asyncio.get_running_loop().remove_reader(self._pairs[-1][0])
        await cancel_all(*self._tasks)
        if self._process is not None:
            await self._process.stop(0)
        for sock in (pair_socket for pair in self._pairs for pair_socket in pair):
            sock.close()
        self._pairs = []


def _cut(client: socket.socket) -> None:
    """Shuts down and closes a connection whose descriptor HAProxy may have too."""
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
    client.close()
