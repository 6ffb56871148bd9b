"""Services in a fake workload, and clients of the gateway that leads to them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from ai.backend.agent.composition import Agent
from ai.backend.agent.gateway.server import ServiceGateway
from ai.backend.agent.link.commands import Commands
from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.execution import OpenRoute, RouteOpened
from ai.backend.common.wire.link import ByteStream
from ai.backend.infra.tls.certificates import TlsIdentity, create_authority, create_request, issue_client_certificate
from ai.backend.infra.tls.upstream import open_upstream
from ai.backend.node.workload.connect import SocketStream
from ai.backend.plugin.runtime import PortExposure, WorkloadKey
from tests.support.agent_fakes import FakeRuntime

ECHO, SINK, SOURCE, HANGS, LATE_REPLY = 8001, 8002, 8003, 8004, 8005
AUTHORITY = create_authority()
SIZE = 8 << 20


def client_of(authority: TlsIdentity = AUTHORITY) -> TlsIdentity:
    key, request = create_request("worker")
    return TlsIdentity(key, issue_client_certificate(authority, request, "worker-1"))


CLIENT = client_of()


class ServingRuntime(FakeRuntime):
    """Every workload of it has these services: an echo, one that reads nothing until ``released``, one that sends 8 MiB
    at once, one that is silent, and one that answers with the number of bytes once it has read the end."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[tuple[WorkloadKey, int]] = []
        self.connections: list[asyncio.StreamWriter] = []
        self.errors: asyncio.Queue[type[Exception]] = asyncio.Queue()
        self.released = asyncio.Event()
        self.streams_without_socket = False
        self.reply = b""
        self.replied = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.asked, self.served = asyncio.Event(), asyncio.Event()
        self.received = b""

    async def port_exposure(self, key: WorkloadKey) -> PortExposure:
        return PortExposure.PRIVATE

    async def open_port(self, key: WorkloadKey, port: int) -> ByteStream:
        if key not in self.specs or key in self.exits or port not in (ECHO, SINK, SOURCE, HANGS, LATE_REPLY):
            raise Unavailable(f"nothing listens on port {port}")
        self.opened.append((key, port))
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        near, far = _tcp_pair()
        reader, writer = await asyncio.open_connection(sock=far, limit=1 << 16)
        self.connections.append(writer)
        asyncio.create_task(self._serve(port, reader, writer))  # noqa: RUF006  # ends with its connection
        return PlainStream(near) if self.streams_without_socket else SocketStream(near)

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if port == SINK:
                await self.released.wait()
            if port == SOURCE:
                writer.write(bytes(SIZE))
                await writer.drain()
                writer.write_eof()
            total = 0
            while data := await reader.read(1 << 16):
                total += len(data)
                self.received = data
                if port == ECHO:
                    writer.write(data)
                    await writer.drain()
            if port == LATE_REPLY:
                writer.write(self.reply or b"%d" % total)
                self.replied.set()
        except OSError as e:
            self.errors.put_nowait(type(e))
        finally:
            self.served.set()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def close_services(self) -> None:
        """End every service's connection."""
        self.released.set()
        for writer in self.connections:
            if not writer.is_closing():
                writer.transport.abort()
        await asyncio.sleep(0)


class PlainStream:
    """A stream of a runtime that has no socket to hand over."""

    def __init__(self, sock: socket.socket) -> None:
        self._stream = SocketStream(sock)
        self.read, self.write = self._stream.read, self._stream.write
        self.write_eof, self.close = self._stream.write_eof, self._stream.close


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        return near, far


def gateway_of(agent: Agent) -> ServiceGateway:
    """The gateway of an agent that is started."""
    commands = agent.commands
    assert isinstance(commands, Commands)
    return commands.gateway


async def open_route(
    agent: Agent, spec: KernelSpec, port: int = ECHO, authority: TlsIdentity = AUTHORITY
) -> RouteOpened:
    request = OpenRoute(kernel_id=spec.kernel_id, port=port, authority=authority.certificate)
    return await agent.commands.open_route(request)


async def dial(
    route: RouteOpened, identity: TlsIdentity = CLIENT, **changes: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as a worker does."""
    assert route.certificate is not None
    return await open_upstream(
        route.host, route.port, changes.get("server_name", route.name), route.certificate, identity
    )


async def talk(route: RouteOpened, identity: TlsIdentity = CLIENT) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an echo, and hear it."""
    reader, writer = await dial(route, identity)
    try:
        writer.write(b"hello")
        async with asyncio.timeout(20):
            assert await reader.readexactly(5) == b"hello"
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Returns True if the stream ends with an error instead of an end."""
    async with asyncio.timeout(20):
        try:
            while await reader.read(1 << 16):
                pass
        except OSError:
            return True
        return False


async def echoes(route: RouteOpened, identity: TlsIdentity = CLIENT) -> bool:
    """Returns True if a client reaches the echo service."""
    try:
        _, writer = await talk(route, identity)
    except (OSError, asyncio.IncompleteReadError):
        return False
    writer.transport.abort()
    return True
