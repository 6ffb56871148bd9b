"""The manager's side of data connections, which listens and accepts each token once."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import ssl
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from ai.backend.common.errors import Unavailable
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.rpc.data.connection import HANDSHAKE_S, TOKEN_BYTES, WELCOME, DataConnection, user_of
from ai.backend.infra.rpc.frames import DataOffer
from ai.backend.infra.rpc.streams import StreamPort

log = logging.getLogger(__name__)
_MAX_PENDING = 128
"""The number of connections at each listener that may be without their token."""
_MAX_PENDING_OF_ADDRESS = 32
"""The number of such connections from one address. An honest agent has at most ``dialer.MAX_SIMULTANEOUS``."""

_CERTIFICATE_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "backendai")])
_VALID_FROM = datetime(1970, 1, 1, tzinfo=UTC)
_VALID_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""RFC 5280, 4.1.2.5: the certificate has no expiration date."""


class PendingConnections:
    """Tracks connections without a token, by address, oldest first. Over the limit the oldest is evicted."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[asyncio.Task[None], None]] = {}
        self._count = 0

    def add(self, address: str, task: asyncio.Task[None]) -> None:
        """Adds a connection. Evicts one of the same address if that has too many, else one of the address with the
        most."""
        self._tasks.setdefault(address, {})[task] = None
        self._count += 1
        task.add_done_callback(lambda _: self._remove(address, task))
        if len(self._tasks[address]) > _MAX_PENDING_OF_ADDRESS:
            self._evict_oldest(address)
        elif self._count > _MAX_PENDING:
            self._evict_oldest(max(self._tasks, key=lambda known_address: len(self._tasks[known_address])))

    def _evict_oldest(self, address: str) -> None:
        oldest_task = next(iter(self._tasks[address]))
        oldest_task.cancel()
        self._remove(address, oldest_task)

    def _remove(self, address: str, task: asyncio.Task[None]) -> None:
        tasks = self._tasks.get(address, {})
        if task in tasks:
            del tasks[task]
            self._count -= 1
            if not tasks:
                del self._tasks[address]


class DataServer:
    """Listens on a port by TLS (0 is any), and on a unix socket at ``path``, in a private folder, for agents of the
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
                context, self._fingerprint = tls_server_context()
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
        """Yields how the peer may connect this stream while the block runs. Raises Unavailable if it cannot."""
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
        self._spawn(self._accept(listener, context), "data-accept")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        pending = PendingConnections()
        while True:
            try:
                sock, address = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as e:
                log.warning("a data connection could not be accepted: %s", e)
                await asyncio.sleep(0.1)  # out of file descriptors: some will be closed
                continue
            handshake = self._spawn(self._handshake(sock, context), "data-handshake")
            pending.add(address[0] if context is not None else "", handshake)
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
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


def tls_server_context() -> tuple[ssl.SSLContext, bytes]:
    """Returns a context for TLS 1.3 with a new certificate, and the certificate's SHA-256 fingerprint. Raises OSError.

    The agent compares the fingerprint, so the certificate needs no authority, no host name and no period of validity.
    """
    key = Ed25519PrivateKey.generate()
    certificate = self_signed_certificate(key)
    pem = serialization.Encoding.PEM
    pem_key = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # The ssl module reads keys from files only; this file is in memory, so that the key reaches no disk.
    memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(memory, pem_key + certificate.public_bytes(pem))
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
    return context, certificate.fingerprint(hashes.SHA256())


def self_signed_certificate(key: Ed25519PrivateKey) -> x509.Certificate:
    """Returns a self-signed certificate of this key."""
    builder = x509.CertificateBuilder(
        _CERTIFICATE_NAME, _CERTIFICATE_NAME, key.public_key(), x509.random_serial_number()
    )
    return builder.not_valid_before(_VALID_FROM).not_valid_after(_VALID_UNTIL).sign(key, None)
