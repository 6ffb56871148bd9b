"""Connects to services of a session, also through local ports (client wire contract 2.3)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import aiohttp

from ai.backend.client.exceptions import BackendClientError, BackendError, EndpointUnreachable
from ai.backend.client.types import Remote

log = logging.getLogger(__name__)
_PIECE_BYTES = 256 * 1024
Report = Callable[[BackendError], None]
ArgumentValue = str | Sequence[str] | None
"""Value of an argument of a service: one, several that follow its name, or none for a bare option."""


def tunnel_query(
    app: str, port: int | None, envs: Mapping[str, str] | None, arguments: Mapping[str, ArgumentValue] | None
) -> dict[str, str]:
    """Returns the query parameters of a request for a tunnel to a service."""
    query = {"app": app, "half-close": "true"}
    if port is not None:
        query["port"] = str(port)
    if envs:
        query["envs"] = json.dumps(dict(envs))
    if arguments:
        argument_values = {
            name: list(argument) if isinstance(argument, Sequence) and not isinstance(argument, str) else argument
            for name, argument in arguments.items()
        }
        query["arguments"] = json.dumps(argument_values)
    return query


class AppStream(Remote):
    """Represents a connection to a service. Each direction ends independently. One task reads and one writes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._has_read_all = False

    async def read(self) -> bytes:
        """Returns received bytes. Returns an empty result after the service has closed its direction.

        Raises EndpointUnreachable if the connection was cut, with the server's reason.
        """
        if self._has_read_all:
            return b""
        message = await self._socket.receive()
        match message.type:
            case aiohttp.WSMsgType.BINARY:
                self._has_read_all = not message.data
                return bytes(message.data)
            case aiohttp.WSMsgType.CLOSE if message.data == aiohttp.WSCloseCode.OK:
                self._has_read_all = True
                return b""
            case aiohttp.WSMsgType.CLOSE:
                raise EndpointUnreachable(str(message.extra or f"the connection was closed with code {message.data}"))
        raise EndpointUnreachable(f"the connection was cut: {self._socket.exception() or message.type.name}")

    async def write(self, data: bytes) -> None:
        """Sends bytes to the service. Raises EndpointUnreachable if the connection was cut."""
        if data:
            await self._send(data)

    async def write_eof(self) -> None:
        """Ends the direction to the service. Received bytes can still be read."""
        await self._send(b"")

    async def _send(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(data)
        except ConnectionError as error:
            raise EndpointUnreachable(f"the connection was cut: {error}") from error

    async def close(self) -> None:
        await self._socket.close()


class LocalPort(Remote):
    """Listens on a local port, and forwards each connection to a service of a session."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[AppStream]], report: Report) -> None:
        self._connect = connect
        self._report = report
        self._serving: set[asyncio.Task[None]] = set()
        self.host, self.port = "", 0

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[LocalPort]:
        """Accepts local connections while the block lasts. Raises BackendClientError if it cannot listen."""
        try:
            server = await asyncio.start_server(self._accept, host, port, limit=_PIECE_BYTES)
        except OSError as error:
            raise BackendClientError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self.host, self.port = server.sockets[0].getsockname()[:2]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._serving):
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            async with self._connect() as stream:
                await copy_both_ways(stream, reader, writer)
        except BackendError as error:
            self._report(error)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the local program has gone, or the port is closed
        finally:
            self._serving.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


async def copy_both_ways(stream: AppStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies bytes between a service and a local connection until both directions have ended.

    Raises EndpointUnreachable if cut on the far side. ConnectionError: cut on this one.
    """

    async def copy_to_service() -> None:
        while data := await reader.read(_PIECE_BYTES):
            await stream.write(data)
        await stream.write_eof()

    async def copy_to_client() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    tasks = asyncio.create_task(copy_to_service()), asyncio.create_task(copy_to_client())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in reversed(tasks):
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
