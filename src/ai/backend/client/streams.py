"""Interactive streams over WebSocket: code execution and terminals (spec 03-08, client wire contract 2.2)."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from ai.backend.client.exceptions import EndpointUnreachable
from ai.backend.client.portal import Remote


class ExecuteStream(Remote):
    """Streams the results of a run: decoded by :meth:`results`, or as WebSocket messages by iteration (published)."""

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
    """Input and output of a terminal in a session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send_stdin(self, data: bytes) -> None:
        await self._socket.send_json({"type": "stdin", "chars": base64.b64encode(data).decode()})

    async def resize(self, rows: int, cols: int) -> None:
        await self._socket.send_json({"type": "resize", "rows": rows, "cols": cols})

    async def ping(self) -> None:
        """Keeps the session from being taken for idle."""
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
