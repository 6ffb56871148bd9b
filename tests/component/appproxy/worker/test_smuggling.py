"""Requests that two servers could read in two ways: what reaches the app is one request or none (anchors 11)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ai.backend.core.proxy.changes import Changes
from tests.component.appproxy.worker.conftest import PlaneFactory
from tests.component.appproxy.worker.raw import exchange, statuses_of
from tests.support.proxy_apps import circuit_to, free_ports, route_to

HOST = b"Host: 127.0.0.1\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    "content length and transfer encoding": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX",
    "transfer encoding and content length": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\nX",
    "two content lengths": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 0\r\nContent-Length: 45\r\n\r\n"
    + SMUGGLED,
    "equal content lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "a list of lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0, 45\r\n\r\n" + SMUGGLED,
    "a signed length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +45\r\n\r\n" + SMUGGLED,
    "a huge length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 18446744073709551617\r\n\r\nx",
    "bare line feeds": b"GET / HTTP/1.1\nHost: 127.0.0.1\n\n",
    "a bare line feed in the head": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\nX: y\r\n\r\n",
    "a bare carriage return": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\rX: y\r\n\r\n",
    "a folded field": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n",
    "a space before the colon": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a field that begins with a space": b"GET / HTTP/1.1\r\n Host: 127.0.0.1\r\n\r\n",
    "an unknown encoding": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n" + SMUGGLED,
    "two encodings": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked is not last": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + SMUGGLED,
    "a vertical tab in the encoding": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked by HTTP/1.0": b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a NUL in a field": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + b"Host: other\r\n\r\n",
    "an absolute target": b"GET http://other/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "a fragment": b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n",
    "another version": b"GET / HTTP/1.2\r\n" + HOST + b"\r\n",
    "HTTP/2 without TLS": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method of its own": b"GET\x01 / HTTP/1.1\r\n" + HOST + b"\r\n",
}
BAD_CHUNKS = {
    "a bare line feed": b"1\nx\n0\n\n",
    "a bare line feed in an extension": b"1;a\nb\r\nx\r\n0\r\n\r\n",
    "a size that overflows": b"fffffffffffffffff1\r\nx\r\n0\r\n\r\n",
    "a prefix": b"0x1\r\nx\r\n0\r\n\r\n",
    "a sign": b"+1\r\nx\r\n0\r\n\r\n",
    "more than the size": b"1\r\nxyz\r\n0\r\n\r\n" + SMUGGLED,
    "no size": b"\r\n\r\n" + SMUGGLED,
}


@pytest.fixture
async def port(start_plane: PlaneFactory, ports: list[int]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """The port of a circuit, and the bytes that reach its app, which answers each request head with 200."""
    reached: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            reached.append(data)
            if b"\r\n\r\n" in data:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    plane = await start_plane()
    circuit = circuit_to(route_to(server.sockets[0].getsockname()[1]), port=ports[0])
    await plane.apply(Changes(version=1, circuits=(circuit,)))
    yield ports[0], reached
    server.close()


@pytest.mark.parametrize("name", REFUSED)
async def test_an_ambiguous_head_reaches_no_app(port: tuple[int, list[bytes]], name: str) -> None:
    received = await exchange(port[0], REFUSED[name])
    assert [status // 100 for status in statuses_of(received)] in ([4], [5])
    assert received.endswith(b"<end>")
    assert not port[1]


@pytest.mark.parametrize("name", BAD_CHUNKS)
async def test_a_malformed_chunk_ends_the_connection(port: tuple[int, list[bytes]], name: str) -> None:
    received = await exchange(port[0], CHUNKED + BAD_CHUNKS[name])
    assert received.endswith((b"<end>", b"<reset>"))
    assert b"smuggled" not in b"".join(port[1])


async def test_chunks_are_made_anew(port: tuple[int, list[bytes]]) -> None:
    received = await exchange(port[0], CHUNKED + b"5;ext=1\r\nhello\r\n0\r\nTrailer: x\r\n\r\n")
    assert statuses_of(received) == [200]
    assert b"".join(port[1]).endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")


async def test_a_request_after_the_last_one_is_not_read(port: tuple[int, list[bytes]]) -> None:
    last = b"GET /first HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    await exchange(port[0], last + SMUGGLED)
    assert b"smuggled" not in b"".join(port[1])


async def test_pipelined_requests_are_answered_in_their_order(port: tuple[int, list[bytes]]) -> None:
    requests = b"".join(b"POST /%d HTTP/1.1\r\n%bContent-Length: 1\r\n\r\nx" % (number, HOST) for number in range(5))
    assert statuses_of(await exchange(port[0], requests)) == [200] * 5
    assert [b"/%d " % number in data for number, data in enumerate(port[1])] == [True] * 5


async def test_an_upgrade_to_something_else_is_an_ordinary_request(port: tuple[int, list[bytes]]) -> None:
    request = (
        b"GET / HTTP/1.1\r\n"
        + HOST
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n"
    )
    received = await exchange(port[0], request + SMUGGLED)
    assert statuses_of(received) == [200]
    assert received.endswith(b"<end>")
    head = b"".join(port[1]).lower()
    assert b"upgrade" not in head
    assert b"http2-settings" not in head
    assert b"smuggled" not in head


@pytest.fixture
def haproxy(tmp_path: Path) -> Iterator[int]:
    """The port of a HAProxy that answers every request with 200."""
    (frontend,) = free_ports(1)
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        "defaults\n mode http\n timeout client 2s\n timeout server 2s\n timeout connect 2s\n"
        f"frontend f\n bind 127.0.0.1:{frontend}\n http-request return status 200\n"
    )
    with subprocess.Popen(["haproxy", "-f", str(config)], stderr=subprocess.DEVNULL) as process:
        yield frontend
        process.terminate()


@pytest.mark.needs("haproxy")
async def test_we_accept_nothing_that_haproxy_refuses(port: tuple[int, list[bytes]], haproxy: int) -> None:
    """HAProxy reads the same corpus: where it answers 4xx, we do. The reverse need not hold."""
    for _ in range(100):
        try:
            (await asyncio.open_connection("127.0.0.1", haproxy))[1].close()
            break
        except OSError:
            await asyncio.sleep(0.05)
    for name, request in REFUSED.items():
        theirs = statuses_of(await exchange(haproxy, request))
        ours = statuses_of(await exchange(port[0], request))
        if theirs and theirs[0] >= 400:
            assert ours, name
            assert ours[0] >= 400, name
