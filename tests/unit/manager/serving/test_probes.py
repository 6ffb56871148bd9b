"""What servers of replicas may answer to a probe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.manager.serving.probes import AgentProbe

SESSION = cast(Any, SimpleNamespace(main=SimpleNamespace(id="kernel", agent="agent-1")))


class Server:
    """An agent whose only port answers the same bytes to each connection."""

    def __init__(self, answer: bytes) -> None:
        self.pieces = [answer, b""]
        self.is_closed = False

    def agent(self, _agent_id: str) -> Server:
        return self

    async def open_port(self, _request: Any) -> Server:
        return self

    async def write(self, _data: bytes) -> None: ...

    async def read(self) -> bytes:
        return self.pieces.pop(0)

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nx",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\nx",
        b"nonsense",
        b"",
    ],
)
async def test_what_is_no_answer_in_http_is_a_failed_probe(answer: bytes) -> None:
    server = Server(answer)
    with pytest.raises(Unavailable):
        await AgentProbe(cast(Any, server)).read(SESSION, port=8000, path="/metrics", timeout_s=1, max_bytes=100)
    assert server.is_closed
