"""What the adapters of the link promise of connections, whatever carries their bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.execution import OpenPort
from ai.backend.common.wire.link import ByteStream
from tests.contract.rpc import conftest
from tests.contract.rpc.conftest import Link, Loop, MemoryAdapter, Pair, ZmqAdapter

MIB = 1024 * 1024
OPEN = OpenPort(kernel_id="k", port=2200)


@pytest.fixture(params=["memory", "unix", "tls"])
def link(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Link:
    monkeypatch.setattr(conftest, "SCALE", 1.0)  # no call here is to miss its deadline, also on a busy machine
    return MemoryAdapter() if request.param == "memory" else ZmqAdapter(tmp_path, request.param)


async def connect(pair: Pair) -> tuple[ByteStream, Loop]:
    stream = await pair.manager.agent("i-1").open_port(OPEN)
    return stream, pair.commands.connections[-1]


async def read_all(stream: ByteStream) -> bytes:
    found = bytearray()
    while piece := await stream.read():
        found += piece
    return bytes(found)


class TestByteStreams:
    async def test_bytes_come_back_as_they_are_and_each_way_ends_by_itself(self, pair: Pair) -> None:
        await pair.join()
        stream, _ = await connect(pair)
        sent = bytes(range(256)) * 12_000  # some windows full, in one piece

        async def write() -> None:
            await stream.write(sent)
            await stream.write_eof()

        async with asyncio.timeout(30):
            writing = asyncio.create_task(write())
            assert await read_all(stream) == sent
            await writing
        assert await stream.read() == b""
        assert pair.commands.calls[-1] == ("open_port", OPEN)

    async def test_a_reader_that_stops_holds_its_writer_and_no_other(self, pair: Pair) -> None:
        await pair.join()
        stream, loop = await connect(pair)
        other, _ = await connect(pair)

        async def flood() -> None:
            while True:
                await stream.write(bytes(64 * 1024))

        flooding = asyncio.create_task(flood())
        async with asyncio.timeout(30):
            before = -1
            while before != loop.taken:
                before = loop.taken
                await asyncio.sleep(0.1)
            assert loop.taken < 8 * MIB
            await other.write(b"still here")
            assert await other.read() == b"still here"
            for _ in range(64):
                await stream.read()
        assert not flooding.done()
        flooding.cancel()

    async def test_a_closed_one_is_cut_on_both_sides(self, pair: Pair) -> None:
        await pair.join()
        stream, loop = await connect(pair)
        await stream.close()
        async with asyncio.timeout(30):
            await loop.is_cut.wait()
        with pytest.raises(Unavailable):
            await stream.write(b"x")
        await stream.close()

    async def test_one_that_has_said_all_and_goes_is_cut_too(self, pair: Pair) -> None:
        """Although the other side would wait for ever, and after it has got what was said."""
        await pair.join()
        stream, loop = await connect(pair)
        loop.has_ended = False
        await stream.write(b"last words")
        await stream.write_eof()
        await stream.close()
        async with asyncio.timeout(30):
            await loop.is_cut.wait()
        assert loop.taken == len(b"last words")

    async def test_one_that_the_agent_cuts_is_no_end_of_what_was_said(self, pair: Pair) -> None:
        await pair.join()
        stream, loop = await connect(pair)
        await stream.write(b"before")
        assert await stream.read() == b"before"
        await loop.close()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(30):
                await stream.read()

    async def test_losing_the_link_cuts_it_on_both_sides(self, pair: Pair) -> None:
        end = await pair.join()
        stream, loop = await connect(pair)
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        await end.stop()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(30):
                await reading
        async with asyncio.timeout(30):
            await loop.is_cut.wait()
