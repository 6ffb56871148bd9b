"""Answers of an API server are read however they are cut, and nothing else is taken for one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ai.backend.node.kube_api.connections import Answer, _Connection

OF_LENGTH = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nRetry-After: 3\r\n\r\nhello"
_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = _CHUNKS + b"3\r\nhel\r\n00A;x=y\r\nlo\r\n\r\nlong\r\n0\r\nTrailer: x\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
AFTER_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class _Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted


def _asked() -> tuple[_Connection, _Transport, asyncio.Future[Answer]]:
    connection, transport = _Connection(), _Transport()
    connection.connection_made(cast("Any", transport))
    return connection, transport, connection.send(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (OF_LENGTH, 201, b"hello"),
        (CHUNKED, 200, b"hello\r\n\r\nlong"),
        (EMPTY, 204, b""),
        (AFTER_INTERIM, 200, b"{}"),
    ],
    ids=["length", "chunks", "empty", "interim"],
)
async def test_an_answer_is_the_same_in_pieces_of_any_size(sent: bytes, status: int, body: bytes) -> None:
    for size in range(1, len(sent) + 1):
        connection, transport, waiting = _asked()
        for start in range(0, len(sent), size):
            assert not waiting.done()
            connection.data_received(sent[start : start + size])
        answer = await waiting
        assert (answer.status, answer.body) == (status, body)
        assert connection.is_reusable
        assert not transport.is_aborted


async def test_headers_are_found_by_small_letters() -> None:
    connection, _, waiting = _asked()
    connection.data_received(OF_LENGTH)
    assert (await waiting).headers == {"content-length": "5", "retry-after": "3"}


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        _CHUNKS + b"x\r\n",
        _CHUNKS + b"-1\r\n",
        _CHUNKS + b"1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ],
)
async def test_what_is_no_answer_ends_the_connection(sent: bytes) -> None:
    connection, transport, waiting = _asked()
    connection.data_received(sent)
    with pytest.raises(ConnectionError):
        await waiting
    assert transport.is_aborted
    assert not connection.is_reusable


async def test_what_nobody_has_asked_for_ends_the_connection() -> None:
    connection, transport, waiting = _asked()
    connection.data_received(OF_LENGTH)
    await waiting
    connection.data_received(OF_LENGTH)
    assert transport.is_aborted


async def test_a_connection_with_a_second_answer_is_not_used_again() -> None:
    connection, _, waiting = _asked()
    connection.data_received(OF_LENGTH + OF_LENGTH)
    assert (await waiting).body == b"hello"
    assert not connection.is_reusable


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    connection, _, waiting = _asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
    assert (await waiting).body == b"{}"
    assert not connection.is_reusable


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    connection, _, waiting = _asked()
    connection.data_received(b"HTTP/1.0 200 OK\r\n\r\n{")
    connection.data_received(b"}")
    assert not waiting.done()
    connection.eof_received()
    assert (await waiting).body == b"{}"
    assert not connection.is_reusable


@pytest.mark.parametrize("sent", [b"", OF_LENGTH[:-1], CHUNKED[:-1]])
async def test_a_cut_answer_is_none(sent: bytes) -> None:
    connection, _, waiting = _asked()
    if sent:
        connection.data_received(sent)
    connection.eof_received()
    connection.connection_lost(None)
    with pytest.raises(ConnectionError):
        await waiting
    assert connection.is_answered == bool(sent)
