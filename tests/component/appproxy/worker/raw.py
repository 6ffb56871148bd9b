"""Sends bytes as they are, for requests that no HTTP client makes."""

from __future__ import annotations

import asyncio


async def exchange(port: int, *pieces: bytes, pause_s: float = 0.0, timeout_s: float = 5.0) -> bytes:
    """Sends pieces and returns everything that comes until the other side ends the connection, or is silent for half a
    second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    data = await asyncio.wait_for(reader.read(65_536), 0.5)
                except TimeoutError:
                    break
                if not data:
                    received += b"<end>"
                    break
                received += data
    except (ConnectionError, RuntimeError):  # RuntimeError: uvloop's for what is written after that
        received += b"<reset>"
    finally:
        writer.close()
    return received


def statuses_of(received: bytes) -> list[int]:
    """Returns the statuses of the responses in what was received."""
    return [int(part.split(b" ", 1)[0]) for part in received.split(b"HTTP/1.1 ")[1:]]
