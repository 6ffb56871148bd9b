"""The agent's end of a shim's socket."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.plugin.runtime import RunnerChannel
from ai.backend.runtime.process.supervisor.framing import MAX_FRAME

PROTOCOL = 1
CONNECT_TIMEOUT_S = 5.0
_decode = msgspec.json.decode
_SURROGATE = re.compile("[\ud800-\udfff]")
_encode = msgspec.json.encode


class ShimConnection:
    """Frames to and from one shim."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, directory: Path) -> ShimConnection:
        """Raises Unavailable if no shim listens there."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(sock=await _connect(directory), limit=1 << 20)
        except (OSError, TimeoutError) as error:
            raise Unavailable("the workload's shim does not answer") from error
        return cls(reader, writer)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Raises Unavailable if the shim is gone."""
        body = _encode(message)
        if len(body) > MAX_FRAME:
            raise Unavailable("a frame is too large for the channel")
        try:
            self._writer.write(len(body).to_bytes(4, "big") + body)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise Unavailable("the channel to the workload is closed") from error

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if not 1 <= size <= MAX_FRAME:
                return None
            body = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return None
        return _parse(body)

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class ShimChannel(RunnerChannel):
    """See :class:`RunnerChannel`."""

    def __init__(self, connection: ShimConnection, attached: Mapping[str, Any]) -> None:
        self._connection = connection
        self.attached = attached

    @classmethod
    async def attach(cls, directory: Path, *, epoch: int, last_seq: int) -> ShimChannel:
        """Raises Unavailable or Conflict, see ``AbstractRuntime.open_channel``."""
        connection = await ShimConnection.open(directory)
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
        return cls(connection, answer)

    async def send(self, frame: Mapping[str, Any]) -> None:
        await self._connection.send(frame)

    async def recv(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._connection.receive()) is not None:
            yield message
            if message.get("t") == "exited":
                return

    async def ack(self, seq: int) -> None:
        await self._connection.send({"t": "ack", "seq": seq})

    async def close(self) -> None:
        await self._connection.close()


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        message = _decode(body)
    except msgspec.DecodeError:
        try:
            # Names of files may have bytes that are no text; beyond this point nothing can encode them.
            text = json.dumps(json.loads(body.decode("utf-8", errors="replace")), ensure_ascii=False)
            message = json.loads(_SURROGATE.sub("\ufffd", text))
        except ValueError:
            return {"t": "malformed"}
    return message if isinstance(message, dict) else {"t": "malformed"}


async def _connect(directory: Path) -> socket.socket:
    """Through a descriptor of the directory: the path itself may be longer than a socket address."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, f"/proc/self/fd/{handle}/shim.sock")
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(handle)
    return sock
