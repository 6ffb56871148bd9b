"""A local port that leads through an agent's `open_port` to a service in a workload, as the tunnels of a client do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ai.backend.common.errors import BackendError
from ai.backend.common.wire.execution import OpenPort
from ai.backend.common.wire.link import AgentCommands


@asynccontextmanager
async def local_port(commands: AgentCommands, kernel_id: str, port: int) -> AsyncIterator[int]:
    """Serves until the block ends; its value is the local port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = await commands.open_port(OpenPort(kernel_id=kernel_id, port=port))

        async def inward() -> None:
            while data := await reader.read(65_536):
                await stream.write(data)
            await stream.write_eof()

        sending = asyncio.create_task(inward())
        try:
            while data := await stream.read():
                writer.write(data)
                await writer.drain()
        except (BackendError, ConnectionError):
            pass  # one of them is gone
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await stream.close()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
