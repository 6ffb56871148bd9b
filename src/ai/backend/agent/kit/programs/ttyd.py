"""Serves the web terminal of a session: a page with xterm.js, and shells behind WebSockets.

A shell outlives its connection for a while, for pages that reconnect. Messages of the client are binary: ``0`` and
typed bytes, or ``1`` and ``{"rows": R, "cols": C}``; those of the server are the shell's output as bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

from .terminal import Terminal, open_terminal, shell_argv, socket_path

_PAGE_FOLDER = Path(__file__).resolve().parent
MAX_SHELLS = 16
_STORED_OUTPUT_BYTES = 256 * 1024
"""The bytes of output that a reconnected page shows again."""
IDLE_S = 600.0
_MAX_MESSAGE_BYTES = 1024 * 1024
ENDED_CODE, TAKEN_OVER_CODE, TOO_MANY_SHELLS_CODE = 4000, 4001, 4002
_RESET_SEQUENCE = b"\x1bc"
_SHELL_KEY = re.compile(r"[A-Za-z0-9_-]{16,64}")
_CONTENT_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
)


class Shell:
    """Connects one shell with the page that shows it."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._output = bytearray()
        self._socket: web.WebSocketResponse | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.ended = asyncio.create_task(self._pump())

    async def attach(self, socket: web.WebSocketResponse) -> None:
        """Sends the shell's stored and new output to a page, and disconnects the previous page."""
        previous_socket, self._socket = self._socket, None
        if self._timer is not None:
            self._timer.cancel()
        if previous_socket is not None:
            await previous_socket.close(code=TAKEN_OVER_CODE, message=b"the terminal is open elsewhere")
        if self._output:
            await socket.send_bytes(_RESET_SEQUENCE + bytes(self._output))
        self._socket = socket

    def detach(self, socket: web.WebSocketResponse) -> None:
        if self._socket is socket:
            self._socket = None
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._terminal.close)

    async def take(self, message: bytes) -> None:
        """Handles a page's message: input or a new size. Raises ValueError for an unknown message."""
        if message[:1] == b"0":
            await self._terminal.write(message[1:])
        elif message[:1] == b"1":
            terminal_size = json.loads(message[1:])
            self._terminal.resize(int(terminal_size["rows"]), int(terminal_size["cols"]))
        else:
            raise ValueError("an unknown message")

    async def _pump(self) -> None:
        while data := await self._terminal.read():
            self._output += data
            del self._output[: max(0, len(self._output) - _STORED_OUTPUT_BYTES)]
            if (socket := self._socket) is not None:
                try:
                    await socket.send_bytes(data)
                except (ConnectionError, RuntimeError):
                    self.detach(socket)  # the page has gone
        self._terminal.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            await self._socket.close(code=ENDED_CODE, message=b"the shell has ended")


class Server:
    """Serves the page and all shells of the session."""

    def __init__(self) -> None:
        self._shells: dict[str, Shell] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/", self.page), web.get("/ws", self.socket), web.get("/{name}", self.file)])
        return app

    async def page(self, request: web.Request) -> web.Response:
        is_built = (_PAGE_FOLDER / "xterm" / "xterm.js").is_file()
        return _file_response(_PAGE_FOLDER / "ttyd" / ("index.html" if is_built else "missing.html"))

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        for folder in ("ttyd", "xterm"):
            path = _PAGE_FOLDER / folder / name
            if re.fullmatch(r"[a-z][a-z-]*\.(js|css)", name) and path.is_file():
                return _file_response(path)
        raise web.HTTPNotFound

    async def socket(self, request: web.Request) -> web.StreamResponse:
        """Serves one page's shell over a WebSocket. Refuses pages of another origin, which could use the shell."""
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text="not from this page")
        key = request.query.get("key", "")
        if not _SHELL_KEY.fullmatch(key):
            raise web.HTTPBadRequest(text="key: 16 to 64 letters and digits")
        socket = web.WebSocketResponse(max_msg_size=_MAX_MESSAGE_BYTES, heartbeat=30.0, compress=False)
        await socket.prepare(request)
        shell = await self._shell(key, request)
        if shell is None:
            await socket.close(code=TOO_MANY_SHELLS_CODE, message=b"too many terminals are open")
            return socket
        await shell.attach(socket)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await shell.take(message.data.encode())
                elif message.type is WSMsgType.BINARY:
                    await shell.take(message.data)
        except (ValueError, KeyError, TypeError):
            await socket.close(code=1007, message=b"not a message of a terminal")
        finally:
            shell.detach(socket)
        return socket

    async def _shell(self, key: str, request: web.Request) -> Shell | None:
        if key in self._shells:
            return self._shells[key]
        if len(self._shells) >= MAX_SHELLS:
            return None
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        rows, columns = (
            _terminal_size(request.query.get(name), default_size) for name, default_size in (("rows", 24), ("cols", 80))
        )
        shell = self._shells[key] = Shell(await open_terminal(shell_argv(), env, rows, columns))
        shell.ended.add_done_callback(lambda _task: self._shells.pop(key, None))
        return shell


def _terminal_size(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 5 else default


def _file_response(path: Path) -> web.Response:
    headers = {
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": _SECURITY_POLICY,
        "Cache-Control": "no-cache",
    }
    return web.Response(
        body=path.read_bytes(), content_type=_CONTENT_TYPES[path.suffix], charset="utf-8", headers=headers
    )


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    arguments = parser.parse_args()
    os.chdir(os.environ.get("HOME") or "/")
    app_runner = web.AppRunner(Server().app(), access_log=None)
    await app_runner.setup()
    path = socket_path(arguments.host)
    site = web.TCPSite(app_runner, arguments.host, arguments.port) if path is None else web.UnixSite(app_runner, path)
    await site.start()
    await asyncio.Event().wait()


def run() -> None:
    """Runs the server of the web terminal until the session ends."""
    asyncio.run(main())
