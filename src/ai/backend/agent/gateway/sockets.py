"""Turns the connection to a service, as a runtime returns it, into a socket."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.link import ByteStream
from ai.backend.infra.loop import cancel_all
from ai.backend.node.workload.connect import SocketStream

_READ_BYTES = 256 * 1024


def socket_of(stream: ByteStream) -> tuple[socket.socket, asyncio.Task[None] | None]:
    """Returns the socket of a stream.

    For a stream without one, returns an end of a socket pair and the task that copies between that pair and the stream
    until both have ended. Cancelling the task cuts the stream.
    """
    if isinstance(stream, SocketStream):
        return stream.detach(), None
    pump_socket, client_socket = socket.socketpair()
    return client_socket, asyncio.create_task(_pump(stream, pump_socket), name="gateway-stream")


async def _pump(stream: ByteStream, sock: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=sock, limit=_READ_BYTES)

    async def to_service() -> None:
        while data := await reader.read(_READ_BYTES):
            await stream.write(data)
        await stream.write_eof()

    async def to_client() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    copy_tasks = [asyncio.create_task(to_service()), asyncio.create_task(to_client())]
    try:
        with suppress(OSError, Unavailable):
            await asyncio.gather(*copy_tasks)
    finally:
        await cancel_all(*copy_tasks)
        writer.transport.abort()
        await stream.close()
