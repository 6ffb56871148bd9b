"""Defines the WebSocket streams of a session: of code execution, of terminals and of programs.

See spec 03-08 and client wire contract 2.2.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Literal

import aiohttp

from ai.backend.client.exceptions import BackendAPIError, EndpointUnreachable
from ai.backend.client.types import Remote

_INPUT_PIECE_BYTES = 64 * 1024


class ExecuteStream(Remote):
    """Receives the results of a run over a WebSocket, decoded by :meth:`results` or as messages by iteration.

    The messages are those of the published client.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    def __aiter__(self) -> AsyncIterator[aiohttp.WSMessage]:
        return self._socket.__aiter__()

    async def results(self) -> AsyncIterator[dict[str, Any]]:
        """Yields every Execution Result Object up to and including ``finished``.

        Raises EndpointUnreachable if the stream ended before the run did.
        """
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            result: dict[str, Any] = json.loads(message.data)
            yield result
            if result.get("status") in {"finished", "exec-timeout"}:
                return
        reason = self._socket.exception() or f"closed with code {self._socket.close_code}"
        raise EndpointUnreachable(f"the stream ended before the run did: {reason}")

    async def send_text(self, text: str) -> None:
        """Sends input to a run whose status is ``waiting-input``."""
        await self._socket.send_str(text)

    async def close(self) -> None:
        await self._socket.close()


class PtyStream(Remote):
    """Carries input and output of a terminal in a session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send_stdin(self, data: bytes) -> None:
        await self._socket.send_json({"type": "stdin", "chars": base64.b64encode(data).decode()})

    async def resize(self, rows: int, cols: int) -> None:
        await self._socket.send_json({"type": "resize", "rows": rows, "cols": cols})

    async def ping(self) -> None:
        """Keeps the session from counting as idle."""
        await self._socket.send_json({"type": "ping"})

    async def restart(self) -> None:
        await self._socket.send_json({"type": "restart"})

    async def output(self) -> AsyncIterator[bytes]:
        """Yields the output of the terminal until it is closed.

        Raises EndpointUnreachable if the server reports an error on this terminal.
        """
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            frame = json.loads(message.data)
            if frame.get("type") == "out":
                yield base64.b64decode(frame["data"])
            elif frame.get("type") == "error":
                raise EndpointUnreachable(str(frame.get("data")))

    async def close(self) -> None:
        await self._socket.close()


class ProgramStream(Remote):
    """Carries input and output of a program in a session. One task reads and one writes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def write(self, data: bytes) -> None:
        """Sends input to the program.

        Waits while the program does not read. Does nothing once the program has ended.
        """
        for piece_start in range(0, len(data), _INPUT_PIECE_BYTES):
            with suppress(ConnectionError):
                await self._socket.send_bytes(b"\0" + data[piece_start : piece_start + _INPUT_PIECE_BYTES])

    async def write_eof(self) -> None:
        await self._send_control(type="eof")

    async def resize(self, rows: int, cols: int) -> None:
        await self._send_control(type="resize", rows=rows, cols=cols)

    async def signal(self, name: str) -> None:
        """Sends a signal such as ``INT`` to the program."""
        await self._send_control(type="signal", signal=name)

    async def _send_control(self, **message: Any) -> None:
        with suppress(ConnectionError):
            await self._socket.send_json(message)

    async def output(self) -> AsyncIterator[tuple[Literal["stdout", "stderr", "exit"], bytes | int]]:
        """Yields pieces of output with the name of their stream. The last item is ``exit`` with the exit code.

        Raises BackendAPIError if the program cannot be started or was cut off. EndpointUnreachable: the stream was cut.
        """
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                yield ("stderr" if message.data[:1] == b"\2" else "stdout"), message.data[1:]
            elif message.type is aiohttp.WSMsgType.TEXT:
                frame = json.loads(message.data)
                if frame.get("type") == "exit":
                    yield "exit", int(frame["code"])
                    return
                error = frame.get("error") or {}
                raise BackendAPIError(int(error.get("status", 500)), str(error.get("title", "error")), error)
        raise EndpointUnreachable(f"the stream was closed with code {self._socket.close_code}")

    async def close(self) -> None:
        await self._socket.close()
