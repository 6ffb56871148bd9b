"""Requests to an API server share connections, and one that the server has closed meanwhile costs no request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ai.backend.node.kube_api.connections import Connections

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class _Server:
    """Answers ``answers`` requests on each connection and then closes it; of ``/hang`` none."""

    def __init__(self) -> None:
        self.answers = 1000
        self.connections = 0
        self.requests: list[bytes] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        for _ in range(self.answers):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            sizes = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
            self.requests.append(head + await reader.readexactly(sum(sizes)))
            if b"/hang" not in head:
                writer.write(_OK)
        writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[tuple[_Server, Connections]]:
    server = _Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    connections = Connections(f"http://127.0.0.1:{port}/prefix/", None)
    yield server, connections
    connections.close()
    server.close()
    listening.close()


async def test_requests_in_turn_share_a_connection(server: tuple[_Server, Connections]) -> None:
    served, connections = server
    for _ in range(3):
        answer = await connections.send("POST", "/api?a=b c", {"X": "y"}, b"body", 5)
        assert answer.body == b"{}"
    assert served.connections == 1
    first, *_, last = served.requests[0].split(b"\r\n")
    assert (first, last) == (b"POST /prefix/api?a=b%20c HTTP/1.1", b"body")


async def test_requests_at_a_time_have_connections_of_their_own(server: tuple[_Server, Connections]) -> None:
    served, connections = server
    await asyncio.gather(*(connections.send("GET", "/api", {}, None, 5) for _ in range(4)))
    assert served.connections == 4
    await asyncio.gather(*(connections.send("GET", "/api", {}, None, 5) for _ in range(4)))
    assert served.connections == 4


async def test_a_repeatable_request_is_sent_again_on_another_connection(server: tuple[_Server, Connections]) -> None:
    served, connections = server
    await asyncio.gather(*(connections.send("GET", "/api", {}, None, 5) for _ in range(3)))
    for connection in connections._idle:
        connection._transport = _Gone()  # type: ignore[assignment]  # closed by the server, which is not known yet
        asyncio.get_running_loop().call_soon(connection.connection_lost, None)
    with pytest.raises(ConnectionError):
        await connections.send("POST", "/api", {}, b"", 5)
    assert (await connections.send("DELETE", "/api", {}, b"", 5)).status == 200
    assert served.requests[-1].startswith(b"DELETE")


class _Gone:
    """A transport whose other end is gone, which nobody has noticed."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


async def test_a_server_that_closes_after_each_answer_is_connected_anew(server: tuple[_Server, Connections]) -> None:
    served, connections = server
    served.answers = 1
    for number in range(3):
        await connections.send("GET", "/api", {}, None, 5)
        assert served.connections == number + 1


async def test_a_silent_server_is_waited_for_in_vain(server: tuple[_Server, Connections]) -> None:
    served, connections = server
    with pytest.raises(TimeoutError):
        await connections.send("GET", "/hang", {}, None, 0.05)
    assert (await connections.send("GET", "/api", {}, None, 5)).status == 200
    assert served.connections == 2  # the answer of the first may still come


async def test_requests_end_with_the_client(server: tuple[_Server, Connections]) -> None:
    _, connections = server
    waiting = asyncio.ensure_future(connections.send("GET", "/hang", {}, None, 5))
    while not connections._open:  # noqa: ASYNC110  # a set has no event
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    connections.close()
    with pytest.raises(ConnectionError):
        await waiting
    with pytest.raises(ConnectionError):
        await connections.send("GET", "/api", {}, None, 5)
