"""Opens data connections from the agent to the manager."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from functools import cached_property
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from urllib.parse import urlsplit

from ai.backend.common.errors import Unavailable
from ai.backend.infra.rpc.data.connection import HANDSHAKE_S, WELCOME, DataConnection, user_of
from ai.backend.infra.rpc.frames import DataOffer
from ai.backend.infra.rpc.streams import StreamPort
from ai.backend.infra.tls.contexts import unverified_client_context

log = logging.getLogger(__name__)
MAX_SIMULTANEOUS = 8
"""The number of connections to a port that may wait for their answer at a time."""


class DataDialer:
    """Opens data connections to one manager, at the host of its link's ``address``."""

    def __init__(self, address: str) -> None:
        self._host = urlsplit(address).hostname
        self._turns = asyncio.Semaphore(MAX_SIMULTANEOUS)
        self._connections: set[DataConnection] = set()

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        return unverified_client_context()

    async def dial(self, offer: DataOffer, port: StreamPort) -> None:
        """Opens a new connection to the manager for one stream. Raises Unavailable if no connection can be made."""
        connection = await self._connect_by_path(offer) or await self._connect_by_port(offer)
        connection.carry(port)

    def close(self) -> None:
        """Aborts every connection."""
        for connection in list(self._connections):
            connection.abort()

    async def _connect_by_path(self, offer: DataOffer) -> DataConnection | None:
        if offer.path is None:
            return None
        try:
            sock = await _connect_socket(Path(offer.path))
        except (OSError, ValueError):  # another host, or another user
            return None
        connection = self._new_connection()
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=sock)
            return await self._handshake(connection, offer)
        except (OSError, TimeoutError) as e:
            log.debug("the socket %s takes no data connection: %s", offer.path, e)
            return None

    async def _connect_by_port(self, offer: DataOffer) -> DataConnection:
        if offer.port is None or self._host is None:
            raise Unavailable("the manager takes data connections of its own host and user only")
        async with self._turns:
            try:
                return await self._connect_by_tls(self._host, offer.port, offer)
            except (OSError, TimeoutError) as e:
                reason = str(e) or f"no answer within {HANDSHAKE_S:g} s"
                message = f"no data connection to the manager at {self._host}:{offer.port}: {reason}"
                log.warning("%s; terminals and tunnels need that port", message)
                raise Unavailable(message) from e

    async def _connect_by_tls(self, host: str, port: int, offer: DataOffer) -> DataConnection:
        """Connects by TLS. Raises OSError or TimeoutError."""
        connection = self._new_connection()
        async with asyncio.timeout(HANDSHAKE_S):
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(lambda: connection, host, port, ssl=self._tls_context)
            certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if not compare_digest(sha256(certificate or b"").digest(), offer.fingerprint):
                connection.abort()
                raise ConnectionError("another server answers there")
            return await self._handshake(connection, offer)

    def _new_connection(self) -> DataConnection:
        return DataConnection(len(WELCOME), on_end=self._connections.discard)

    async def _handshake(self, connection: DataConnection, offer: DataOffer) -> DataConnection:
        """Sends the token of the stream to the manager. Raises OSError or TimeoutError if it is not accepted."""
        self._connections.add(connection)
        connection.send_first(offer.token)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                if await connection.first() != WELCOME:
                    raise ConnectionError("what answers is no manager")
        except BaseException:
            connection.abort()
            raise
        return connection


async def _connect_socket(path: Path) -> socket.socket:
    """Connects to a unix socket of this user in a private directory. Raises OSError or ValueError."""
    folder_fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        folder_status = os.fstat(folder_fd)
        if folder_status.st_uid != os.getuid() or folder_status.st_mode & 0o077:
            raise PermissionError(f"{path.parent} is open to others")
        await asyncio.get_running_loop().sock_connect(sock, f"/proc/self/fd/{folder_fd}/{path.name}")
        if user_of(sock) != os.getuid():
            raise PermissionError(f"{path} is another user's")
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder_fd)
    return sock
