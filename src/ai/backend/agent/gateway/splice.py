"""Copies bytes between a client and a service until both directions have ended or either side is lost."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from ai.backend.agent.gateway.direct import DirectClient
from ai.backend.agent.gateway.model import Traffic
from ai.backend.infra.tls.connection import ReadBuffers, TlsConnection

_NO_LINGER = struct.pack("ii", 1, 0)


class Splice:
    """Connects a client with a service, and copies bytes both ways. A side that is slow to read stops the other side
    from being read.

    ``abort`` is seen by both sides as a connection that was cut, not as an end. ``tcp`` is the client's connection if
    another process reads it; ``client`` leads to that process then.
    """

    __slots__ = ("_client", "_is_closing", "_on_end", "_service", "_tcp", "copying", "is_over", "last_used")

    def __init__(
        self,
        client: asyncio.Transport,
        traffic: Traffic,
        on_end: Callable[[Splice], None],
        tcp: socket.socket | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.last_used = loop.time()
        buffers = ReadBuffers.of(loop)
        self._client = _Side(self, traffic, buffers)
        self._service = _Side(self, traffic, buffers)
        self._client.peer, self._service.peer = self._service, self._client
        self._client.is_client = True
        self._client.transport = client
        self._on_end = on_end
        self._tcp = tcp
        self.copying: asyncio.Task[None] | None = None
        self._is_closing = False
        self.is_over = False

    async def connect(self, service: socket.socket) -> None:
        """Takes over the connected socket of a service, and begins to copy. Raises OSError."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: self._service, sock=service)
        except BaseException:
            service.close()
            raise
        client = self._client.transport
        if self.is_over:
            self._cut_both()
        elif client is None or client.is_closing():
            self.abort()
        elif isinstance(client, TlsConnection):
            client.attach(self._client)
        else:
            cast("DirectClient", client.get_protocol()).hand_over(self._client)

    def abort(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._cut_both()
        self._end()

    def _end(self) -> None:
        if self._tcp is not None:
            self._tcp.close()
        self._on_end(self)

    def _cut_both(self) -> None:
        if self._tcp is not None:
            with suppress(OSError):  # the other process would end the stream in order
                self._tcp.shutdown(socket.SHUT_RDWR)
        if self.copying is not None:
            self.copying.cancel()
        for side in (self._client, self._service):
            if side.transport is not None:
                _cut(side.transport)

    def close(self) -> None:
        """Closes the connection once both sides have received all sent bytes. Until then it can be aborted."""
        self._is_closing = True
        for side in (self._client, self._service):
            if side.transport is not None:
                side.transport.close()

    def on_lost(self, error: Exception | None) -> None:
        """Cuts the other side when one side is lost, unless the connection is closing and the loss is no error."""
        if not self._is_closing or error is not None:
            self.abort()
        elif self._client.transport is self._service.transport is None and not self.is_over:
            self.is_over = True
            self._end()

    def on_client_end(self, client: asyncio.Transport) -> bool:
        """Returns True, and cuts the connection, if the client was lost rather than having closed one direction."""
        if self._tcp is None:
            return False
        poller = select.poll()
        poller.register(client.get_extra_info("socket").fileno(), 0)
        if is_lost := any(event_mask & select.POLLHUP for _, event_mask in poller.poll(0)):
            self.abort()
        return is_lost


class _Side(asyncio.Protocol, asyncio.BufferedProtocol):
    """Receives the bytes that one side of a connection sends: the client or the service.

    TlsConnection calls ``data_received``, a transport of the event loop ``get_buffer``.
    """

    __slots__ = ("_received", "_splice", "_traffic", "has_ended", "is_client", "peer", "transport")
    peer: _Side

    def __init__(self, splice: Splice, traffic: Traffic, buffers: ReadBuffers) -> None:
        self._splice = splice
        self._traffic = traffic
        self._received = buffers.received
        self.transport: asyncio.Transport | None = None
        self.has_ended = False
        self.is_client = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        data = self._received[:nbytes]
        # TLS encrypts at once; other transports may keep what they cannot send.
        self.data_received(data if isinstance(self.peer.transport, TlsConnection) else bytes(data))

    def data_received(self, data: bytes | memoryview) -> None:
        self._splice.last_used = asyncio.get_running_loop().time()
        if self.is_client:
            self._traffic.to_service += len(data)
        else:
            self._traffic.to_client += len(data)
        if self.peer.transport is not None:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        if self.peer.has_ended:
            self._splice.close()
        elif self.is_client and self.transport is not None and self._splice.on_client_end(self.transport):
            pass
        elif self.peer.transport is not None:
            self.peer.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._splice.on_lost(exc)


def _cut(transport: asyncio.Transport) -> None:
    if not isinstance(transport, TlsConnection):
        with suppress(OSError):  # a unix socket has no reset
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
