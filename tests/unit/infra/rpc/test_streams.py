"""The credit of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.execution import PtyFrame
from ai.backend.infra.rpc.streams import WINDOW_BYTES, Piece, PortFrames, StreamPort, cost_of


@pytest.mark.parametrize("granted", [0, 1, WINDOW_BYTES, 10 * WINDOW_BYTES, -5])
async def test_nobody_can_grant_more_than_the_window(granted: int) -> None:
    posted: list[Any] = []

    async def post(kind: Piece, body: Any) -> None:
        posted.append(body)

    port = StreamPort()
    port.attach(post, lambda: None)
    for _ in range(9):
        port.grant(granted)
    piece = bytes(WINDOW_BYTES // 4)

    async def flood() -> None:
        while True:
            await port.send(piece)

    flooding = asyncio.create_task(flood())
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(posted) == 4
    port.grant(cost_of(piece))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(posted) == 5
    flooding.cancel()


async def test_a_terminal_whose_frame_cannot_be_read_is_cut() -> None:
    port, left = StreamPort(), asyncio.Event()

    async def post(kind: Piece, body: Any) -> None: ...

    port.attach(post, left.set)
    assert port.deliver(msgspec.msgpack.encode(PtyFrame(kind="out", data=b"a")))
    assert port.deliver(b"\xc1")
    assert [frame.data async for frame in PortFrames(port)] == [b"a"]
    assert left.is_set()
    with pytest.raises(Unavailable):
        await port.send(b"x")
