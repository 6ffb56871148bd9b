"""Accepts data connections at the manager. Each token is accepted once."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ai.backend.common.errors import Unavailable
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.pending import PendingConnections
from ai.backend.infra.rpc.data.connection import HANDSHAKE_S, TOKEN_BYTES, WELCOME, DataConnection, user_of
from ai.backend.infra.rpc.frames import DataOffer
from ai.backend.infra.rpc.streams import StreamPort
from ai.backend.infra.tls.certificates import create_server_identity, fingerprint_of
from ai.backend.infra.tls.contexts import server_context

log = logging.getLogger(__name__)
_MAX_PENDING = 128
"""The number of connections at each listener that may be without their token."""
_MAX_PENDING_OF_ADDRESS = 32
"""The number of such connections from one address. An honest agent has at most ``dialer.MAX_SIMULTANEOUS``."""


class DataServer:
    """Listens on a port by TLS (0 is any port), and on a unix socket at ``path`` in a private folder for agents of the
    same user."""

    def __init__(self, port: int = 0, path: Path | None = None) -> None:
        self._requested_port = port
        self._path = path
        self._port: int | None = None
        self._fingerprint = b""
        self._has_socket = False
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[DataConnection] = set()
        self._expected: dict[bytes, StreamPort] = {}

    async def start(self, address: str) -> None:
        """Listens at the host of the link's address, and on the socket if possible. Raises Unavailable if the port is
        taken."""
        host = urlsplit(address).hostname
        if host is not None:
            try:
                identity = create_server_identity()
                context, self._fingerprint = server_context(identity), fingerprint_of(identity.certificate)
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                listener = socket.create_server((host, self._requested_port), family=family, backlog=128)
            except OSError as e:  # ssl.SSLError is one
                raise Unavailable(f"cannot bind the data port {self._requested_port} of {host}: {e}") from None
            self._port = listener.getsockname()[1]
            self._listen(listener, context)
        if self._path is not None:
            try:
                listener = _listen_on(self._path)
            except OSError as e:
                log.warning("agents of this host cannot open data connections at %s: %s", self._path, e)
            else:
                self._has_socket = True
                self._listen(listener, None)

    async def stop(self) -> None:
        """Aborts every connection. Safe without ``start`` and twice."""
        listeners, self._listeners = self._listeners, []
        await cancel_all(*self._tasks)
        for listener in listeners:
            listener.close()
        for connection in list(self._connections):
            connection.abort()
        self._expected.clear()
        if self._has_socket and self._path is not None:
            self._path.unlink(missing_ok=True)
        self._port, self._has_socket = None, False

    @contextmanager
    def offer(self, port: StreamPort) -> Iterator[DataOffer]:
        """Yields the token and addresses by which the peer may connect the given stream.

        The token is valid while the block runs. Raises Unavailable if the server does not listen.
        """
        if not self._listeners:
            raise Unavailable("the manager takes no data connections")
        token = secrets.token_bytes(TOKEN_BYTES)
        self._expected[token] = port
        try:
            yield DataOffer(token, str(self._path) if self._has_socket else None, self._port, self._fingerprint)
        finally:
            self._expected.pop(token, None)

    def _listen(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)
        self._start_task(self._accept(listener, context), "data-accept")

    def _start_task(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        pending_connections = PendingConnections(_MAX_PENDING, _MAX_PENDING_OF_ADDRESS)
        while True:
            try:
                sock, address = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as e:
                log.warning("a data connection could not be accepted: %s", e)
                await asyncio.sleep(0.1)  # out of file descriptors: some will be closed
                continue
            handshake_task = self._start_task(self._handshake(sock, context), "data-handshake")
            pending_connections.add(address[0] if context is not None else "", handshake_task)
            await asyncio.sleep(0)  # each has begun, and closes its socket when it is cut

    async def _handshake(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Accepts the token of a new connection, within the timeout."""
        if context is None and user_of(sock) != os.getuid():
            sock.close()
            return
        connection = DataConnection(TOKEN_BYTES, on_end=self._connections.discard)
        self._connections.add(connection)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock, ssl=context)
                port = self._expected.pop(await connection.first(), None)
        except (OSError, TimeoutError) as e:
            log.debug("a data connection sent no token: %s", e)
            port = None
        except asyncio.CancelledError:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # a transport that is being made is not notified otherwise
            connection.abort()
            self._connections.discard(connection)
            raise
        if port is None:
            connection.abort()
            self._connections.discard(connection)
            return
        connection.carry(port)
        connection.send_first(WELCOME)


def _listen_on(path: Path) -> socket.socket:
    """Listens on a unix socket in a private directory of this user, with any length of path. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    folder_fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder_fd}/{path.name}")
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder_fd)
    return listener
