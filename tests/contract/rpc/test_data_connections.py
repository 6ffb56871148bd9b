"""Connections that carry streams beside the link: a stranger opens none, and without one a stream is refused."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ai.backend.common.errors import DeadlineExceeded, Unavailable
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import OpenPty
from ai.backend.infra.pending import PendingConnections
from ai.backend.infra.rpc import streams
from ai.backend.infra.rpc.data import connection as data_connection
from ai.backend.infra.rpc.data import dialer
from ai.backend.infra.rpc.data import server as data_server
from ai.backend.infra.rpc.data.server import DataServer
from ai.backend.infra.rpc.frames import DataOffer
from ai.backend.infra.rpc.streams import StreamPort
from ai.backend.infra.rpc.zmq.manager import ZmqManagerEndpoint
from tests.contract.rpc.conftest import Pair, ZmqAdapter
from tests.contract.rpc.test_byte_streams import connect, read_all


class Watched(DataServer):
    """A server that counts what was carried, and notes what it offers; ``changed`` is offered instead."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path=path)
        self.offered: list[DataOffer] = []
        self.changed: dict[str, Any] = {}

    @contextmanager
    def offer(self, port: StreamPort) -> Iterator[DataOffer]:
        with super().offer(port) as offer:
            self.offered.append(offer)
            yield replace(offer, **self.changed)


class Adapter(ZmqAdapter):
    server: Watched

    def manager(self) -> ZmqManagerEndpoint:
        end = super().manager()
        self.server = end.data = Watched(self.socket if self.data == "unix" else None)
        return end


@pytest.fixture(params=["unix", "tls"])
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def pair(carrier: str, tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair(Adapter(tmp_path, carrier))
    await made.manager.start(made.reports)
    yield made
    await made.close()


def server_of(pair: Pair) -> Watched:
    assert isinstance(pair.link, Adapter)
    return pair.link.server


async def echo(pair: Pair, said: bytes = b"hello") -> bytes:
    stream, _ = await connect(pair)
    async with asyncio.timeout(30):
        await stream.write(said)
        await stream.write_eof()
        return await read_all(stream)


async def line_to(pair: Pair, offer: DataOffer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """To the listener, as anybody could open it."""
    if offer.path is not None:
        assert isinstance(pair.link, Adapter)
        sock = await dialer._connect_socket(pair.link.socket)
        return await asyncio.open_unix_connection(sock=sock)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", offer.port, ssl=context)


async def accepted(pair: Pair) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, StreamPort]:
    """To the listener, with a token, and the manager's end of what it is for."""
    port = StreamPort()
    with server_of(pair).offer(port) as offer:
        assert offer is not None
        reader, writer = await line_to(pair, offer)
        writer.write(offer.token)
        async with asyncio.timeout(30):
            assert await reader.readexactly(1) == data_connection.WELCOME
    return reader, writer, port


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Whether the far side ends the connection and says nothing before."""
    async with asyncio.timeout(30):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


class TestWhatCarries:
    async def test_bytes_pass_beside_the_link(self, pair: Pair) -> None:
        await pair.join()
        stream, loop = await connect(pair)
        (connection,) = server_of(pair)._connections
        await stream.write(b"beside")
        async with asyncio.timeout(30):
            assert await stream.read() == b"beside"
        connection.abort()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(30):
                await stream.read()
        async with asyncio.timeout(30):
            await loop.is_cut.wait()

    async def test_a_welcome_that_comes_too_late_leaves_nothing(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The manager has begun to carry by the connection, the agent has given it up."""
        await pair.join()
        say, late = data_connection.DataConnection.send_first, asyncio.Event()

        def hesitate(self: data_connection.DataConnection, data: bytes) -> None:
            if data != data_connection.WELCOME:
                say(self, data)
            else:
                late.set()

        monkeypatch.setattr(data_connection.DataConnection, "send_first", hesitate)
        monkeypatch.setattr(dialer, "HANDSHAKE_S", 0.2)
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await connect(pair)
        assert late.is_set()
        async with asyncio.timeout(30):
            await pair.commands.connections[-1].is_cut.wait()
            while server_of(pair)._connections:  # noqa: ASYNC110  # a set has no event
                await asyncio.sleep(0.01)

    async def test_pieces_of_every_size_arrive_as_they_were(self, pair: Pair) -> None:
        await pair.join()
        stream, _ = await connect(pair)
        pieces = [bytes([number]) * size for number, size in enumerate((1, 16383, 16384, 3, 262144, 5, 70000, 262143))]
        got = b""

        async def read() -> None:
            nonlocal got
            while data := await stream.read():
                got += data

        reading = asyncio.create_task(read())
        async with asyncio.timeout(30):
            for piece in pieces:
                await stream.write(piece)
            await stream.write_eof()
            await reading
        assert got == b"".join(pieces)

    @pytest.mark.parametrize("carrier", ["tls"])
    async def test_a_key_waits_for_no_answer_to_the_one_before(self, pair: Pair) -> None:
        await pair.join()
        stream, _ = await connect(pair)
        (connection,) = server_of(pair)._connections
        assert connection._transport is not None
        line = connection._transport.get_extra_info("socket")
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await stream.close()

    async def test_a_stream_that_has_ended_leaves_no_connection(self, pair: Pair) -> None:
        await pair.join()
        stream, loop = await connect(pair)
        await stream.close()
        async with asyncio.timeout(30):
            await loop.is_cut.wait()
            while server_of(pair)._connections:  # noqa: ASYNC110  # a set has no event
                await asyncio.sleep(0.01)
        assert not server_of(pair)._expected

    async def test_an_end_is_heard_past_a_service_that_takes_nothing(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(streams, "LINGER_S", 0.2)
        await pair.join()
        stream, loop = await connect(pair)
        before, flooding = -1, asyncio.create_task(stream.write(bytes(64 * 1024 * 1024)))
        async with asyncio.timeout(30):
            while before != loop.taken:
                before = loop.taken
                await asyncio.sleep(0.1)
            await stream.close()
            await loop.is_cut.wait()
            with pytest.raises(Unavailable):
                await flooding


class TestWhenThereIsNone:
    async def test_a_stream_without_a_connection_is_refused_and_the_link_goes_on(self, pair: Pair) -> None:
        await pair.join()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            free = taken.getsockname()[1]
        server_of(pair).changed = {"path": "/nowhere/data.sock", "port": free}
        with pytest.raises(Unavailable, match="data connection"):
            await connect(pair)
        with pytest.raises(Unavailable, match="data connection"):
            await pair.manager.agent("i-1").open_pty(OpenPty(kernel_id="k"))
        async with asyncio.timeout(30):
            await pair.commands.connections[-1].is_cut.wait()
            await pair.commands.terminals[-1].is_closed.wait()
        assert not server_of(pair)._connections
        assert not server_of(pair)._expected
        server_of(pair).changed = {}
        assert await echo(pair) == b"hello"

    @pytest.mark.parametrize("carrier", ["tls"])
    async def test_a_port_that_is_taken_stops_the_start(self, pair: Pair, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            server = DataServer(port)
            with pytest.raises(Unavailable, match=f"data port {port}"):
                await server.start("tcp://127.0.0.1:1")
        await server.stop()

    @pytest.mark.parametrize("carrier", ["tls"])
    async def test_somebody_else_at_the_port_gets_no_token(self, pair: Pair) -> None:
        await pair.join()
        server_of(pair).changed = {"fingerprint": bytes(32)}
        with pytest.raises(Unavailable, match="another server answers there"):
            await connect(pair)
        async with asyncio.timeout(30):
            while server_of(pair)._connections:  # noqa: ASYNC110  # a set has no event
                await asyncio.sleep(0.01)

    @pytest.mark.parametrize("carrier", ["unix"])
    async def test_a_socket_that_is_open_to_others_is_not_used(self, pair: Pair) -> None:
        await pair.join()
        assert isinstance(pair.link, Adapter)
        pair.link.socket.parent.chmod(0o755)
        with pytest.raises(Unavailable):
            await connect(pair)
        assert not server_of(pair)._connections

    async def test_a_call_that_fails_leaves_no_token(self, pair: Pair) -> None:
        await pair.join()
        pair.commands.raising = Unavailable("nothing listens")
        with pytest.raises(Unavailable):
            await connect(pair)
        assert not server_of(pair)._expected


class TestStrangers:
    async def test_garbage_and_used_tokens_are_refused_at_once(self, pair: Pair) -> None:
        await pair.join()
        stream, _ = await connect(pair)
        offer = server_of(pair).offered[-1]
        for first in (bytes(32), offer.token, b"GET / HTTP/1.1\r\nHost: somebody-who-has-lost-the-way\r\n\r\n"):
            reader, writer = await line_to(pair, offer)
            writer.write(first)
            assert await is_cut(reader)
            writer.close()
        await stream.write(b"still")
        async with asyncio.timeout(30):
            assert await stream.read() == b"still"

    async def test_a_token_is_for_one_call_and_no_longer(self, pair: Pair) -> None:
        port = StreamPort()
        with server_of(pair).offer(port) as offer:
            assert offer is not None
        reader, writer = await line_to(pair, offer)
        writer.write(offer.token)
        assert await is_cut(reader)
        writer.close()

    async def test_who_says_nothing_is_cut_and_holds_nobody(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(data_server, "HANDSHAKE_S", 0.5)
        await pair.join()
        assert await echo(pair) == b"hello"
        silent = [await line_to(pair, server_of(pair).offered[-1]) for _ in range(8)]
        assert await echo(pair) == b"hello"
        for reader, writer in silent:
            assert await is_cut(reader)
            writer.close()

    @pytest.mark.parametrize("carrier", ["tls"])
    async def test_many_who_say_nothing_hold_nobody(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        await pair.join()
        monkeypatch.setattr(data_server, "HANDSHAKE_S", 60)
        assert await echo(pair) == b"hello"
        server = server_of(pair)
        silent = [socket.socket() for _ in range(200)]
        try:
            for sock in silent:
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server._port))
            async with asyncio.timeout(30):
                while len(server._connections) != data_server._MAX_PENDING_OF_ADDRESS:  # noqa: ASYNC110  # it has no event
                    await asyncio.sleep(0.05)
            stream, _ = await connect(pair)
            assert any(one._port is not None for one in server._connections)
            await stream.close()
        finally:
            for sock in silent:
                sock.close()

    async def test_room_is_made_where_the_most_are(self) -> None:
        strangers = PendingConnections(max_total=4, max_of_address=3)
        tasks: dict[str, asyncio.Task[None]] = {}
        for name in ("a1", "a2", "b1", "a3", "a4", "b2", "c1"):
            tasks[name] = asyncio.create_task(asyncio.sleep(60))
            strangers.add(name[0], tasks[name])
        await asyncio.sleep(0)
        assert [name for name, task in tasks.items() if task.done()] == ["a1", "a2", "a3"]
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert not strangers._tasks
        assert strangers._count == 0

    @pytest.mark.parametrize("carrier", ["tls"])
    async def test_nothing_but_tls_is_answered_at_the_port(self, pair: Pair, carrier: str) -> None:
        await pair.join()
        await echo(pair)
        reader, writer = await asyncio.open_connection("127.0.0.1", server_of(pair).offered[-1].port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(30):
            assert b"HTTP" not in await reader.read()
        writer.close()

    async def test_who_grants_without_reading_is_sent_no_more_than_a_little_and_is_cut(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(data_connection, "STALLED_S", 0.2)
        _, writer, port = await accepted(pair)
        (connection,) = server_of(pair)._connections
        most = 0

        async def grant() -> None:
            while True:
                writer.write(b"\x09\0\x10\0\0")
                await writer.drain()
                await asyncio.sleep(0)

        async def upload() -> None:
            nonlocal most
            for _ in range(256):
                await port.send(bytes(256 * 1024))
                most = max(most, connection._unsent_bytes())

        granting = asyncio.create_task(grant())
        with pytest.raises(Unavailable):
            async with asyncio.timeout(30):
                await upload()
        assert 0 < most <= 2 * 1024 * 1024
        granting.cancel()
        await asyncio.gather(granting, return_exceptions=True)
        writer.close()
        assert not server_of(pair)._connections

    @pytest.mark.parametrize(
        "frame",
        [
            b"\xff\0\0\0\0",
            b"\x04\0\0\0\0",
            b"\x08\xff\xff\xff\xff",
            b"\x08\0\x04\0\x01",
            b"\x09\xff\xff\xff\xff",
            (b"\x08\0\x04\0\0" + bytes(256 * 1024)) * 8,
        ],
        ids=["kind", "call", "huge", "large", "credit", "more-than-credit"],
    )
    async def test_an_agent_that_breaks_the_rules_loses_that_stream_only(self, pair: Pair, frame: bytes) -> None:
        await pair.join()
        other, _ = await connect(pair)
        reader, writer, port = await accepted(pair)
        writer.write(frame)
        assert await is_cut(reader)
        async with asyncio.timeout(30):
            await port.wait_until_ended()
        writer.close()
        await other.write(b"still")
        async with asyncio.timeout(30):
            assert await other.read() == b"still"
