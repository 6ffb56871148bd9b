"""Implements TLS connections over a transport of the event loop, with separate ends of both directions.

Unlike with asyncio's own TLS, each direction ends by itself, an end without ``close_notify`` is an error, and idle
connections have no buffers.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

_RECORD_BYTES = 16 * 1024
"""The largest plaintext of a TLS record."""
_READ_BYTES = 256 * 1024


class ReadBuffers:
    """Holds the buffers into which all connections of one event loop read. They are empty between two callbacks."""

    _of_loop: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, ReadBuffers]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.received = memoryview(bytearray(_READ_BYTES))
        self.plaintext = memoryview(bytearray(_READ_BYTES))

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> ReadBuffers:
        """Returns the read buffers of an event loop, and creates them at the first call.

        Each event loop has buffers of its own, because other threads have other loops.
        """
        if (buffers := cls._of_loop.get(loop)) is None:
            buffers = cls._of_loop[loop] = cls()
        return buffers


class TlsConnection(asyncio.Transport, asyncio.BufferedProtocol):
    """Implements TLS between a TCP transport and the protocol that is given to ``attach``.

    Nothing is read after the handshake until then. ``abort`` ends the stream without ``close_notify``, so that the peer
    sees that it was cut.
    """

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool = False, server_hostname: str | None = None
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._buffers = ReadBuffers.of(self._loop)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl_object = context.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)
        self.handshake: asyncio.Future[None] = self._loop.create_future()
        """Ends when the peer is authenticated, or with the reason why it is not: ssl.SSLError, ConnectionError."""
        self._tcp: asyncio.Transport | None = None
        self._protocol: asyncio.Protocol | None = None
        self._is_paused = True
        self._has_received_eof = False
        self._has_sent_eof = False
        self._is_closing = False
        self._error: Exception | None = None

    # -- as the protocol of the TCP transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self._tcp = transport
        self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffers.received

    def buffer_updated(self, nbytes: int) -> None:
        if self._has_received_eof or self._is_closing:
            return
        self._incoming.write(self._buffers.received[:nbytes])
        if self.handshake.done():
            self._read()
        else:
            self._shake_hands()

    def eof_received(self) -> bool:
        if not self._has_received_eof and not self._is_closing:
            self._fail(ConnectionResetError("the peer cut the connection"))
        return not self._is_closing

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing, self._tcp = True, None  # asyncio's transport may fail when it is aborted now
        self._error = self._error or exc
        if not self.handshake.done():
            self.handshake.set_exception(self._error or ConnectionResetError("the peer disconnected"))
            self.handshake.exception()
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, self._error)

    # -- as the transport of the attached protocol

    def attach(self, protocol: asyncio.Protocol) -> None:
        """Connects a protocol to this connection, once, and begins to pass received data to the protocol.

        ``data_received`` gets up to 256 KiB.
        """
        self._protocol = protocol
        protocol.connection_made(self)
        if self._tcp is None or self._tcp.is_closing():
            self._loop.call_soon(protocol.connection_lost, self._error)
        else:
            self.resume_reading()

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self.ssl_object
        return default if self._tcp is None else self._tcp.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._has_sent_eof:
            raise RuntimeError("write after write_eof")
        if self._is_closing or len(data) == 0:
            return
        try:
            written_bytes = self.ssl_object.write(data)
            while written_bytes < len(data):
                written_bytes += self.ssl_object.write(memoryview(data)[written_bytes:])
        except ssl.SSLError as e:
            self._fail(e)
        else:
            self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Sends ``close_notify``. The peer may go on sending. Safe twice."""
        if self._has_sent_eof or self._is_closing:
            return
        self._has_sent_eof = True
        unread_data = self._incoming.read()  # OpenSSL would look there for the peer's close_notify and refuse data
        try:
            self.ssl_object.unwrap()
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, ValueError) as e:
            self._fail(ConnectionResetError(f"the stream cannot be ended: {e}"))
            return
        self._incoming.write(unread_data)
        self._flush()

    def close(self) -> None:
        """Ends both directions once all written data is sent."""
        self.write_eof()
        if self._tcp is not None and not self._is_closing:
            self._is_closing = True
            self._tcp.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._tcp is not None:
            self._tcp.abort()

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._is_paused

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._tcp is not None:
            self._tcp.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._resume)

    def get_write_buffer_size(self) -> int:
        return 0 if self._tcp is None else self._tcp.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (0, 0) if self._tcp is None else self._tcp.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._tcp is not None:
            self._tcp.set_write_buffer_limits(high, low)

    # -- inside

    def _shake_hands(self) -> None:
        try:
            self.ssl_object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except (ssl.SSLError, ssl.CertificateError) as e:
            self._error = e
            self._flush()  # the alert
            self._is_closing = True
            if self._tcp is not None:
                self._tcp.close()
        else:
            if self._tcp is not None:
                self._tcp.pause_reading()
            self._flush()
            if not self.handshake.done():
                self.handshake.set_result(None)

    def _resume(self) -> None:
        if self._is_paused or self._is_closing:
            return
        self._read()
        if not self._is_paused and not self._is_closing and self._tcp is not None:
            self._tcp.resume_reading()

    def _read(self) -> None:
        """Passes received data on to the protocol until the protocol pauses."""
        plaintext, protocol = self._buffers.plaintext, self._protocol
        wants_more = False
        while protocol is not None and not (wants_more or self._is_paused or self._is_closing):
            filled_bytes, has_ended = 0, False
            error: ssl.SSLError | None = None
            try:
                while filled_bytes <= _READ_BYTES - _RECORD_BYTES and not has_ended:  # room for a whole record
                    read_count = self.ssl_object.read(_RECORD_BYTES, plaintext[filled_bytes:])
                    filled_bytes += int(read_count)
                    has_ended = not read_count
            except ssl.SSLWantReadError:
                wants_more = True
            except ssl.SSLZeroReturnError:
                has_ended = True
            except ssl.SSLError as e:
                error = e
            if filled_bytes:
                protocol.data_received(bytes(plaintext[:filled_bytes]))
            if error is not None:
                self._fail(error)
            elif has_ended:
                self._end_reading(protocol)
                return
        if self._outgoing.pending:
            self._flush()  # a reply to a key update

    def _end_reading(self, protocol: asyncio.Protocol) -> None:
        self._has_received_eof = True
        if not self._is_closing and not protocol.eof_received():
            self.close()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._tcp is not None and not self._tcp.is_closing():
            self._tcp.write(data)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._flush()  # the alert, if there is one
        self.abort()
