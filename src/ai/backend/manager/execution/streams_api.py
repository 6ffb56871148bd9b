"""Execution and terminals over WebSockets (spec 03-08, client wire contract 2.2).

The execution stream repeats the steps of the polling API until the run has finished. If the client goes away in the
middle of a run the code is interrupted, since the next run would wait behind it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Meta

from ai.backend.common.errors import BackendError, NotFound
from ai.backend.common.states import RunMode, RunStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import PtyFrame, RunResult
from ai.backend.common.wire.link import PtyStream
from ai.backend.infra.http.decode import convert, parse_json_object, refuse
from ai.backend.infra.http.errors import problem
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Schema, route
from ai.backend.infra.http.streams import open_socket
from ai.backend.infra.loop import cancel_all
from ai.backend.manager.access.requests import SESSION_PROBLEMS
from ai.backend.manager.execution.api import run_request, run_result
from ai.backend.manager.execution.schemas import StreamRequest
from ai.backend.manager.execution.service import ExecutionService, RunRequest
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.views import session_of

FLUSH_TIMEOUT_S = 0.25
"""How long a step of a streamed run collects output; the delay with which a user sees it."""
_INPUT_CHECK_S = 1.0
MAX_FRAME_CHARS = 262_144
"""Console text of one frame; six bytes a character at worst, which stays below the client's 4 MiB."""
_TEXT_KINDS = ("stdout", "stderr")


_TerminalSize = Annotated[int, Meta(ge=1, le=4_096)]


class PtyQuery(Schema, frozen=True):
    """``rows`` and ``cols`` are the size with which the terminal opens."""

    app: Annotated[str, Meta(max_length=64)] | None = None
    service: Annotated[str, Meta(max_length=64)] | None = None
    rows: _TerminalSize = 24
    cols: _TerminalSize = 80


class PtyMessage(Schema, frozen=True):
    """A message of a terminal's client; ``chars`` is base64."""

    type: Literal["stdin", "resize", "ping", "restart"]
    chars: str = ""
    rows: _TerminalSize = 24
    cols: _TerminalSize = 80


class StreamsApi:
    """Serves streams of sessions. ``{s}`` is a name or id, as in the REST calls."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, sessions: SessionService, execution: ExecutionService) -> None:
        self._sessions = sessions
        self._execution = execution

    @route("GET", "/stream/session/{s}/execute", kind="socket")
    async def execute(self, call: Call) -> web.StreamResponse:
        """Run code: the first frame has mode and code; replies to requests for input are raw text frames."""
        await self._sessions.get(**session_of(call))
        async with open_socket(call.request) as socket:
            await _StreamRun(self._execution, call, socket).serve()
        return socket

    @route("GET", "/stream/session/{s}/pty", kind="socket", query=PtyQuery)
    async def pty(self, call: Call[Nothing, PtyQuery]) -> web.StreamResponse:
        """Open a terminal; messages are JSON in text frames. ``app`` is a service of the session (spec 03-08:1162)."""
        app = call.query.app or call.query.service
        session = await self._sessions.get(**session_of(call))
        if app is not None and session.service_name(app) not in {port["name"] for port in session.service_ports}:
            raise NotFound(f"The session has no service {app!r}.", data={"app": "unknown"})
        stream = await self._execution.open_pty(**session_of(call), rows=call.query.rows, cols=call.query.cols)
        try:
            async with open_socket(call.request) as socket:
                await _relay_terminal(socket, stream)
        finally:
            await stream.close()
        return socket


class _StreamRun:
    """A run of code over a WebSocket."""

    def __init__(self, execution: ExecutionService, call: Call[Any, Any], socket: web.WebSocketResponse) -> None:
        self._execution = execution
        self._call = call
        self._socket = socket
        self._inbox: asyncio.Queue[str] = asyncio.Queue(16)

    async def serve(self) -> None:
        first_message = await self._socket.receive()
        if first_message.type is not WSMsgType.TEXT:
            return
        try:
            stream_request = convert(parse_json_object(str(first_message.data).encode(errors="replace")), StreamRequest)
            request = run_request(stream_request.mode, stream_request.code, None, stream_request.options)
        except BackendError as error:
            await self._send_error(error)
            return
        reader_task = asyncio.create_task(self._read_messages())
        run_task = asyncio.create_task(self._run_steps(request))
        try:
            await asyncio.wait((reader_task, run_task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also when this task is cancelled, which is what an abrupt end of the connection does.
            is_abandoned = not run_task.done()
            for task in (reader_task, run_task):
                task.cancel()
            if is_abandoned:
                await asyncio.shield(asyncio.ensure_future(self._interrupt()))
            _, run_error = await asyncio.gather(reader_task, run_task, return_exceptions=True)
        if isinstance(run_error, BackendError):
            await self._send_error(run_error)
        elif isinstance(run_error, Exception):
            raise run_error

    async def _interrupt(self) -> None:
        with contextlib.suppress(BackendError):
            await self._execution.interrupt(**session_of(self._call))

    async def _read_messages(self) -> None:
        async for message in self._socket:
            if message.type is WSMsgType.TEXT:
                await self._inbox.put(str(message.data))

    async def _run_steps(self, request: RunRequest) -> None:
        session = session_of(self._call)
        is_input_requested = False
        while True:
            result = await self._execution.execute(**session, request=request, flush_timeout_s=FLUSH_TIMEOUT_S)
            is_repeated_request = is_input_requested and result.status is RunStatus.WAITING_INPUT
            status = RunStatus.CONTINUED if is_repeated_request else result.status
            for result_part in split_result(replace(result, status=status)):
                if result_part.status is not RunStatus.CONTINUED or result_part.console:
                    await self._send(run_result(result_part))
            request = RunRequest(mode=RunMode.CONTINUE, run_id=result.run_id)
            if result.status in (RunStatus.FINISHED, RunStatus.EXEC_TIMEOUT):
                return
            is_input_requested = result.status is RunStatus.WAITING_INPUT
            if is_input_requested:
                # The run may go on without the input, after a time-out of its own or an interrupt.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_INPUT_CHECK_S):
                        request = replace(request, mode=RunMode.INPUT, code=await self._inbox.get())
                    is_input_requested = False

    async def _send(self, frame: Mapping[str, Any]) -> None:
        await self._socket.send_str(msgspec.json.encode(frame).decode())

    async def _send_error(self, error: BackendError) -> None:
        """Sends an error as the end of the run, since that is all that the published client understands."""
        if self._socket.closed:
            return
        with contextlib.suppress(ConnectionError):
            await self._send(
                {
                    "status": RunStatus.FINISHED.value,
                    "exitCode": -1,
                    "console": [["stderr", f"{error.title} {error.message}\n"]],
                    "options": None,
                    "files": [],
                    "error": problem(error, request_id=self._call.request_id),
                }
            )


def split_result(result: RunResult) -> Iterator[RunResult]:
    """Splits a result into parts that each fit a frame; all but the last say ``continued``."""
    console_chunk: list[list[Any]] = []
    chunk_chars = 0
    for item_kind, item_data in result.console:
        for console_piece in _console_pieces(item_kind, item_data):
            piece_chars = _count_console_chars(console_piece)
            if console_chunk and chunk_chars + piece_chars > MAX_FRAME_CHARS:
                yield RunResult(run_id=result.run_id, status=RunStatus.CONTINUED, console=console_chunk)
                console_chunk, chunk_chars = [], 0
            console_chunk.append(console_piece)
            chunk_chars += piece_chars
    yield replace(result, console=console_chunk)


def _console_pieces(kind: str, data: Any) -> Iterator[list[Any]]:
    if kind in _TEXT_KINDS and isinstance(data, str):
        for offset in range(0, len(data), MAX_FRAME_CHARS):
            yield [kind, data[offset : offset + MAX_FRAME_CHARS]]
    elif _count_console_chars([kind, data]) > 3 * MAX_FRAME_CHARS:
        yield ["stderr", f"[a {kind} item is too large for this stream and was left out]\n"]
    else:
        yield [kind, data]


def _count_console_chars(item: list[Any]) -> int:
    data = item[1]
    return len(data) if isinstance(data, str) else len(msgspec.json.encode(data))


async def _relay_terminal(socket: web.WebSocketResponse, stream: PtyStream) -> None:
    """Relays between a terminal and its client until either ends."""

    async def relay_output() -> None:
        async for frame in stream:
            if frame.kind == "closed":
                return
            if frame.kind == "out":
                await socket.send_json({"type": "out", "data": base64.b64encode(frame.data).decode()})

    async def relay_input() -> None:
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                continue
            try:
                await stream.send(_pty_frame(str(message.data)))
            except BackendError as error:
                await socket.send_json({"type": "error", "data": error.message})

    tasks = {asyncio.create_task(relay_output()), asyncio.create_task(relay_input())}
    try:
        ended_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended_tasks:
            task.result()
    except BackendError as error:
        if not socket.closed:
            await socket.send_json({"type": "error", "data": error.message})
    finally:
        await cancel_all(*tasks)


def _pty_frame(message_text: str) -> PtyFrame:
    message = convert(parse_json_object(message_text.encode(errors="replace")), PtyMessage)
    if message.type == "stdin":
        try:
            return PtyFrame(kind="stdin", data=base64.b64decode(message.chars, validate=True))
        except (binascii.Error, ValueError):
            raise refuse({"chars": "not base64"}) from None
    return PtyFrame(kind=message.type, rows=message.rows, cols=message.cols)
