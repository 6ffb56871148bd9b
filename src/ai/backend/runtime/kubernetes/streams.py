"""Connects the agent with a port inside a pod, over a separate connection that the relay opens."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from ai.backend.common.errors import Unavailable
from ai.backend.node.relay.streams import PieceReader, pack_piece

_MAX_UNREAD_BYTES = 256 * 1024
_WRITE_BYTES = 64 * 1024


class PodStream(asyncio.Protocol):
    """Implements :class:`~ai.backend.common.wire.link.ByteStream` whose other end is a program in a pod."""

    def __init__(self) -> None:
        self._reader = PieceReader()
        self._pieces: deque[bytes] = deque()
        self._unread_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._news = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._has_ended = False
        self._is_cut = False
        self._is_closed = False

    async def read(self) -> bytes:
        while True:
            if self._is_closed:
                raise Unavailable("the connection was cut")
            if self._pieces:
                received_piece = self._pieces.popleft()
                self._unread_bytes -= len(received_piece)
                if self._transport is not None and self._unread_bytes < _MAX_UNREAD_BYTES:
                    self._transport.resume_reading()
                return received_piece
            if self._has_ended:
                return b""
            if self._is_cut:
                raise Unavailable("the connection was cut")
            self._news.clear()
            await self._news.wait()

    async def write(self, data: bytes) -> None:
        for offset in range(0, len(data), _WRITE_BYTES):
            await self._write(bytes(data[offset : offset + _WRITE_BYTES]))

    async def write_eof(self) -> None:
        await self._write(b"")

    async def _write(self, data: bytes) -> None:
        await self._may_write.wait()
        if self._transport is None or self._transport.is_closing():
            raise Unavailable("the connection was cut")
        self._transport.write(pack_piece(data))

    async def close(self) -> None:
        self._is_closed = True
        self._news.set()
        self._may_write.set()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for received_piece in self._reader.feed(data):
                if not received_piece:
                    self._has_ended = True
                elif not self._has_ended:
                    self._pieces.append(received_piece)
                    self._unread_bytes += len(received_piece)
        except ConnectionAbortedError:
            if self._transport is not None:
                self._transport.abort()
        if self._unread_bytes >= _MAX_UNREAD_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._news.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._is_cut = True
        self._may_write.set()
        self._news.set()
