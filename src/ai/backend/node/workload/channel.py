"""Implements the agent's end of a shim's socket."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.node.relay.framing import MAX_FRAME
from ai.backend.plugin.runtime import RunnerChannel

PROTOCOL = 1
CONNECT_TIMEOUT_S = 5.0
UNREAD_LIMIT = 1 << 20
OnMessage = Callable[[dict[str, Any] | None], None]
_decode = msgspec.json.decode
_SURROGATE_CHARACTER = re.compile("[\ud800-\udfff]")
_encode = msgspec.json.encode


class RelayConnection(asyncio.Protocol):
    """Sends messages to one shim, and passes the shim's messages to one reader or to the callback ``on_message``.

    ``on_message`` is called with each message, and with None at the end. asyncio's streams would cost some KiB more for
    each of the thousands of connections of a node.
    """

    __slots__ = ("_buffer", "_is_full", "_on_message", "_transport", "_waiters")

    def __init__(self, on_message: OnMessage | None = None) -> None:
        self._on_message = on_message
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._is_full = False

    @classmethod
    async def open(cls, directory: Path, on_message: OnMessage | None = None) -> RelayConnection:
        """Connects to the shim in a workload's directory. Raises Unavailable if no shim listens."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                sock = await _connect(directory)
                _, self = await asyncio.get_running_loop().create_unix_connection(lambda: cls(on_message), sock=sock)
        except (OSError, TimeoutError) as error:
            raise Unavailable("the workload's shim does not answer") from error
        return self

    async def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message. Raises Unavailable if the shim is gone."""
        body = _encode(message)
        if len(body) > MAX_FRAME:
            raise Unavailable("a frame is too large for the channel")
        if self._transport is not None and self.is_open:
            self._transport.write(len(body).to_bytes(4, "big") + body)
            while self._is_full and self._transport is not None:
                await self._on_change()
            if self._transport is not None:
                return
        raise Unavailable("the channel to the workload is closed")

    async def receive(self) -> dict[str, Any] | None:
        """Returns the next message; None at the end."""
        while (message := self._take_message()) is None and self._transport is not None:
            self._transport.resume_reading()
            await self._on_change()
        return message

    def listen(self, on_message: OnMessage) -> None:
        """Calls ``on_message`` with every message from now on, and at once with those that have already arrived."""
        self._on_message = on_message
        self._deliver()
        if self._transport is not None:
            self._transport.resume_reading()
        else:
            self._deliver_end()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def wait(self) -> None:
        """Waits until something has arrived, or the connection has ended.

        ``on_message`` was then called with each message that is complete; what has arrived may be only a part of a
        message.
        """
        await self._on_change()

    async def close(self) -> None:
        self.abandon()
        while self._transport is not None:
            await self._on_change()

    def abandon(self) -> None:
        """Starts to close the connection without waiting."""
        if self._transport is not None:
            self._transport.close()

    def _take_message(self) -> dict[str, Any] | None:
        """Returns the next complete message. An invalid length ends the connection."""
        body_bytes = int.from_bytes(self._buffer[:4], "big")
        if len(self._buffer) >= 4 and not 1 <= body_bytes <= MAX_FRAME:
            self._buffer.clear()
            self.abandon()
        if len(self._buffer) < 4 + body_bytes:
            return None
        body = bytes(self._buffer[4 : 4 + body_bytes])
        del self._buffer[: 4 + body_bytes]
        return parse(body)

    async def _on_change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._on_message is not None:
            self._deliver()
        elif self._transport is not None and len(self._buffer) > max(
            UNREAD_LIMIT, 4 + int.from_bytes(self._buffer[:4], "big")
        ):
            self._transport.pause_reading()
        self._wake()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._wake()
        self._deliver_end()

    def _deliver(self) -> None:
        while self._on_message is not None and (message := self._take_message()) is not None:
            self._on_message(message)

    def _deliver_end(self) -> None:
        if (on_message := self._on_message) is not None:
            self._on_message = None
            on_message(None)


class RelayChannel(RunnerChannel):
    """Implements :class:`RunnerChannel` over a shim's socket."""

    __slots__ = ("_connection",)

    def __init__(self, connection: RelayConnection) -> None:
        self._connection = connection

    @classmethod
    async def attach(cls, directory: Path, *, epoch: int, last_seq: int) -> RelayChannel:
        """Connects to a workload's shim as its controller. Raises as ``AbstractRuntime.open_channel``."""
        connection = await RelayConnection.open(directory)
        try:
            await connection.send({"t": "attach", "protocol": PROTOCOL, "epoch": epoch, "last_seq": last_seq})
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                answer = await connection.receive()
        except (Unavailable, TimeoutError) as error:
            await connection.close()
            raise Unavailable("the workload's shim does not answer") from error
        if answer is None or answer.get("t") != "attached":
            await connection.close()
            if answer is not None and answer.get("reason") == "stale-epoch":
                raise Conflict("a newer agent drives this workload")
            raise Unavailable("the workload's shim refused")
        return cls(connection)

    async def send(self, frame: Mapping[str, Any]) -> None:
        await self._connection.send(frame)

    async def recv(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._connection.receive()) is not None:
            yield message
            if message.get("t") == "exited":
                return

    def listen(self, on_message: OnMessage) -> bool:
        self._connection.listen(on_message)
        return True

    async def ack(self, seq: int) -> None:
        await self._connection.send({"t": "ack", "seq": seq})

    async def close(self) -> None:
        await self._connection.close()


def parse(body: bytes) -> dict[str, Any]:
    """Decodes a frame; returns a message of type ``malformed`` if it is invalid.

    The end of a workload is news of the relay, which numbers only what the runner sends: a numbered one is forged.
    """
    message = _parse_object(body)
    return message if "seq" not in message or message.get("t") != "exited" else {**message, "t": "malformed"}


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        message = _decode(body)
    except RecursionError:
        return {"t": "malformed"}
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            # Names of files may have bytes that are no text; beyond this point nothing can encode them.
            body_text = json.dumps(json.loads(body.decode("utf-8", errors="replace")), ensure_ascii=False)
            message = json.loads(_SURROGATE_CHARACTER.sub("\ufffd", body_text))
        except (ValueError, RecursionError):
            return {"t": "malformed"}
    return message if isinstance(message, dict) else {"t": "malformed"}


async def _connect(directory: Path) -> socket.socket:
    """Connects to the shim through a descriptor of its directory, since socket addresses must be short."""
    directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, f"/proc/self/fd/{directory_fd}/shim.sock")
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(directory_fd)
    return sock
