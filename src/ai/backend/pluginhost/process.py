"""Runs the process of a host for the agent: starts it, calls the plugin in it, and ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.errors import PluginError, from_wire
from ai.backend.plugin.accelerator import MANAGED_STATE_LIMIT, TerminationDeferred
from ai.backend.plugin.accelerator.shapes import MAX_FRAME, MAX_TEXT, InvalidResponse, KeptState, read_answer
from ai.backend.pluginhost.external_alloc_map import CHOICE_DEADLINE_S, ask
from ai.backend.pluginhost.fork import HostChild, fork_host
from ai.backend.pluginhost.protocol import (
    NOT_EXECUTED,
    TO_AGENT,
    Answer,
    Call,
    Cancel,
    Choice,
    Failure,
    Frame,
    Item,
    Save,
    Saved,
    pack,
    read_frame,
)

log = logging.getLogger(__name__)

GRACE_S = 1.0
"""How long after a call's deadline its host may stay silent before it counts as blocked."""
MAX_TIMEOUTS = 3
"""The number of calls of one method in a row that may miss their deadline before the host is killed, since all its
threads may hang.
"""
MAX_STREAM_ITEMS = 1024
MAX_ITEM_BYTES = 1 << 16
MAX_SAVES = 16
"""The largest number of states of one call that wait to be stored."""
_MAX_UNREAD_BYTES = MAX_FRAME
"""The number of bytes that a host may leave unread before it is killed."""
MAX_LINE_LENGTH = 1000
LINES_PER_MINUTE = 100
STOP_S = 2.0
_OUTPUT_DRAIN_S = 0.5
"""The seconds for which a host's output is read after its end. Only processes that it has left running print then."""

INHERITED_VARIABLES = (
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED",
    "PYTHONPATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""The environment variables of the agent that a host inherits, besides ``LC_*`` and the variables that settings
name.
"""


class HostedCallFailed(Exception):
    """Raised when a plugin in a host raises an exception that is not part of the plugin interface.

    The text begins with the exception's class.
    """


@dataclass(slots=True)
class HookState:
    """Holds the two callbacks by which the agent stores the managed state of a hook call.

    ``keep`` takes the state that a call returns, ``save`` stores it during the call.
    """

    keep: Callable[[KeptState], None]
    save: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _PendingCall:
    answer: asyncio.Future[Answer]
    state: HookState | None = None
    items: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(MAX_STREAM_ITEMS))
    saves: int = 0


class HostProcess:
    """Runs a plugin in a child process, which never outlives this process. :meth:`stop` ends it, nothing restarts it.
    ``reason``: why it ended, once it has.
    """

    def __init__(self, label: str, on_ended: Callable[[str], None]) -> None:
        self._label = label
        self._ended = on_ended
        self._ids = 0
        self._late: dict[str, int] = {}
        self._waiting: dict[int, _PendingCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._process: HostChild | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._choices: socket.socket | None = None
        self._killed_for: str | None = None
        self._stopping = False
        self.reason: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self, environment: Mapping[str, str], program: str = "") -> None:
        """Starts the host; ``program`` is the path of an executable that serves the calls instead of this package.
        Raises OSError if no process can be started."""
        calls_socket, host_calls = socket.socketpair()
        choices_socket, host_choices = socket.socketpair()
        # A pipe of our own: asyncio's would wait for whoever holds its other end, and that may outlive the host.
        output_fd, host_output = os.pipe()
        try:
            self._process = await fork_host(
                host_calls.fileno(), host_choices.fileno(), host_output, environment, program
            )
        except BaseException:
            calls_socket.close()
            choices_socket.close()
            os.close(output_fd)
            raise
        finally:
            host_calls.close()
            host_choices.close()
            os.close(host_output)
        self._choices = choices_socket
        copy_task = self._spawn(self._copy_output(output_fd))
        reader, self._writer = await asyncio.open_unix_connection(sock=calls_socket)
        self._spawn(self._read(reader, copy_task))

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(coroutine, name=f"host of {self._label}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def call(
        self, method: str, arguments: tuple[Any, ...], deadline_s: float, state: HookState | None = None
    ) -> Any:
        """Calls a method of the plugin and decodes the answer by the method's shape.

        Raises TimeoutError: it missed its deadline; a host that is blocked by it was killed; PluginError: the host is
        gone, or died meanwhile; BackendError, TerminationDeferred: what the plugin means to say; InvalidResponse:
        what it answers cannot be used; HostedCallFailed: it raised anything else.
        """
        pending_call = _PendingCall(asyncio.get_running_loop().create_future(), state)
        call_id = self._send_call(method, arguments, deadline_s, pending_call)
        call_name = arguments[0].method if method == "hook" else method
        deadline = asyncio.get_running_loop().time() + deadline_s + GRACE_S
        try:
            async with asyncio.timeout_at(deadline):
                # Shielded: a caller that goes must not leave a blocked host unnoticed.
                answer = await asyncio.shield(pending_call.answer)
        except TimeoutError:
            self._note_timeout(call_name, is_blocked=not pending_call.answer.done())
            raise
        except asyncio.CancelledError:
            pending_call.state = None
            self._send(Cancel(id=call_id))
            self._spawn(self._await_cancelled(call_name, call_id, pending_call, deadline))
            raise
        finally:
            if pending_call.answer.done() or self.reason is not None:
                self._waiting.pop(call_id, None)
        self._late.pop(call_name, None)
        return read_answer(method, answer.result)

    def _note_timeout(self, call_name: str, *, is_blocked: bool) -> None:
        self._late[call_name] = timeout_count = self._late.get(call_name, 0) + 1
        if is_blocked:
            self.kill(f"{call_name} blocked it for longer than its deadline")
        elif timeout_count >= MAX_TIMEOUTS:
            self.kill(f"{call_name} missed its deadline {timeout_count} times in a row")

    async def _await_cancelled(self, call_name: str, call_id: int, pending_call: _PendingCall, deadline: float) -> None:
        """Waits until the deadline for a cancelled call to end. If it does not end, the host counts as blocked."""
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wait([pending_call.answer])
        except TimeoutError:
            self._note_timeout(call_name, is_blocked=True)
        self._waiting.pop(call_id, None)

    async def stream(self, method: str) -> AsyncIterator[Any]:
        """Calls a method that never returns, and yields the items that the method sends. Raises as :meth:`call`.

        The oldest items are dropped if they are not taken.
        """
        pending_call = _PendingCall(asyncio.get_running_loop().create_future())
        call_id = self._send_call(method, (), 0.0, pending_call)
        item_task: asyncio.Task[bytes] | None = None
        try:
            while True:
                item_task = asyncio.create_task(pending_call.items.get())
                await asyncio.wait((item_task, pending_call.answer), return_when=asyncio.FIRST_COMPLETED)
                if not item_task.done():
                    pending_call.answer.result()
                    return
                yield read_answer(method, item_task.result())
        finally:
            if item_task is not None:
                item_task.cancel()
            self._waiting.pop(call_id, None)
            self._send(Cancel(id=call_id))

    def choose(self, choice: Choice) -> Any:
        """Asks the plugin's own alloc map for devices, and returns the chosen devices.

        See :mod:`.external_alloc_map`. Blocks this thread for a second at most.
        """
        if self._choices is None or self.reason is not None:
            raise PluginError(f"its host process is gone: {self.reason}")
        try:
            return ask(self._choices, choice)
        except TimeoutError:
            self.kill(f"its alloc map took longer than {CHOICE_DEADLINE_S:g} s")
            raise

    def _send_call(self, method: str, arguments: tuple[Any, ...], deadline_s: float, pending_call: _PendingCall) -> int:
        if self._writer is None or self.reason is not None:
            raise PluginError(f"its host process is gone: {self.reason}")
        self._ids += 1
        argument_bytes = msgspec.msgpack.encode(arguments)
        self._waiting[self._ids] = pending_call
        self._send(Call(id=self._ids, method=method, arguments=argument_bytes, deadline_s=deadline_s))
        return self._ids

    def _send(self, frame: Call | Cancel | Saved) -> None:
        if self._writer is None or self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.kill("it does not read what it is sent")
            return
        self._writer.write(pack(frame))

    async def _read(self, reader: asyncio.StreamReader, copy_task: asyncio.Task[None]) -> None:
        try:
            while (frame := await read_frame(reader, TO_AGENT)) is not None:
                self._handle_frame(frame)
        except Exception as e:  # noqa: BLE001  # a frame by hand: of a wrong type, too deep, not UTF-8
            self.kill(f"it sent what is no frame: {type(e).__name__}: {e}"[:MAX_TEXT])
        finally:
            await self._end()
            await asyncio.wait([copy_task], timeout=_OUTPUT_DRAIN_S)
            copy_task.cancel()

    def _handle_frame(self, frame: Frame) -> None:
        pending_call = self._waiting.get(frame.id)
        if pending_call is None:
            return
        match frame:
            case Item():
                if len(frame.value) > MAX_ITEM_BYTES:
                    raise InvalidResponse(f"an item of {len(frame.value)} bytes")
                if pending_call.items.full():
                    pending_call.items.get_nowait()
                pending_call.items.put_nowait(frame.value)
                return
            case Save():
                pending_call.saves += 1
                if pending_call.saves > MAX_SAVES:
                    raise InvalidResponse(f"{pending_call.saves} states to store at once")
                _check_state(frame.state)
                self._spawn(self._save(frame, pending_call))
                return
            case Answer() | Failure():
                if frame.state is not None and pending_call.state is not None:
                    _check_state(frame.state)
                    pending_call.state.keep(frame.state)
        if pending_call.answer.done():
            return
        if isinstance(frame, Answer):
            pending_call.answer.set_result(frame)
        elif isinstance(frame, Failure):
            pending_call.answer.set_exception(_exception_of(frame))
            pending_call.answer.exception()

    async def _save(self, frame: Save, pending_call: _PendingCall) -> None:
        try:
            if pending_call.state is None:
                raise PluginError("only a hook has a state")
            pending_call.state.keep(frame.state)
            await pending_call.state.save()
        except Exception as e:  # noqa: BLE001  # whatever it is, the hook hears of it
            self._send(Saved(id=frame.id, error=str(e) or type(e).__name__))
        else:
            self._send(Saved(id=frame.id))
        finally:
            pending_call.saves -= 1

    async def _copy_output(self, output_fd: int) -> None:
        """Copies the host's output to the log up to a number of lines and characters, and counts the omitted ones."""
        reader = asyncio.StreamReader(limit=1 << 16)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(output_fd, "rb"))
        try:
            await self._copy_lines(reader)
        finally:
            transport.close()

    async def _copy_lines(self, reader: asyncio.StreamReader) -> None:
        minute_start, line_count = time.monotonic(), 0
        while output_bytes := await reader.read(1 << 16):
            for line in output_bytes.decode(errors="replace").splitlines():
                if time.monotonic() - minute_start > 60:
                    if line_count > LINES_PER_MINUTE:
                        log.warning("%s printed %d lines more", self._label, line_count - LINES_PER_MINUTE)
                    minute_start, line_count = time.monotonic(), 0
                line_count += 1
                if line_count <= LINES_PER_MINUTE and line:
                    log.info("%s: %s", self._label, line[:MAX_LINE_LENGTH])
                elif line_count == LINES_PER_MINUTE + 1:
                    log.warning("%s prints too much; the rest of this minute is left out", self._label)

    def kill(self, reason: str) -> None:
        """Kills the host's process at once. Safe at any time and twice."""
        if self._process is None or self.reason is not None:
            return
        self._killed_for = self._killed_for or reason
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def stop(self) -> None:
        """Ends the host by closing its socket, and kills the host if it does not end.

        ``on_ended`` is not called. A caller that is cancelled goes on when the host has ended.
        """
        stop_task = asyncio.create_task(self._stop(), name=f"end of host of {self._label}")
        cancellation: asyncio.CancelledError | None = None
        while not stop_task.done():
            try:
                await asyncio.wait([stop_task])
            except asyncio.CancelledError as error:
                cancellation = error
        if cancellation is not None:
            raise cancellation
        stop_task.result()

    async def _stop(self) -> None:
        self._stopping = True
        if self._writer is not None:
            self._writer.close()
        if self._process is not None and not self._process.has_ended:
            await self._wait_or_kill(self._process, "it did not stop")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process is not None:
            await self._process.release()
        if self._choices is not None:
            self._choices.close()

    async def _wait_or_kill(self, process: HostChild, reason: str) -> None:
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            self.kill(reason)
            await process.wait()

    async def _end(self) -> None:
        assert self._process is not None
        if self._writer is not None:
            self._writer.close()
        if not self._stopping:
            await self._wait_or_kill(self._process, "it closed its socket")
        exit_status = await self._process.wait()
        _kill_children(self._process.pid)
        self.reason = self._killed_for or describe_status(exit_status)
        if self._choices is not None:
            self._choices.close()
        for pending_call in self._waiting.values():
            if not pending_call.answer.done():
                pending_call.answer.set_exception(PluginError(f"its host process ended: {self.reason}"))
                pending_call.answer.exception()
        await self._process.release()
        if not self._stopping:
            self._ended(self.reason)


def _kill_children(host_pid: int) -> None:
    """Kills the processes that a dead host has left in its session.

    A process group keeps its number only as long as it has members, so its number alone is not enough to kill by.
    """
    for stat_path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat_path.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        pid, session = int(stat_path.parent.name), int(fields[3])
        if session == host_pid != pid:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def describe_status(exit_status: int) -> str:
    """Describes how a process ended, from its return code."""
    if exit_status == NOT_EXECUTED:
        return (
            f"it exited with status {exit_status}: it cannot be executed (its format, its interpreter or its libraries)"
        )
    if exit_status >= 0:
        return f"it exited with status {exit_status}"
    try:
        return f"it was killed by {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"it was killed by signal {-exit_status}"


def _check_state(state: KeptState) -> None:
    """Raises InvalidResponse for a managed state that is too large."""
    if len(state.data) > MANAGED_STATE_LIMIT:
        raise InvalidResponse(f"a state of {len(state.data)} bytes; {MANAGED_STATE_LIMIT} are allowed")


class _Deferral(msgspec.Struct, frozen=True):
    retry_after: float = 1.0


def _exception_of(failure: Failure) -> Exception:
    """Returns the exception that a host has reported.

    Raises InvalidResponse, or MsgspecError for data of the wrong type.
    """
    if max(map(len, (failure.name, failure.message, failure.trace, failure.data))) > MANAGED_STATE_LIMIT:
        raise InvalidResponse(f"a failure with a field of more than {MANAGED_STATE_LIMIT} bytes")
    match failure.kind:
        case "backend":
            error_data = msgspec.msgpack.decode(failure.data, type=dict[str, Any])
            return from_wire(failure.name, failure.message, error_data)
        case "deferred":
            deferral = msgspec.msgpack.decode(failure.data, type=_Deferral)
            return TerminationDeferred(failure.message, retry_after=deferral.retry_after)
        case "deadline":
            return TimeoutError()
        case "nonsense":
            return InvalidResponse(failure.message)
    if failure.trace:
        log.error("a plugin failed in its host:\n%s", failure.trace)
    return HostedCallFailed(f"{failure.name}: {failure.message}")


def host_environment(names: Sequence[str]) -> dict[str, str]:
    """Returns the environment of a host process: the allowed variables of this process, and two for Python.

    Allowed are :data:`INHERITED_VARIABLES`, ``LC_*`` and ``names``, in which ``*`` at the end marks a prefix.
    """
    exact_names = {*INHERITED_VARIABLES, *(name for name in names if not name.endswith("*"))}
    prefixes = ("LC_", *(name[:-1] for name in names if name.endswith("*")))
    environment = {
        name: value for name, value in os.environ.items() if name in exact_names or name.startswith(prefixes)
    }
    # What it says before it crashes, and where it crashed, is to be in the log.
    return {**environment, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
