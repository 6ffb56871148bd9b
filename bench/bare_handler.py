"""The floor of every HTTP figure: one aiohttp handler that answers with the bytes it was given on standard input.

Prints its port. Ends with SIGTERM.
"""

from __future__ import annotations

import socket
import sys

from aiohttp import web


def main() -> None:
    body = sys.stdin.buffer.read()

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async def serve() -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        return app

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    web.run_app(serve(), sock=listener, print=None, access_log=None)


if __name__ == "__main__":
    main()
