"""Serves the calls of one plugin in its host.

The main thread runs the plugin's coroutines, a second one answers for a plugin's own alloc map while the agent waits, a
third one watches whether the agent is still there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from ai.backend.common.errors import BackendError, PluginError, waiting_time
from ai.backend.plugin.accelerator import (
    MANAGED_STATE_LIMIT,
    POWERS,
    AbstractComputePlugin,
    HookContext,
    ManagedState,
    TerminationDeferred,
)
from ai.backend.plugin.accelerator.shapes import (
    DIRECT_CALLS,
    MAX_TEXT,
    SHAPES,
    Hello,
    HookCall,
    InvalidResponse,
    KeptState,
    LoadRequest,
    Ready,
    write_answer,
)
from ai.backend.plugin.discovery import make_plugin
from ai.backend.plugin.tracebacks import place_of
from ai.backend.pluginhost.external_alloc_map import Allocate, allocator, serve_choices
from ai.backend.pluginhost.protocol import (
    PROTOCOLS,
    TO_HOST,
    Answer,
    Call,
    Cancel,
    Failure,
    Item,
    Save,
    Saved,
    pack,
    read_frame,
    safe_message,
)
from ai.backend.pluginhost.v1.loader import load_any_version

_OUTPUT_DRAIN_S = 2.0
_EMPTY_STATE = msgspec.msgpack.encode({})


def serve(calls_fd: int, choices_fd: int) -> None:
    """Serves calls until the agent closes the socket or dies."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    threading.Thread(target=_end_on_agent_death, args=(calls_fd,), daemon=True).start()
    asyncio.run(_Host(socket.socket(fileno=calls_fd), choices_fd).run())
    # A thread that hangs in a vendor's library must not keep this process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_on_agent_death(calls_fd: int) -> None:
    poller = select.poll()
    poller.register(calls_fd, select.POLLRDHUP | select.POLLHUP)
    poller.poll()
    time.sleep(_OUTPUT_DRAIN_S)
    os._exit(0)


class _Host:
    def __init__(self, sock: socket.socket, choices_fd: int) -> None:
        self._sock = sock
        self._choices = choices_fd
        self._writer: asyncio.StreamWriter
        self._class: type[AbstractComputePlugin] | None = None
        self._made: AbstractComputePlugin | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._saving: dict[int, asyncio.Future[str]] = {}
        self._choose: Allocate | None = None

    async def run(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
        while (frame := await read_frame(reader, TO_HOST)) is not None:
            match frame:
                case Call():
                    task = self._tasks[frame.id] = asyncio.create_task(self._serve(frame))
                    task.add_done_callback(lambda _, call=frame.id: self._tasks.pop(call, None))  # type: ignore[misc]  # the id of this frame
                case Cancel():
                    if (running_task := self._tasks.get(frame.id)) is not None:
                        running_task.cancel()
                case Saved():
                    if (save_future := self._saving.pop(frame.id, None)) is not None and not save_future.done():
                        save_future.set_result(frame.error)

    @property
    def _plugin(self) -> AbstractComputePlugin:
        if self._made is None:
            raise PluginError("the plugin is not made yet")
        return self._made

    def _send(self, frame: Answer | Failure | Item | Save) -> None:
        if not self._writer.is_closing():
            self._writer.write(pack(frame))

    async def _serve(self, call_frame: Call) -> None:
        state: ManagedState | None = None
        try:
            arguments = msgspec.msgpack.decode(call_frame.arguments, type=SHAPES[call_frame.method].arguments)
            if call_frame.method == "watch_health":
                await self._stream_health(call_frame.id)
                return
            if call_frame.method == "hook":
                (hook_call,) = arguments
                state = ManagedState(
                    msgspec.json.decode(hook_call.state.data),
                    hook_call.state.version,
                    saver=self._state_saver(call_frame.id),
                )
                coroutine = self._call_hook(hook_call, state)
            else:
                coroutine = self._dispatch(call_frame.method, arguments)
            async with asyncio.timeout(call_frame.deadline_s):
                result = await coroutine
            answer_bytes, encoded_state = write_answer(call_frame.method, result), _encode_state(state)
        except asyncio.CancelledError:
            self._send(_failure_frame(call_frame.id, TimeoutError(), state))
        except BaseException as e:  # noqa: BLE001  # SystemExit too: a plugin does not decide that its host ends
            self._send(_failure_frame(call_frame.id, e, state))
        else:
            self._send(Answer(id=call_frame.id, result=answer_bytes, state=encoded_state))
        await self._drain()

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    async def _dispatch(self, method: str, arguments: tuple[Any, ...]) -> Any:
        if method in DIRECT_CALLS:
            return await getattr(self._plugin, method)(*arguments)
        host_method: Callable[..., Awaitable[Any]] = getattr(self, f"_{method}")
        return await host_method(*arguments)

    async def _load(self, request: LoadRequest) -> Hello:
        sys.path[:] = request.path
        self._class = cls = load_any_version(request.reference)
        capabilities, options_schema = cls.capabilities, cls.options_schema()
        return Hello(
            protocol=PROTOCOLS[-1],
            key=cls.key,
            version=str(cls.version)[:64],
            verified_on=None if cls.verified_on is None else str(cls.verified_on)[:256],
            key_is_slot_prefix=bool(cls.key_is_slot_prefix),
            capabilities=capabilities,
            powers=tuple(
                power_name
                for power_name, protocol in POWERS.items()
                if getattr(capabilities, power_name) and issubclass(cls, protocol)
            ),
            options_schema=None if options_schema is None else dict(options_schema),
        )

    async def _make(self, settings: dict[str, Any]) -> None:
        if self._class is None:
            raise PluginError("the plugin is not loaded yet")
        self._made = make_plugin(self._class, settings)

    async def _init(self) -> Ready:
        await self._plugin.init()
        return Ready(spec=self._plugin.alloc_map_spec())

    async def _cleanup(self) -> None:
        await self._plugin.cleanup()

    async def _create_alloc_map(self) -> None:
        is_first, self._choose = self._choose is None, allocator(await self._plugin.create_alloc_map())
        if is_first:
            choices_socket = socket.socket(fileno=self._choices)
            threading.Thread(target=serve_choices, args=(choices_socket, self._current_allocator), daemon=True).start()

    def _current_allocator(self) -> Allocate:
        assert self._choose is not None
        return self._choose

    async def _call_hook(self, hook_call: HookCall, state: ManagedState) -> Any:
        context = HookContext(
            cause=hook_call.cause,
            attempt=hook_call.attempt,
            state=state,
            previous_allocation=hook_call.previous_allocation,
            deadline_s=hook_call.deadline_s,
            image=hook_call.image,
            cluster_role=hook_call.cluster_role,
            cluster_rank=hook_call.cluster_rank,
            cluster_size=hook_call.cluster_size,
            end_reason=hook_call.end_reason,
            is_forced=hook_call.is_forced,
            is_diagnostic=hook_call.is_diagnostic,
            options=hook_call.options,
        )
        hook = self._plugin.create_lifecycle_hook(hook_call.workload, hook_call.device_alloc, context)
        result = await getattr(hook, hook_call.method)()
        return result if hook_call.method == "pre_create" else None

    def _state_saver(self, call_id: int) -> Callable[[ManagedState], Awaitable[None]]:
        async def save(state: ManagedState) -> None:
            encoded_state = _encode_state(state)
            assert encoded_state is not None
            saved_future = self._saving[call_id] = asyncio.get_running_loop().create_future()
            self._send(Save(id=call_id, state=encoded_state))
            if error := await saved_future:
                raise PluginError(error)

        return save

    async def _stream_health(self, call_id: int) -> None:
        health_changes: AsyncIterator[Any] = self._plugin.watch_health()  # type: ignore[attr-defined]  # only asked if it has the power
        async for change in health_changes:
            self._send(Item(id=call_id, value=write_answer("watch_health", change)))
            await self._drain()
        raise PluginError("the watch has ended")


def _encode_state(state: ManagedState | None) -> KeptState | None:
    """Encodes the managed state of a hook. Raises PluginError for a state that is not JSON, or too large."""
    if state is None:
        return None
    if not isinstance(state.data, dict) or not isinstance(state.version, int):
        raise PluginError("the plugin keeps a state that is not JSON: data is an object, version a number")
    try:
        state_bytes = msgspec.json.encode(state.data)
    except (TypeError, ValueError, RecursionError) as e:
        raise PluginError(f"the plugin keeps a state that is not JSON: {e}") from e
    if len(state_bytes) > MANAGED_STATE_LIMIT:
        raise PluginError(f"the state has {len(state_bytes)} bytes; {MANAGED_STATE_LIMIT} are allowed")
    return KeptState(data=state_bytes, version=state.version)


def _failure_frame(call_id: int, error: BaseException, state: ManagedState | None) -> Failure:
    try:
        encoded_state = _encode_state(state)
    except PluginError:
        encoded_state = None
    message = safe_message(error)
    match error:
        case BackendError():
            try:
                error_data = msgspec.msgpack.encode(error.data)
            except (TypeError, ValueError, RecursionError):
                error_data = _EMPTY_STATE
            error_data = error_data if len(error_data) <= MANAGED_STATE_LIMIT else _EMPTY_STATE
            return Failure(
                id=call_id, kind="backend", name=str(error.code), message=message, data=error_data, state=encoded_state
            )
        case TerminationDeferred():
            retry_after = msgspec.msgpack.encode({"retry_after": waiting_time(error.retry_after)})
            return Failure(id=call_id, kind="deferred", name="", message=message, data=retry_after, state=encoded_state)
        case TimeoutError() if not message:
            return Failure(id=call_id, kind="deadline", name="", message="", state=encoded_state)
        case InvalidResponse():
            return Failure(id=call_id, kind="nonsense", name="", message=message, state=encoded_state)
    if code_place := place_of(error):
        message = f"{message} ({code_place})"
    traceback_text = "".join(traceback.format_exception(error))[-MAX_TEXT:].encode(errors="replace").decode()
    return Failure(
        id=call_id, kind="other", name=type(error).__name__, message=message, trace=traceback_text, state=encoded_state
    )
