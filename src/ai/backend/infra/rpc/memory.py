"""The link inside one process. Everything still passes the wire encoding, so that nothing is shared by accident."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

from ai.backend.common.errors import BackendError, DeadlineExceeded, LimitExceeded, Unavailable, from_wire
from ai.backend.common.wire.agent import PtyFrame
from ai.backend.common.wire.link import AgentCommands, ByteStream, ManagerReports, PtyStream
from ai.backend.common.wire.methods import Method
from ai.backend.infra.rpc.proxies import (
    Caller,
    Service,
    commands_proxy,
    commands_service,
    reports_proxy,
    reports_service,
)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""No message of the link is larger; the cap of both adapters."""


def pass_wire(value: Any, kind: Any, limit: int = MAX_MESSAGE_BYTES) -> Any:
    """A copy of ``value`` as the far side would decode it.

    Raises:
        LimitExceeded: it is larger than the link carries.
    """
    data = msgspec.msgpack.encode(value)
    if len(data) > limit:
        raise LimitExceeded(f"a message of {len(data)} bytes exceeds the link's {limit}")
    return msgspec.msgpack.decode(data, type=kind)


class MemoryLink:
    """One manager and any number of agents in one process.

    ``link.manager`` is a :class:`~ai.backend.infra.rpc.endpoints.ManagerEndpoint`; ``link.agent_endpoint(agent_id)``
    makes :class:`~ai.backend.infra.rpc.endpoints.AgentEndpoint`. Either side may start, stop and start again in any
    order.
    """

    def __init__(self, *, deadline_scale: float = 1.0) -> None:
        self.deadline_scale = deadline_scale
        self._reports: ManagerReports | None = None
        self._commands: dict[str, AgentCommands] = {}
        self._pending: dict[str, set[asyncio.Task[Any]]] = {}
        self._streams: dict[str, set[_MemoryStream | _MemoryBytes]] = {}
        self.manager = MemoryManagerEndpoint(self)

    def agent_endpoint(self, agent_id: str) -> MemoryAgentEndpoint:
        return MemoryAgentEndpoint(self, agent_id)

    def _service_of(self, agent_id: str, *, to_agent: bool) -> Service:
        if self._reports is None:
            raise Unavailable("the manager is not there")
        commands = self._commands.get(agent_id)
        if commands is None:
            raise Unavailable(f"agent {agent_id} is not connected")
        return commands_service(commands) if to_agent else reports_service(self._reports, agent_id)

    async def run(self, agent_id: str, method: Method, request: object, *, to_agent: bool) -> Any:
        """One call either way; the handler runs in a task of its own, as it would on the far side."""
        service = self._service_of(agent_id, to_agent=to_agent)
        copy = pass_wire(request, method.request)
        task = asyncio.ensure_future(service.call(method, copy))
        pending = self._pending.setdefault(agent_id, set())
        pending.add(task)
        task.add_done_callback(pending.discard)
        timeout_s = method.deadline_of(request) * self.deadline_scale
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            self._abandon(task, method)
            raise
        if not done:
            self._abandon(task, method)
            raise DeadlineExceeded(f"{method.name} was not answered within {timeout_s:g} s")
        if task.cancelled():
            raise Unavailable(f"agent {agent_id} or its manager went away during {method.name}")
        error = task.exception()
        if isinstance(error, BackendError):
            raise from_wire(error.code, error.message, pass_wire(error.data, dict[str, Any]))
        if error is not None:
            raise error
        return task.result()

    @staticmethod
    def _abandon(task: asyncio.Task[Any], method: Method) -> None:
        if method.abandonable:
            task.cancel()
        task.add_done_callback(lambda t: t.cancelled() or t.exception())

    def adopt(self, agent_id: str, method: Method, stream: Any) -> Any:
        """A PtyStream or ByteStream that ends with the link, for the caller."""
        wrapped = _MemoryBytes(stream) if method.stream == "bytes" else _MemoryStream(stream)
        streams = self._streams.setdefault(agent_id, set())
        streams.add(wrapped)
        wrapped.on_close = lambda: streams.discard(wrapped)
        return wrapped

    async def cut(self, agent_id: str) -> None:
        """End whatever is under way with one agent, as a lost connection does."""
        for task in list(self._pending.pop(agent_id, ())):
            task.cancel()
        for stream in list(self._streams.pop(agent_id, ())):
            await stream.close()


class _MemoryCaller:
    def __init__(self, link: MemoryLink, agent_id: str, *, to_agent: bool) -> None:
        self._link, self._agent_id, self._to_agent = link, agent_id, to_agent

    async def connect(self) -> Caller:
        return self

    async def call(self, method: Method, request: object) -> Any:
        reply = await self._link.run(self._agent_id, method, request, to_agent=self._to_agent)
        return pass_wire(reply, method.reply)

    async def open_stream(self, method: Method, request: object) -> Any:
        stream = await self._link.run(self._agent_id, method, request, to_agent=self._to_agent)
        return self._link.adopt(self._agent_id, method, stream)


class _MemoryStream:
    """A terminal stream between both sides that ends on both when one closes it or the link is cut."""

    def __init__(self, inner: PtyStream) -> None:
        self._inner = inner
        self._closed = asyncio.Event()
        self.on_close: Any = lambda: None

    async def send(self, frame: PtyFrame) -> None:
        if self._closed.is_set():
            raise Unavailable("the terminal is closed")
        await self._inner.send(pass_wire(frame, PtyFrame))

    async def __aiter__(self) -> AsyncIterator[PtyFrame]:
        frames = aiter(self._inner)
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            while not self._closed.is_set():
                nxt = asyncio.ensure_future(anext(frames, None))
                await asyncio.wait({nxt, closed}, return_when=asyncio.FIRST_COMPLETED)
                if not nxt.done():
                    nxt.cancel()
                    return
                frame = nxt.result()
                if frame is None:
                    return
                yield pass_wire(frame, PtyFrame)
                if frame.kind == "closed":
                    return
        finally:
            closed.cancel()

    async def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self.on_close()
            await self._inner.close()


class _MemoryBytes:
    """A connection between both sides that ends on both when one closes it or the link is cut."""

    def __init__(self, inner: ByteStream) -> None:
        self._inner = inner
        self._closed = asyncio.Event()
        self.on_close: Any = lambda: None

    async def read(self) -> bytes:
        self._require_open()
        return await self._inner.read()

    async def write(self, data: bytes) -> None:
        self._require_open()
        await self._inner.write(data)

    async def write_eof(self) -> None:
        self._require_open()
        await self._inner.write_eof()

    def _require_open(self) -> None:
        """Whoever waits in the inner stream is told by it, as it promises."""
        if self._closed.is_set():
            raise Unavailable("the connection was cut")

    async def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self.on_close()
            await self._inner.close()


class _Connected(Mapping[str, AgentCommands]):
    """The agents of a link now, as a mapping whose missing keys raise Unavailable."""

    def __init__(self, link: MemoryLink) -> None:
        self._link = link

    def __getitem__(self, agent_id: str) -> AgentCommands:
        if agent_id not in self._link._commands or self._link._reports is None:
            raise Unavailable(f"agent {agent_id} is not connected")
        return self._link.manager.agent(agent_id)

    def __contains__(self, agent_id: object) -> bool:
        return agent_id in self._link._commands and self._link._reports is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._link._commands if self._link._reports is not None else {})

    def __len__(self) -> int:
        return len(self._link._commands) if self._link._reports is not None else 0


class MemoryManagerEndpoint:
    """The manager's end of a :class:`MemoryLink`."""

    def __init__(self, link: MemoryLink) -> None:
        self._link = link
        self._agents = _Connected(link)

    async def start(self, reports: ManagerReports) -> None:
        self._link._reports = reports

    async def stop(self) -> None:
        self._link._reports = None
        for agent_id in list(self._link._commands):
            await self._link.cut(agent_id)

    def agent(self, agent_id: str) -> AgentCommands:
        return commands_proxy(_MemoryCaller(self._link, agent_id, to_agent=True).connect)

    @property
    def agents(self) -> Mapping[str, AgentCommands]:
        return self._agents


class MemoryAgentEndpoint:
    """One agent's end of a :class:`MemoryLink`."""

    def __init__(self, link: MemoryLink, agent_id: str) -> None:
        self._link, self._agent_id = link, agent_id
        self._reports = reports_proxy(_MemoryCaller(link, agent_id, to_agent=False).connect)

    async def start(self, commands: AgentCommands) -> None:
        self._link._commands[self._agent_id] = commands

    async def stop(self) -> None:
        if self._link._commands.pop(self._agent_id, None) is not None:
            await self._link.cut(self._agent_id)

    @property
    def reports(self) -> ManagerReports:
        return self._reports
