"""Tunnels over WebSockets, from a signed request to a real TCP service behind the agent's end of the link."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
from aiohttp import WSMsgType

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError, BackendClientError, EndpointUnreachable
from ai.backend.client.session import AsyncSession
from ai.backend.common.errors import RunError, Unavailable
from ai.backend.common.states import UserStatus
from ai.backend.common.wire.execution import OpenPort, ServiceState, StartService
from ai.backend.common.wire.link import ByteStream
from ai.backend.node.workload.connect import SocketStream
from tests.component.manager.api.conftest import Api

MIB = 1024 * 1024
PATIENCE_S = 30.0


@dataclass
class Service:
    """A TCP service and an agent's commands to it. Its first line says what it does with a connection."""

    port: int = 0
    asked: list[StartService] = field(default_factory=list)
    connected: int = 0
    sent: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False

    async def start_service(self, req: StartService) -> ServiceState:
        self.asked.append(req)
        if self.fails:
            raise RunError("the service ended at once")
        return ServiceState(name=req.name, protocol="tcp", ports=[self.port], status="running")

    async def open_port(self, req: OpenPort) -> ByteStream:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", req.port))
        except OSError as error:
            sock.close()
            raise Unavailable("nothing listens there") from error
        return SocketStream(sock)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        try:
            await self._serve(await reader.readline(), reader, writer)
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()

    async def _serve(self, what: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match what.strip():
            case b"echo":
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            case b"count":  # answers only once the other side has said all
                writer.write(b"%d" % len(await reader.read()))
            case b"bye":
                writer.write(b"so long")
            case b"reset":
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
                )
                writer.transport.abort()
            case b"flood":
                while True:
                    writer.write(bytes(65536))
                    await writer.drain()
                    self.sent += 65536
            case b"wait":
                await reader.read()


@pytest.fixture
async def service(api: Api) -> AsyncIterator[Service]:
    made = Service()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    api.agent.start_service = made.start_service  # type: ignore[method-assign]  # this test's services
    api.agent.open_port = made.open_port  # type: ignore[method-assign]  # as above
    await api.create(name="tunnelled")
    yield made
    server.close()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
        yield session


@pytest.fixture
def limits(api: Api) -> Iterator[Any]:
    tunnels = api.cluster.manager.services.tunnels
    before = tunnels.settings

    def change(**values: Any) -> None:
        tunnels.settings = before.model_copy(update=values)

    yield change
    tunnels.settings = before


async def heard(ws: aiohttp.ClientWebSocketResponse) -> bytes:
    """Everything until an empty frame or the end."""
    found = bytearray()
    while (message := await ws.receive(PATIENCE_S)).type is WSMsgType.BINARY and message.data:
        found += message.data
    return bytes(found)


async def until_closed(ws: aiohttp.ClientWebSocketResponse) -> int | None:
    while not ws.closed:
        await ws.receive(PATIENCE_S)
    return ws.close_code


@pytest.mark.parametrize(
    "path", ["session/tunnelled/tcpproxy", "session/tunnelled/httpproxy", "kernel/tunnelled/tcpproxy"]
)
async def test_bytes_pass_as_they_are(api: Api, http: aiohttp.ClientSession, service: Service, path: str) -> None:
    arguments = json.dumps({"--x": None, "--y": ["1", 2], "--z": "3"})
    asked = {"app": "sshd", "port": str(service.port), "envs": json.dumps({"A": "1"}), "arguments": arguments}
    async with await api.socket(http, f"/stream/{path}?{urlencode(asked)}") as ws:
        await ws.send_bytes(b"echo\n")
        sent = bytes(range(256)) * 8192
        writing = asyncio.create_task(ws.send_bytes(sent))
        found = bytearray()
        while len(found) < len(sent):
            found += await ws.receive_bytes(timeout=PATIENCE_S)
        await writing
        assert bytes(found) == sent
    assert [(r.name, r.port, r.envs, r.arguments) for r in service.asked] == [
        ("sshd", service.port, {"A": "1"}, {"--x": None, "--y": ["1", "2"], "--z": "3"})
    ]
    await asyncio.wait_for(service.ended.wait(), PATIENCE_S)


async def test_the_end_of_the_service_is_the_end(api: Api, http: aiohttp.ClientSession, service: Service) -> None:
    async with await api.socket(http, "/stream/session/tunnelled/tcpproxy?app=sshd") as ws:
        await ws.send_bytes(b"bye\n")
        assert await heard(ws) == b"so long"
        assert await until_closed(ws) == 1000


async def test_each_way_ends_by_itself_for_who_says_so(api: Api, http: aiohttp.ClientSession, service: Service) -> None:
    async with await api.socket(http, "/stream/session/tunnelled/tcpproxy?app=sshd&half-close=true") as ws:
        await ws.send_bytes(b"count\n12345")
        await ws.send_bytes(b"")
        assert await heard(ws) == b"5"
        assert await until_closed(ws) == 1000


async def test_what_breaks_is_told(api: Api, http: aiohttp.ClientSession, service: Service) -> None:
    async with await api.socket(http, "/stream/session/tunnelled/tcpproxy?app=sshd") as ws:
        await ws.send_bytes(b"reset\n")
        assert await until_closed(ws) == 1011
    async with await api.socket(http, "/stream/session/tunnelled/tcpproxy?app=sshd") as ws:
        await ws.send_bytes(b"wait\n")
        await api.cluster.leave(api.agent)
        assert await until_closed(ws) == 1011
    await asyncio.wait_for(service.ended.wait(), PATIENCE_S)


async def test_a_slow_reader_holds_its_own_service_only(
    api: Api, http: aiohttp.ClientSession, service: Service
) -> None:
    async with await api.socket(http, "/stream/session/tunnelled/tcpproxy?app=sshd") as slow:
        await slow.send_bytes(b"flood\n")
        before = -1
        while before != service.sent or not before:
            before = service.sent
            await asyncio.sleep(0.2)
        assert service.sent < 64 * MIB
        async with await api.socket(http, "/stream/session/tunnelled/tcpproxy?app=sshd") as other:
            await other.send_bytes(b"bye\n")
            assert await heard(other) == b"so long"


async def test_only_so_many_at_once(api: Api, http: aiohttp.ClientSession, service: Service, limits: Any) -> None:
    limits(max_per_session=2)
    path = "/stream/session/tunnelled/tcpproxy?app=sshd"
    first, second = [await api.socket(http, path) for _ in range(2)]
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await api.socket(http, path)
    assert caught.value.status == 406  # as every exceeded limit of this API
    await first.close()
    async with asyncio.timeout(PATIENCE_S):
        while api.cluster.manager.services.tunnels.open_tunnels == 2:  # noqa: ASYNC110  # the server's end closes later
            await asyncio.sleep(0.02)
    third = await api.socket(http, path)
    await asyncio.gather(second.close(), third.close())


async def test_one_that_carries_nothing_may_be_ended(
    api: Api, http: aiohttp.ClientSession, service: Service, limits: Any
) -> None:
    limits(idle_timeout=0.1)
    async with await api.socket(http, "/stream/session/tunnelled/tcpproxy?app=sshd") as ws:
        await ws.send_bytes(b"wait\n")
        assert await until_closed(ws) == 1000


async def test_tunnels_and_terminals_end_with_the_key_or_the_user_who_opened_them(
    api: Api, http: aiohttp.ClientSession, service: Service
) -> None:
    stores = api.cluster.manager.stores.identities
    who = await stores.credentials(api.user.access_key)
    assert who is not None
    ways = ("/stream/session/tunnelled/tcpproxy?app=sshd", "/stream/session/tunnelled/pty")
    for change in (
        lambda is_active: stores.change_keypair(api.user.access_key, is_active=is_active),
        lambda is_active: stores.change_user(
            who.caller.user_id, status=UserStatus.ACTIVE if is_active else UserStatus.INACTIVE
        ),
    ):
        service.ended.clear()
        sockets = [await api.socket(http, way) for way in ways]
        await sockets[0].send_bytes(b"echo\n")
        await change(False)
        try:
            assert [await until_closed(ws) for ws in sockets] == [1008, 1008]
            await asyncio.wait_for(service.ended.wait(), PATIENCE_S)
        finally:
            await change(True)
            api.cluster.manager.services.identity.invalidate_all()


async def test_what_is_refused(api: Api, http: aiohttp.ClientSession, service: Service) -> None:
    async def status(query: str, client: Any = None, path: str = "session/tunnelled") -> int:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await api.socket(http, f"/stream/{path}/tcpproxy?{query}", client)
        return caught.value.status

    assert await status("app=sshd", api.other) == 404
    assert await status("app=sshd", path="session/none") == 404
    assert await status("port=22") == 400
    assert await status("app=sshd&port=70000") == 400
    assert await status("app=sshd&port=1") == 400
    assert await status("app=sshd&envs=1") == 400
    assert await status(urlencode({"app": "sshd", "arguments": '{"a": [[1]]}'})) == 400
    assert await status(urlencode({"app": "sshd", "arguments": "[" * 10_000})) == 400
    assert service.connected == 0
    service.fails = True
    assert await status("app=sshd") == 409
    service.fails, service.port = False, 1
    assert await status("app=sshd") == 503
    assert api.cluster.manager.services.tunnels.open_tunnels == 0


@pytest.fixture
async def sdk(api: Api) -> AsyncIterator[AsyncSession]:
    config = APIConfig(
        endpoint=f"http://127.0.0.1:{api.port}", access_key=api.user.access_key, secret_key=api.user.secret_key
    )
    async with AsyncSession(config=config) as session:
        yield session


async def _exchange(port: int, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    finally:
        writer.close()


async def test_a_local_port_leads_to_the_service(sdk: AsyncSession, service: Service) -> None:
    handle = sdk.ComputeSession("tunnelled")
    sent = b"echo\n" + bytes(range(256)) * 4096
    async with handle.forward_app("sshd") as local:
        answers = await asyncio.gather(*(_exchange(local.port, sent) for _ in range(80)))
    assert answers == [sent.removeprefix(b"echo\n")] * 80
    with pytest.raises(OSError, match="Connect call failed"):
        await _exchange(local.port, b"")


async def test_why_there_is_no_tunnel_is_told(sdk: AsyncSession, service: Service) -> None:
    handle = sdk.ComputeSession("tunnelled")
    with pytest.raises(BackendAPIError, match=r"no service 'ttyd'; it has: sshd"):
        async with handle.connect_app("ttyd"):
            pass
    told: list[Exception] = []
    async with handle.forward_app("ttyd", report=told.append) as local:
        assert await _exchange(local.port, b"hello") == b""
        with pytest.raises(BackendClientError, match="cannot listen"):
            async with handle.forward_app("sshd", ("127.0.0.1", local.port)):
                pass
    assert len(told) == 1
    assert "no service" in str(told[0])
    async with handle.connect_app("sshd") as stream:
        await stream.write(b"reset\n")
        with pytest.raises(EndpointUnreachable):
            await stream.read()
