"""The floor of tunnels: a WebSocket relay to one port of this host, in the fewest lines of aiohttp; by TLS if the
certificate of the service is named.

Prints its port. Ends with SIGTERM.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys

from aiohttp import WSMsgType, web

PIECE = 256 * 1024
TLS = ssl.create_default_context(cafile=sys.argv[2]) if len(sys.argv) > 2 else None


async def relay(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse(max_msg_size=4 << 20, compress=False)
    await ws.prepare(request)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]), limit=PIECE, ssl=TLS)

    async def outward() -> None:
        while data := await reader.read(PIECE):
            await ws.send_bytes(data)

    task = asyncio.create_task(outward())
    async for message in ws:
        if message.type is WSMsgType.BINARY:
            writer.write(message.data)
            await writer.drain()
    task.cancel()
    writer.close()
    return ws


def main() -> None:
    async def serve() -> web.Application:
        app = web.Application()
        app.router.add_get("/", relay)
        return app

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    web.run_app(serve(), sock=listener, print=None, access_log=None)


if __name__ == "__main__":
    main()
