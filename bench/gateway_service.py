"""The service behind the gateway: a first line says what it does: `give N`, `take N`, `echo 0`. Prints its port."""

from __future__ import annotations

import asyncio
import sys

PIECE = bytes(256 * 1024)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    word, _, size = (await reader.readline()).decode().partition(" ")
    remaining = int(size or 0)
    try:
        while word == "give" and remaining > 0:
            writer.write(PIECE[: min(remaining, len(PIECE))])
            await writer.drain()
            remaining -= len(PIECE)
        while word == "take" and remaining > 0:
            remaining -= len(await reader.read(len(PIECE)))
        if word == "take":
            writer.write(b"!")
        while word == "echo" and (data := await reader.read(len(PIECE))):
            writer.write(data)
        await writer.drain()
    except OSError:
        pass
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=len(PIECE), backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
