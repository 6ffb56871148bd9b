"""A TCP relay that cuts connections after so many bytes, so that transfers break where a test wants it."""

from __future__ import annotations

import asyncio
import contextlib


class CutWire:
    """Relays to ``port`` of this computer. Each number in ``cuts`` ends one connection after that many bytes of the
    client (``upwards``) or of the server; when they are used up, nothing is cut any more."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.cuts: list[int] = []
        self.upwards = True
        self.connections = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """The URL to reach the server by."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        to_server, of_server = await asyncio.open_connection("127.0.0.1", self._target)
        cut = self.cuts.pop(0) if self.cuts else None
        up = asyncio.create_task(_pump(reader, of_server, cut if self.upwards else None))
        down = asyncio.create_task(_pump(to_server, writer, None if self.upwards else cut))
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        for task in (up, down):
            task.cancel()
        for end in (writer, of_server):
            end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
    passed = 0
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            if limit is not None and passed + len(data) >= limit:
                writer.write(data[: limit - passed])
                await writer.drain()
                await asyncio.sleep(0.05)
                return
            passed += len(data)
            writer.write(data)
            await writer.drain()
