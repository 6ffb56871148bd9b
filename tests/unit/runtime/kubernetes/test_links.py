"""Messages to a relay go as few pieces as they may."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.node.relay.framing import MAX_FRAME
from ai.backend.runtime.kubernetes.links import PodLink


class _Transport:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def is_closing(self) -> bool:
        return False


@pytest.fixture
def linked() -> tuple[PodLink, _Transport]:
    link, transport = PodLink(lambda message, size: None, lambda lost: None), _Transport()
    link.connection_made(cast("Any", transport))
    return link, transport


def _messages(data: bytes) -> list[dict[str, Any]]:
    messages = []
    while data:
        size = int.from_bytes(data[:4], "big")
        messages.append(msgspec.json.decode(data[4 : 4 + size]))
        data = data[4 + size :]
    return messages


async def test_small_messages_are_one_piece(linked: tuple[PodLink, _Transport]) -> None:
    link, transport = linked
    messages = [{"t": "file", "path": str(number)} for number in range(5)]
    await link.send(*messages, {"t": "begin"})
    assert len(transport.pieces) == 1
    assert _messages(transport.pieces[0]) == [*messages, {"t": "begin"}]


async def test_large_messages_keep_their_order_in_pieces(linked: tuple[PodLink, _Transport]) -> None:
    link, transport = linked
    messages = [{"t": "file", "data": str(number) * 50_000} for number in range(5)]
    await link.send(*messages)
    assert len(transport.pieces) == 3
    assert _messages(b"".join(transport.pieces)) == messages


async def test_a_message_that_is_too_large_is_refused(linked: tuple[PodLink, _Transport]) -> None:
    link, transport = linked
    with pytest.raises(Unavailable, match="too large"):
        link.post({"t": "x"}, {"t": "file", "data": "x" * MAX_FRAME})
    assert transport.pieces == []
