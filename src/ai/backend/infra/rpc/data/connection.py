"""Carries one stream between manager and agent over a separate connection (decision 0139).

The dialer sends the token of the stream, and gets one byte back. Then both sides send frames with a head of five bytes:
the kind, and the number of bytes that follow (``DATA``) or the granted credit (``CREDIT``); the last frame is an end.
Frames are read as they arrive, since credit bounds them. A peer that reads nothing for a while is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from ai.backend.common.errors import Unavailable
from ai.backend.infra.rpc.streams import CHUNK_BYTES, LINGER_S, WINDOW_BYTES, Piece, StreamPort

log = logging.getLogger(__name__)
TOKEN_BYTES = 32
WELCOME = b"\x06"
HANDSHAKE_S = 3.0
"""The timeout in seconds until the token is accepted."""
STALLED_S = 60.0
"""The seconds for which the peer may read nothing while a full window waits."""
_FRAME_HEAD = struct.Struct(">BI")
_END_KIND = 10
"""The kind of the last frame, which ends the stream."""
_MAX_COPIED_BYTES = 16 * 1024
"""Pieces below this size are copied to be sent with their header."""
_DISCARD_BUFFER = bytearray(4096)
_SOCKET_BUFFER_BYTES = 1024 * 1024
"""The requested buffer size of a unix socket, whose default is less than one piece. The system may grant less."""


class DataConnection(asyncio.BufferedProtocol):
    """Represents one end of a data connection. ``first_bytes``: how many bytes the peer sends first."""

    def __init__(self, first_bytes: int, *, on_end: Callable[[DataConnection], object]) -> None:
        self._first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._forget = on_end
        self._transport: asyncio.Transport | None = None
        self._port: StreamPort | None = None
        self._has_parted = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_writable = asyncio.Event()
        self._is_writable.set()
        self._take: Callable[[Any], None] = self._take_first
        self._buffer = bytearray()
        self._expect(first_bytes, self._take_first)

    async def first(self) -> bytes:
        """Returns the first bytes that the peer sends. Raises ConnectionError if it disconnects before."""
        return await self._first

    def send_first(self, data: bytes) -> None:
        """Sends the first bytes of this side."""
        if self._transport is not None:
            self._transport.write(data)

    def carry(self, port: StreamPort) -> None:
        """Carries the messages of the given stream from now on. The connection closes with the stream."""
        self._port = port
        has_ended = self._has_parted
        port.attach(self._send_frame, self._end_stream)
        if has_ended:
            port.end()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by their class
        self._transport = transport
        # A peer that grants only what it has read never has more under way.
        transport.set_write_buffer_limits(high=WINDOW_BYTES + CHUNK_BYTES)
        peer_socket = transport.get_extra_info("socket")
        if peer_socket.family == socket.AF_UNIX:
            peer_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        else:
            peer_socket.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )  # asyncio does not set it on accepted sockets

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(_DISCARD_BUFFER if self._has_parted else self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._has_parted:
            self._filled = 0
            return
        self._filled += nbytes
        if self._filled == len(self._buffer):
            self._take(self._buffer)

    def pause_writing(self) -> None:
        if not self._has_parted:
            self._is_writable.clear()
            self._watch_sending(self._unsent_bytes())

    def resume_writing(self) -> None:
        self._is_writable.set()
        if not self._has_parted:
            self._stop_timer()

    def eof_received(self) -> None:
        """Lets asyncio close the transport: half-closed connections are not used."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget(self)
        self._stop_timer()
        if not self._first.done():
            self._first.set_exception(ConnectionResetError("the peer disconnected"))
            self._first.exception()
        self._ignore_frames()
        if self._port is not None:
            self._port.end()

    def _expect(self, byte_count: int, on_bytes: Callable[[Any], None]) -> None:
        """Prepares to read the next bytes into a new buffer, which is passed on without a copy."""
        self._buffer, self._filled, self._take = bytearray(byte_count), 0, on_bytes

    def _take_first(self, data: bytes) -> None:
        self._expect(_FRAME_HEAD.size, self._take_head)
        if not self._first.done():
            self._first.set_result(bytes(data))

    def _take_head(self, data: bytes) -> None:
        kind, size = _FRAME_HEAD.unpack(data)
        if self._port is None or kind not in (Piece.DATA, Piece.CREDIT, _END_KIND) or size > 2**24:
            self._cut_off("what cannot be read")
        elif kind == Piece.CREDIT:
            self._expect(_FRAME_HEAD.size, self._take_head)
            self._port.grant(size)
        elif kind == _END_KIND:
            self._ignore_frames()
            self._port.end()
            if self._transport is not None:
                self._transport.close()
                self._abort_later()
        elif size > CHUNK_BYTES:
            self._cut_off("a piece that is too large")
        elif size == 0:
            self._take_piece(b"")
        else:
            self._expect(size, self._take_piece)

    def _take_piece(self, data: bytes) -> None:
        self._expect(_FRAME_HEAD.size, self._take_head)
        if self._port is not None and not self._port.deliver(data):
            self._cut_off("more than it may")

    def _cut_off(self, sent_text: str) -> None:
        if self._port is not None:
            log.warning("the far side of a data connection sent %s; it is cut", sent_text)
        self._ignore_frames()
        self.abort()

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _watch_sending(self, earlier_bytes: int) -> None:
        """Aborts the connection if nothing of the pending data is sent in time."""

        def check_progress() -> None:
            unsent_bytes = self._unsent_bytes()
            if unsent_bytes < earlier_bytes:
                self._watch_sending(unsent_bytes)
            else:
                self._cut_off("for room, and took nothing")

        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(STALLED_S, check_progress)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _send_frame(self, kind: Piece, body: Any) -> None:
        await self._is_writable.wait()
        if self._has_parted or self._transport is None or self._transport.is_closing():
            raise Unavailable("the connection was cut")
        if kind is Piece.DATA:
            frame_head = _FRAME_HEAD.pack(kind, len(body))
            if len(body) < _MAX_COPIED_BYTES:
                self._transport.write(frame_head + body)
            else:
                self._transport.write(frame_head)
                self._transport.write(body)
        else:
            self._transport.write(_FRAME_HEAD.pack(kind, body))

    def _end_stream(self) -> None:
        """Ends the stream on this side. The connection is aborted if the peer does not close it in time."""
        if self._has_parted or self._transport is None:
            return
        self._ignore_frames()
        self._transport.write(_FRAME_HEAD.pack(_END_KIND, 0))
        self._abort_later()

    def _ignore_frames(self) -> None:
        """Ignores further frames, and releases the tasks that wait to send."""
        self._has_parted, self._filled = True, 0
        self._is_writable.set()

    def _abort_later(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.abort)


def user_of(sock: socket.socket) -> int:
    """Returns the user id of the peer process of a unix socket."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
