"""Connections for the requests to an API server: HTTP/1.1 with one request at a time on each (RFC 9112).

A shard sends many small requests, and a general client takes several times as much of the processor for each
(docs/decisions/0732). Watches and logs are long answers, which aiohttp reads.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote, urlsplit

_IDLE_S = 15.0
"""How long an unused connection is kept. Servers and what is between close idle ones after a minute or more."""
_CONNECT_TIMEOUT_S = 10.0
_SHUTDOWN_TIMEOUT_S = 1.0
_MAX_HEAD_BYTES = 64 * 1024
_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})
"""Methods that may be executed twice, so that they are sent again if the server has closed an idle connection."""
_NOT_IN_TARGET = re.compile(r"[^!-~]")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |$)")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the server. ``headers`` are by name in small letters; of several with one name, the last."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Malformed(ConnectionError):
    """Raised when the server sends something that is no answer."""


class _Connection(asyncio.Protocol):
    """Sends one request at a time, and collects its answer."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._buffer = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._chunks: list[bytes] = []
        self._left = -1
        """Bytes of the body that are missing; of a chunk, if ``_is_chunked``; -1 for a body that ends with the
        connection, and before the size of a chunk."""
        self._is_chunked = False
        self._stays_open = True
        self.is_answered = False
        """True once the server has sent anything for the present request."""
        self.idle_since = 0.0

    @property
    def is_reusable(self) -> bool:
        return self._stays_open and self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """Returns the answer of a request, which fails with ConnectionError."""
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            waiting.set_exception(ConnectionResetError("the connection was closed"))
            return waiting
        self._waiting, self._head, self.is_answered = waiting, None, False
        self._transport.write(request)
        return waiting

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.is_answered = True
        self._buffer += data
        try:
            if self._waiting is None:
                raise _Malformed("the server sends what nobody has asked for")
            while self._head is None:
                if not self._read_head():
                    return
            if self._is_chunked:
                self._read_chunks()
            elif self._left >= 0 and len(self._buffer) >= self._left:
                self._finish(self._take(self._left))
        except _Malformed as error:
            self._fail(error)
            self.abort()

    def eof_received(self) -> None:
        if self._head is not None and self._left < 0 and not self._is_chunked:
            self._finish(self._take(len(self._buffer)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(ConnectionResetError(str(exc) if exc else "the server closed the connection"))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _read_head(self) -> bool:
        """Reads status and headers; returns False until they are complete."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > _MAX_HEAD_BYTES:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise _Malformed("the head of an answer is too long")
            return False
        first, *lines = self._take(end + 4)[:-4].split(b"\r\n")
        match = _STATUS_LINE.match(first)
        if match is None:
            raise _Malformed(f"the server speaks no HTTP/1.1: {first[:40]!r}")
        status, headers = int(match.group(1)), dict[str, str]()
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        if status < 200:  # an interim answer
            return True
        self._head, self._chunks = (status, headers), []
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._stays_open = first.startswith(b"HTTP/1.1") and headers.get("connection", "").lower() != "close"
        length = "0" if status in (204, 304) else headers.get("content-length", "")
        if length and not (length.isascii() and length.isdigit()):
            raise _Malformed("the length of an answer is no number")
        self._left = int(length) if length and not self._is_chunked else -1
        return True

    def _read_chunks(self) -> None:
        while True:
            if self._left < 0:
                end = self._buffer.find(b"\r\n")
                if end < 0:
                    if len(self._buffer) > _MAX_HEAD_BYTES:
                        raise _Malformed("the size of a chunk is too long")
                    return
                try:
                    self._left = int(self._buffer[:end].partition(b";")[0], 16)
                except ValueError:
                    raise _Malformed("the size of a chunk is no number") from None
                if self._left < 0:
                    raise _Malformed("the size of a chunk is negative")
                if self._left:
                    del self._buffer[: end + 2]
            if not self._left:
                self._read_trailer()
                return
            if len(self._buffer) < self._left + 2:
                return
            self._chunks.append(self._take(self._left))
            if self._take(2) != b"\r\n":
                raise _Malformed("a chunk is longer than its size")
            self._left = -1

    def _read_trailer(self) -> None:
        """Ends the body after its last chunk, whose line begins the buffer, and the fields of the trailer."""
        end = self._buffer.find(b"\r\n\r\n")
        if end >= 0:
            del self._buffer[: end + 4]
            self._finish(b"".join(self._chunks))
        elif len(self._buffer) > _MAX_HEAD_BYTES:
            raise _Malformed("the trailer of an answer is too long")

    def _finish(self, body: bytes) -> None:
        waiting, head = self._waiting, self._head
        self._waiting = self._head = None
        self._chunks = []
        self._stays_open = self._stays_open and not self._buffer
        if waiting is not None and head is not None and not waiting.done():
            waiting.set_result(Answer(*head, body))

    def _fail(self, error: ConnectionError) -> None:
        waiting, self._waiting = self._waiting, None
        self._stays_open = False
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


class Connections:
    """Sends requests to one server, each on a connection that no other request uses meanwhile.

    Args:
        server: the beginning of each address, as ``https://host:6443/prefix``.
        tls: for connections; None for plain HTTP.
        server_name: the name in the server's certificate, if it is not that of the address.
    """

    def __init__(self, server: str, tls: ssl.SSLContext | None, server_name: str = "") -> None:
        parts = urlsplit(server)
        self._tls = tls
        self._server_name = (server_name or parts.hostname) if tls is not None else None
        self._host, self._port = parts.hostname or "", parts.port or (443 if tls is not None else 80)
        self._named = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._is_closed = False

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> Answer:
        """Sends a request and returns its answer. Raises TimeoutError, and OSError without a connection; after both it
        may have been executed.

        Args:
            target: the path below the server, with its query.
        """
        head = [f"{method} {self._prefix}{_NOT_IN_TARGET.sub(_quoted, target)} HTTP/1.1\r\nHost: {self._named}\r\n"]
        head += [f"{name}: {value}\r\n" for name, value in headers.items()]
        if body is not None or method in ("POST", "PUT", "PATCH"):
            head.append(f"Content-Length: {len(body or b'')}\r\n")
        head.append("\r\n")
        request = "".join(head).encode("latin-1") + (body or b"")
        async with asyncio.timeout(timeout_s):
            while True:
                connection, is_fresh = self._idle_one(), False
                if connection is None:
                    connection, is_fresh = await self._connect(), True
                    if self._is_closed:
                        self._drop(connection)
                try:
                    answer = await connection.send(request)
                except ConnectionError:
                    self._drop(connection)
                    if is_fresh or connection.is_answered or method not in _REPEATABLE:
                        raise
                except BaseException:
                    self._drop(connection)
                    raise
                else:
                    self._keep(connection)
                    return answer

    def close(self) -> None:
        """Ends all connections; requests under way fail with ConnectionError."""
        self._is_closed = True
        for connection in list(self._open):
            self._drop(connection)
        self._idle.clear()

    def _idle_one(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
            self._drop(connection)
        return None

    async def _connect(self) -> _Connection:
        if self._is_closed:
            raise ConnectionError("the client is closed")
        loop = asyncio.get_running_loop()
        has_tls = self._tls is not None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    _Connection,
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._server_name,
                    ssl_handshake_timeout=_CONNECT_TIMEOUT_S if has_tls else None,
                    ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S if has_tls else None,
                )
        except TimeoutError:
            raise ConnectionError("no connection in time") from None
        self._open.add(connection)
        return connection

    def _keep(self, connection: _Connection) -> None:
        """Takes a connection back whose request is answered, and closes those that nobody has used for long."""
        now = asyncio.get_running_loop().time()
        while self._idle and now - self._idle[0].idle_since > _IDLE_S:
            self._drop(self._idle.pop(0))
        if self._is_closed or not connection.is_reusable:
            self._drop(connection)
            return
        connection.idle_since = now
        self._idle.append(connection)

    def _drop(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.abort()


def _quoted(match: re.Match[str]) -> str:
    return quote(match.group())
