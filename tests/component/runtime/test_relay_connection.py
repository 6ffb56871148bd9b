"""The agent's end of a shim's socket, against a peer that does as the test says."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.node.relay.framing import MAX_FRAME
from ai.backend.node.workload import connect
from ai.backend.node.workload.channel import UNREAD_LIMIT, RelayConnection

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Listener:
    """What listens in the directory, and its end of each connection."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.accepted: asyncio.Queue[Peer] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await self.accepted.put((reader, writer))

    async def connected(self, hear: Any = None) -> tuple[RelayConnection, Peer]:
        return await RelayConnection.open(self.directory, hear), await self.accepted.get()


@pytest.fixture
async def shim(tmp_path: Path) -> AsyncIterator[Listener]:
    listener = Listener(tmp_path)
    server = await asyncio.start_unix_server(listener, tmp_path / "shim.sock")
    yield listener
    for writer in listener.writers:
        writer.transport.abort()
    server.close()
    await asyncio.sleep(0)


def packed(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        await RelayConnection.open(tmp_path)


async def test_messages_come_whole_however_they_are_cut(shim: Listener) -> None:
    connection, (_, writer) = await shim.connected()
    messages = [{"t": "n", "n": n, "x": "y" * n * 50} for n in range(20)]
    stream = b"".join(map(packed, messages))
    reading = asyncio.create_task(asyncio.wait_for(_all(connection), 30))
    for start in range(0, len(stream), 333):
        writer.write(stream[start : start + 333])
        await writer.drain()
        await asyncio.sleep(0)
    writer.close()
    assert await reading == messages
    await connection.close()


async def _all(connection: RelayConnection) -> list[dict[str, Any]]:
    found = []
    while (message := await connection.receive()) is not None:
        found.append(message)
    return found


async def test_what_is_sent_arrives_and_is_refused_after_the_end(shim: Listener) -> None:
    connection, (reader, writer) = await shim.connected()
    await connection.send({"t": "watch"})
    assert await reader.readexactly(len(packed({"t": "watch"})) - 1) == b'\x00\x00\x00\x0d{"t":"watch"}'
    with pytest.raises(Unavailable, match="too large"):
        await connection.send({"t": "x" * MAX_FRAME})
    writer.close()
    assert await asyncio.wait_for(connection.receive(), 30) is None
    with pytest.raises(Unavailable, match="closed"):
        await connection.send({"t": "watch"})
    await connection.close()


@pytest.mark.parametrize("length", [0, MAX_FRAME + 1, 2**32 - 1])
async def test_a_length_that_cannot_be_is_the_end(shim: Listener, length: int) -> None:
    connection, (reader, writer) = await shim.connected()
    writer.write(packed({"t": "first"}) + length.to_bytes(4, "big") + b"x" * 100)
    assert await asyncio.wait_for(_all(connection), 30) == [{"t": "first"}]
    assert await asyncio.wait_for(reader.read(), 30) == b"", "it hung up"


async def test_a_message_that_nobody_reads_stops_the_peer(shim: Listener) -> None:
    """And whatever is larger than the limit of what is kept unread comes whole."""
    connection, (_, writer) = await shim.connected()
    large = {"t": "x" * 3 * UNREAD_LIMIT}

    async def talk() -> None:
        for _ in range(8):
            writer.write(packed(large))
            await writer.drain()
        writer.close()

    talking = asyncio.create_task(talk())
    done, _ = await asyncio.wait({talking}, timeout=0.5)
    assert not done
    assert len(connection._buffer) < 4 * UNREAD_LIMIT + 2**20
    assert await asyncio.wait_for(_all(connection), 30) == [large] * 8
    await talking


async def test_who_sends_waits_for_the_peer_to_read(shim: Listener) -> None:
    connection, (reader, writer) = await shim.connected()
    senders = [asyncio.create_task(connection.send({"t": "x" * 2**20, "n": n})) for n in range(8)]
    _, waiting = await asyncio.wait(senders, timeout=0.3)
    assert waiting
    senders[-1].cancel()
    await asyncio.wait({senders[-1]}, timeout=30)
    seen = [json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))) for _ in range(8)]
    assert [s["n"] for s in seen] == list(range(8))
    await asyncio.wait_for(asyncio.gather(*senders[:-1]), 30)
    stuck = asyncio.gather(*(connection.send({"t": "x" * 2**20}) for _ in range(8)))
    await asyncio.sleep(0.1)
    writer.transport.abort()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(stuck, 30)


async def test_a_listener_is_told_without_reading(shim: Listener) -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()
    connection, (_, writer) = await shim.connected(heard.put_nowait)
    writer.write(packed({"t": "a"}) + packed({"t": "b"})[:3])
    await writer.drain()
    assert await asyncio.wait_for(heard.get(), 30) == {"t": "a"}
    writer.write(packed({"t": "b"})[3:])
    writer.close()
    assert [await asyncio.wait_for(heard.get(), 30) for _ in range(2)] == [{"t": "b"}, None]
    await connection.close()
    assert heard.empty()


async def test_a_relay_that_answers_byte_by_byte_holds_two_threads_for_a_limited_time(
    shim: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, revisions_in_progress, most = connect._request_socket, [0], [0]

    def counted(directory: Path) -> Any:
        revisions_in_progress[0] += 1
        most[0] = max(most[0], revisions_in_progress[0])
        try:
            return ask(directory)
        finally:
            revisions_in_progress[0] -= 1

    monkeypatch.setattr(connect, "_request_socket", counted)
    monkeypatch.setattr(connect, "_TIMEOUT_S", 1.0)
    asked = [asyncio.create_task(connect.exposure_of(tmp_path)) for _ in range(5)]

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write((4000).to_bytes(4, "big"))
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.05)

    dripping = []
    for _ in range(2):
        _, writer = await shim.accepted.get()
        dripping.append(asyncio.create_task(drip(writer)))
    try:
        async with asyncio.timeout(30):
            for outcome in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(outcome, Unavailable)
    finally:
        for task in dripping:
            task.cancel()
    assert most == [2]


@pytest.mark.parametrize("nested", [b"[" * 4000, b'{"":' * 1015], ids=["lists", "objects"])
async def test_a_relay_that_nests_without_end_does_not_answer(shim: Listener, tmp_path: Path, nested: bytes) -> None:
    asking = asyncio.create_task(connect.exposure_of(tmp_path))
    _, writer = await shim.accepted.get()
    writer.write(len(nested).to_bytes(4, "big") + nested)
    with pytest.raises(Unavailable, match="does not answer"):
        await asyncio.wait_for(asking, 30)
    connection, (_, writer) = await shim.connected()
    nested *= 20
    writer.write(len(nested).to_bytes(4, "big") + nested + packed({"t": "after"}))
    writer.close()
    assert await asyncio.wait_for(_all(connection), 30) == [{"t": "malformed"}, {"t": "after"}]


async def test_on_the_host_whoever_has_the_port_of_ipv4_must_be_of_the_session(tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with socket.socket(socket.AF_INET6) as theirs, socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        theirs.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        theirs.bind(("::", port))
        theirs.listen()
        assert connect.listeners_of(port) == {os.fstat(other.fileno()).st_ino}
        with pytest.raises(Unavailable, match="nothing of this session"):
            await connect.connect_on_host(tmp_path, tmp_path, port, [])
        stream = await connect.connect_on_host(tmp_path, tmp_path, port, [os.getpid()])
        await stream.close()
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both:
        stream = await connect.connect_on_host(tmp_path, tmp_path, both.getsockname()[1], [os.getpid()])
        await stream.close()


async def test_who_listens_hears_what_has_come_before(shim: Listener) -> None:
    connection, (_, writer) = await shim.connected()
    writer.write(packed({"n": 1}) + packed({"n": 2}) + packed({"n": 3})[:5])
    assert await connection.receive() == {"n": 1}
    heard: list[Any] = []
    ended = asyncio.Event()

    def hear(message: dict[str, Any] | None) -> None:
        heard.append(message)
        if message is None:
            ended.set()

    connection.listen(hear)
    assert heard[:1] == [{"n": 2}]
    writer.write(packed({"n": 3})[5:])
    writer.close()
    async with asyncio.timeout(30):
        await ended.wait()
    assert heard == [{"n": 2}, {"n": 3}, None]
    late: list[Any] = []
    connection.listen(late.append)
    assert late == [None]
