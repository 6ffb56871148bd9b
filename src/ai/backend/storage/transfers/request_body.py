"""Writes the bodies of upload requests to the disk (docs/decisions/0091).

A body of known length without TLS is read from its socket by the thread that writes it, without Python code for each
piece. aiohttp has parsed the head before, and perhaps the first bytes; after the body it gets a new parser. Every other
body is read by aiohttp.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from aiohttp.http_parser import HttpRequestParser

from ai.backend.infra.http.errors import BodyTooSlow, UnsupportedMediaType
from ai.backend.storage.transfers.uploads import Sink, await_despite_cancel

BODY_IDLE_TIMEOUT_S = 60.0
"""Seconds without a byte after which an upload's request ends; received bytes are stored."""
_WRITE_CHUNK_BYTES = 1 << 18
_MIN_DIRECT_BYTES = 1 << 18
"""The smallest remainder of a body that is read from the socket directly."""
_MAX_BURST_BYTES = 1 << 26
_POLL_LINGER_MS = 3


def refuse_coding(request: web.Request) -> None:
    """Raises UnsupportedMediaType for a compressed body: sizes and offsets are those of the file."""
    if "Content-Encoding" in request.headers:
        raise UnsupportedMediaType("Send the bytes of the file as they are, without Content-Encoding.")


def body_of(request: web.Request) -> DirectBody | StreamBody:
    """Returns an object that writes the body of an unread request: a DirectBody for a large one, else a StreamBody.

    A DirectBody needs a known length, no TLS and no coding.
    """
    transport, parser = request.transport, getattr(request.protocol, "_parser", None)
    has_plain_tcp = transport is not None and transport.get_extra_info("sslcontext") is None
    body_length = request.content_length
    if (
        has_plain_tcp
        and body_length is not None
        and "Transfer-Encoding" not in request.headers
        and "Content-Encoding" not in request.headers
        and type(parser) is HttpRequestParser
        and body_length - request.content.total_bytes >= _MIN_DIRECT_BYTES
    ):
        return DirectBody(request, body_length)
    return StreamBody(request)


class StreamBody:
    """Writes the body of a request to the disk; aiohttp reads a part while a thread writes the previous part."""

    is_whole = True
    """Whether the connection can be used for another request, also after an error."""

    def __init__(self, request: web.Request) -> None:
        self._content = request.content
        self._length = request.content_length
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._writing: asyncio.Future[None] | None = None

    async def whole(self) -> bytes | None:
        """Returns all bytes of a small body, or None if the body is large or was interrupted.

        :meth:`pour` raises the error of an interrupted body.
        """
        if self._length is None or self._length > _WRITE_CHUNK_BYTES:
            return None
        try:
            async for part in self._parts():
                self._waiting.append(part)
        except (ConnectionError, BodyTooSlow, web.RequestPayloadError):
            return None
        return b"".join(self._waiting)

    async def pour(self, sink: Sink, threads: Executor) -> None:
        """Writes all bytes, or the received part of an interrupted body.

        Raises BodyTooSlow: no bytes are received for :data:`BODY_IDLE_TIMEOUT_S`; ConnectionError, and the errors of
        the sink.
        """
        try:
            async for part in self._parts():
                self._waiting.append(part)
                self._waiting_bytes += len(part)
                if self._waiting_bytes >= _WRITE_CHUNK_BYTES:
                    await self._write(sink, threads)
        finally:
            await self._write(sink, threads)
            await self._wait_for_write()

    async def _parts(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(BODY_IDLE_TIMEOUT_S):
                    part = await self._content.readany()
            except TimeoutError:
                raise BodyTooSlow from None
            if not part:
                return
            yield part

    async def _write(self, sink: Sink, threads: Executor) -> None:
        await self._wait_for_write()
        if self._waiting:
            waiting_parts, self._waiting, self._waiting_bytes = self._waiting, [], 0
            joined_parts = waiting_parts[0] if len(waiting_parts) == 1 else b"".join(waiting_parts)
            self._writing = asyncio.get_running_loop().run_in_executor(threads, sink.put, joined_parts)

    async def _wait_for_write(self) -> None:
        if self._writing is not None:
            write_task, self._writing = self._writing, None
            try:
                await await_despite_cancel(write_task)
            except BaseException:
                self._waiting.clear()  # nothing may follow missing bytes
                raise


class DirectBody:
    """Writes the body of a request to the disk; the thread that writes reads the socket itself, without aiohttp."""

    def __init__(self, request: web.Request, body_length: int) -> None:
        self._request = request
        self._remaining = body_length
        self.is_whole = True

    async def whole(self) -> bytes | None:
        """Returns None, since the body is too large to be held in memory."""
        return None

    async def pour(self, sink: Sink, threads: Executor) -> None:
        """Writes all bytes, as :meth:`StreamBody.pour` does."""
        with self._take_over_socket() as (connection, buffered_parts):
            while self._remaining:
                if not buffered_parts:
                    await _wait_readable(connection)
                burst_future = asyncio.get_running_loop().run_in_executor(
                    threads, self._receive_burst, connection, buffered_parts, sink
                )
                await await_despite_cancel(burst_future)
                buffered_parts = []

    @contextmanager
    def _take_over_socket(self) -> Iterator[tuple[socket.socket, list[bytes]]]:
        """Yields the socket of the connection, and the bytes of the body that aiohttp has already read.

        aiohttp does not read the socket meanwhile.
        """
        content, transport = self._request.content, self._request.transport
        if transport is None:
            raise ConnectionResetError
        buffered_parts: list[bytes] = []
        while part := content.read_nowait():  # the parser also continues with its buffered bytes
            buffered_parts.append(part)
        if content.is_eof():
            with socket.socket() as placeholder_socket:
                yield placeholder_socket, buffered_parts
            return
        self.is_whole = False
        transport.pause_reading()
        try:
            fd = os.dup(transport.get_extra_info("socket").fileno())
            with socket.socket(fileno=fd) as connection:  # stays open for its reader when the transport closes
                yield connection, buffered_parts
            _forget_body(self._request)
            self.is_whole = True
        finally:
            if not transport.is_closing():
                transport.resume_reading()

    def _receive_burst(self, connection: socket.socket, buffered_parts: list[bytes], sink: Sink) -> None:
        """Writes the bytes of the body that are available now, so that a slow sender occupies no thread."""
        for part in buffered_parts:
            self._remaining -= len(part)
            sink.put(part)
        poller = select.poll()
        poller.register(connection, select.POLLIN)
        bytes_after_burst = max(0, self._remaining - _MAX_BURST_BYTES)
        while self._remaining > bytes_after_burst:
            try:
                self._remaining -= sink.take(connection, self._remaining)
            except BlockingIOError:
                if not poller.poll(_POLL_LINGER_MS):
                    return


def _forget_body(request: web.Request) -> None:
    """Marks a request's body as read to the end for aiohttp, which then parses the next request of the connection.

    aiohttp has not seen the bytes of the body.
    """
    protocol: Any = request.protocol
    protocol._parser = HttpRequestParser(  # as RequestHandler makes it
        protocol, asyncio.get_running_loop(), protocol._read_bufsize, payload_exception=web.RequestPayloadError
    )
    request.content.feed_eof()


async def _wait_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable_future = loop.create_future()

    def wake() -> None:
        if not readable_future.done():
            readable_future.set_result(None)

    loop.add_reader(connection.fileno(), wake)
    try:
        async with asyncio.timeout(BODY_IDLE_TIMEOUT_S):
            await readable_future
    except TimeoutError:
        raise BodyTooSlow from None
    finally:
        loop.remove_reader(connection.fileno())
