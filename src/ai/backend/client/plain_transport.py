"""Sends requests from one thread by the standard library, for programs that send a few requests and end.

The coroutines of the SDK never wait on this transport, so that :func:`run_plain` completes them without an event loop.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Coroutine, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendClientError
from ai.backend.client.transport import Transport
from ai.backend.client.urls import host_of, raw_target
from ai.backend.client.wire import Reply

_MAX_IDLE_S = 5.0
"""A connection that was not used for longer is made anew: the server may just close it."""

T = TypeVar("T")


class NotConnected(OSError):
    """Raised when no connection was made, so that nothing was sent."""


class _Connection(HTTPConnection):
    """Represents an HTTP connection that resolves its host name as bytes.

    The encoding of a text would import the tables of international names.
    """

    def connect(self) -> None:
        address: Any = (self.host.encode(), self.port)
        self.sock = socket.create_connection(address, self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class PlainTransport(Transport):
    """Sends requests by the standard library, and keeps one connection for the next request.

    Not for several threads at once.
    """

    never_sent_errors = (NotConnected,)
    broken_errors = (OSError, HTTPException)

    def __init__(self, config: APIConfig) -> None:
        super().__init__(config)
        self._connection: HTTPConnection | None = None
        self._origin = ""
        self._used_at = 0.0

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # there is no event loop here that it would hold up

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: Any) -> HTTPResponse:
        connection = await self._connect(url)
        # As bytes, because http.client itself knows Latin-1 only.
        header_bytes = {name: value.encode() for name, value in {"Host": host_of(url), **headers}.items()}
        try:
            connection.request(method, raw_target(url), body=body, headers=header_bytes)
            return connection.getresponse()
        except BaseException:
            await self.close()
            raise

    async def _receive(self, response: HTTPResponse) -> Reply:
        try:
            body = response.read()
        except BaseException:
            await self.close()
            raise
        self._used_at = time.monotonic()
        headers: Any = response.headers
        return Reply(response.status, headers, body)

    async def _connect(self, url: str) -> HTTPConnection:
        url_parts = urlsplit(url)
        origin = f"{url_parts.scheme}://{url_parts.netloc}"
        if self._connection is not None:
            if origin == self._origin and time.monotonic() - self._used_at < _MAX_IDLE_S:
                return self._connection
            await self.close()
        timeout = self.config.connection_timeout or None
        connection: HTTPConnection = _Connection(str(url_parts.hostname), url_parts.port, timeout=timeout)
        if url_parts.scheme == "https":
            connection = _secure_connection(self.config, str(url_parts.hostname), url_parts.port)
        try:
            connection.connect()
        except OSError as error:
            raise NotConnected(str(error) or type(error).__name__) from error
        connection.sock.settimeout(self.config.read_timeout or None)
        self._connection, self._origin = connection, origin
        return connection


def _secure_connection(config: APIConfig, host: str, port: int | None) -> HTTPConnection:
    import ssl
    from http.client import HTTPSConnection

    tls_context = ssl.create_default_context()
    if config.skip_sslcert_validation:
        tls_context.check_hostname, tls_context.verify_mode = False, ssl.CERT_NONE

    class SecureConnection(HTTPSConnection, _Connection):
        """A connection by TLS."""

    return SecureConnection(host, port, timeout=config.connection_timeout or None, context=tls_context)


def run_plain(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of the SDK over a plain transport, and returns its result.

    Raises BackendClientError if it waits for something else than requests.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        returned_value: T = stop.value
        return returned_value
    coroutine.close()
    raise BackendClientError("the call waits for an event loop: it needs an asynchronous transport")
