"""Programs in sessions over a WebSocket, as `backend.ai exec` starts them.

Bytes are binary messages whose first byte is the stream: 0 stdin, 1 stdout, 2 stderr. Texts are JSON: the first names
the program; then ``resize``, ``eof``, ``signal``; the server's last is ``exit`` or ``error``.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Meta

from ai.backend.common.errors import BackendError, InvalidInput, RunError, Unavailable
from ai.backend.common.wire.execution import PtyFrame
from ai.backend.common.wire.link import PtyStream
from ai.backend.infra.http.decode import convert, parse_json_object
from ai.backend.infra.http.errors import problem
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.infra.http.streams import open_socket
from ai.backend.infra.loop import cancel_all
from ai.backend.manager.access.requests import SESSION_PROBLEMS
from ai.backend.manager.execution.service import ExecutionService, ProgramRequest
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.views import session_of

_FIRST_MESSAGE_TIMEOUT_S = 30.0
_LAST_OUTPUT_TIMEOUT_S = 60.0
_STDIN = 0
_STREAM_NUMBERS = {"out": b"\x01", "err": b"\x02"}
_TerminalSize = Annotated[int, Meta(ge=1, le=1_000)]


class ProgramMessage(Schema, frozen=True):
    """The first message of the client, with the program to start in a kernel.

    An empty ``command`` is a shell; ``cwd`` is relative to the home; ``kernel`` is a host name.
    """

    command: Annotated[list[str], Meta(max_length=4_096)] = msgspec.field(default_factory=list)
    tty: bool = False
    rows: _TerminalSize = 24
    cols: _TerminalSize = 80
    env: dict[str, str] = msgspec.field(default_factory=dict)
    cwd: Annotated[str, Meta(max_length=4_096)] = ""
    kernel: Annotated[str, Meta(max_length=64)] | None = None


class ControlMessage(Schema, frozen=True):
    """A later message of the client: a new size of the terminal, the end of the input, or a signal to the program.

    ``signal`` is a name without SIG.
    """

    type: Literal["resize", "eof", "signal"]
    rows: _TerminalSize = 24
    cols: _TerminalSize = 80
    signal: Literal["INT", "TERM", "HUP", "QUIT", "KILL", "USR1", "USR2"] = "TERM"


class ProgramsApi:
    """Starts programs in sessions. ``{s}`` is a name or id, as in the REST calls."""

    problems = SESSION_PROBLEMS

    def __init__(self, sessions: SessionService, execution: ExecutionService) -> None:
        self._sessions = sessions
        self._execution = execution

    @route("GET", "/stream/session/{s}/exec", kind="socket")
    async def exec(self, call: Call) -> web.StreamResponse:
        """Start a program on a terminal or on pipes; the first message names it, the last one has its exit code."""
        await self._sessions.get(**session_of(call))
        async with open_socket(call.request) as socket:
            try:
                stream = await self._start(call, socket)
                if stream is not None:
                    try:
                        await _relay(socket, stream)
                    finally:
                        await stream.close()
            except BackendError as error:
                with contextlib.suppress(ConnectionError):
                    body = {"type": "error", "error": problem(error, request_id=call.request_id)}
                    await socket.send_str(msgspec.json.encode(body).decode())
        return socket

    async def _start(self, call: Call, socket: web.WebSocketResponse) -> PtyStream | None:
        """Starts the program of the first message; returns None if the client has gone. Raises as `open_program`."""
        try:
            first_message = await socket.receive(_FIRST_MESSAGE_TIMEOUT_S)
        except TimeoutError:
            raise InvalidInput("the first message, which names the program, did not come") from None
        if first_message.type is not WSMsgType.TEXT:
            return None
        message = convert(parse_json_object(str(first_message.data).encode(errors="replace")), ProgramMessage)
        request = ProgramRequest(**{name: getattr(message, name) for name in message.__struct_fields__})
        return await self._execution.open_program(**session_of(call), request=request)


async def _relay(socket: web.WebSocketResponse, stream: PtyStream) -> None:
    """Relays between a program and its client until either ends. Raises BackendError."""

    async def relay_output() -> None:
        async for frame in stream:
            if frame.kind in _STREAM_NUMBERS:
                await socket.send_bytes(_STREAM_NUMBERS[frame.kind] + frame.data)
            elif frame.kind == "closed" and frame.exit_code is not None:
                return await socket.send_json({"type": "exit", "code": frame.exit_code})
        raise RunError("the program was cut off: its session or its agent has ended")

    async def relay_input() -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] == bytes([_STDIN]):
                await stream.send(PtyFrame(kind="stdin", data=message.data[1:]))
            elif message.type is WSMsgType.TEXT:
                await stream.send(_control_frame(str(message.data)))

    output_task, input_task = asyncio.create_task(relay_output()), asyncio.create_task(relay_input())
    try:
        await asyncio.wait({output_task, input_task}, return_when=asyncio.FIRST_COMPLETED)
        if input_task.done() and isinstance(input_task.exception(), Unavailable) and not socket.closed:
            await asyncio.wait({output_task}, timeout=_LAST_OUTPUT_TIMEOUT_S)  # it ended before all input was sent
        for task in (output_task, input_task):
            if task.done():
                return task.result()
    finally:
        await cancel_all(output_task, input_task)


def _control_frame(message_text: str) -> PtyFrame:
    message: Any = convert(parse_json_object(message_text.encode(errors="replace")), ControlMessage)
    if message.type == "signal":
        return PtyFrame(kind="signal", data=message.signal.encode())
    return PtyFrame(kind=message.type, rows=message.rows, cols=message.cols)
