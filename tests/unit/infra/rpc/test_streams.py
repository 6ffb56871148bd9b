"""The credit of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ai.backend.infra.rpc.frames import Kind
from ai.backend.infra.rpc.streams import BYTES, StreamPort


@pytest.mark.parametrize("granted", [0, 1, BYTES.window, 10 * BYTES.window, -5])
async def test_nobody_can_grant_more_than_the_window(granted: int) -> None:
    posted: list[Any] = []

    async def post(kind: Kind, body: Any) -> None:
        posted.append(body)

    port = StreamPort(BYTES, post, lambda: None)
    for _ in range(9):
        port.grant(granted)
    piece = bytes(BYTES.window // 4)

    async def flood() -> None:
        while True:
            await port.send(piece)

    flooding = asyncio.create_task(flood())
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(posted) == 4
    port.grant(BYTES.cost(piece))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(posted) == 5
    flooding.cancel()
