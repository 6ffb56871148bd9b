"""Clients that open connections and send nothing useful on them (issue 13, security.md 8)."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from ai.backend.infra.http import server as http_server
from ai.backend.infra.http.health import VersionApi
from ai.backend.infra.http.routes import endpoints_of
from ai.backend.infra.http.server import HttpOptions, HttpServer, make_runner, serve_on, tls_of
from ai.backend.infra.telemetry import Metrics
from tests.component.infra.http.conftest import Demo
from tests.support.certificates import self_signed

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def _server(options: HttpOptions, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    endpoints = endpoints_of(VersionApi(manager="1", build="1"))
    runner = make_runner(HttpServer(endpoints, metrics=Metrics("demo"), options=options).application())
    try:
        yield (await serve_on(runner, ("127.0.0.1", 0), tls=tls))[1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _connections(port: int, count: int) -> AsyncIterator[list[Streams]]:
    async with AsyncExitStack() as stack:
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
        for _, writer in streams:
            stack.callback(writer.close)
        yield streams


async def _answer(streams: Streams, request: bytes = REQUEST) -> bytes:
    """Returns the first line of the response, or nothing if the connection was closed."""
    reader, writer = streams
    writer.write(request)
    try:
        return (await asyncio.wait_for(reader.readline(), 30)).rstrip()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:", REQUEST + b"GET /"])
async def test_a_head_that_does_not_end_closes_its_connection(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_server, "_IDLE_TIMEOUT_S", 0.2)
    async with _server(HttpOptions()) as port, _connections(port, 1) as [(reader, writer)]:
        writer.write(sent)
        answers = await asyncio.wait_for(reader.read(), 30)
    assert answers.count(b"HTTP/1.1 200") == sent.count(REQUEST)


async def test_one_address_has_a_limited_number_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    async with _server(HttpOptions(connections_per_address=3)) as port, _connections(port, 3) as open_streams:
        for streams in open_streams:
            assert await _answer(streams) == b"HTTP/1.1 200 OK"
        async with _connections(port, 20) as refused_streams:
            assert {await _answer(streams) for streams in refused_streams} == {b""}
        open_streams[0][1].close()
        await open_streams[0][1].wait_closed()
        answer = b""
        async with asyncio.timeout(30):
            while not answer:  # uvloop closes the socket some rounds later
                async with _connections(port, 1) as [streams]:
                    answer = await _answer(streams)
        assert answer == b"HTTP/1.1 200 OK"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "127.0.0.1: too many are open (3 from there, 3 together)" in caplog.text


async def test_a_trusted_proxy_connects_for_many_clients() -> None:
    options = HttpOptions(connections_per_address=1, trusted_proxies=frozenset({"127.0.0.1"}))
    async with _server(options) as port, _connections(port, 5) as open_streams:
        assert {await _answer(streams) for streams in open_streams} == {b"HTTP/1.1 200 OK"}


async def test_connections_leave_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    async with _server(HttpOptions(connections_per_address=0)) as port, _connections(port, 10) as open_streams:
        answers = [await _answer(streams) for streams in open_streams]
    assert answers.count(b"HTTP/1.1 200 OK") == 4, "three quarters of three quarters of 8 for one address"


async def test_connections_count_before_their_tls_handshake(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    tls = tls_of(certificate, key)
    async with _server(HttpOptions(connections_per_address=2), tls) as port, _connections(port, 2):
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "nonsense"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/open"), ("POST", "/things"), ("POST", "/nowhere")])
async def test_a_wrong_content_encoding_leaves_no_record(
    demo: Demo, caplog: pytest.LogCaptureFixture, encoding: str, method: str, path: str
) -> None:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Encoding: {encoding}\r\nContent-Length: 5\r\n\r\n"
    async with _connections(demo.port, 1) as [(reader, writer)]:
        answer = await _answer((reader, writer), head.encode() + b"abcde")
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 30)
    assert 400 <= int(answer.split()[1]) < 499
    assert caplog.records == []


async def test_every_address_of_a_host_is_served() -> None:
    runner = make_runner(web.Application())
    try:
        host, port = await serve_on(runner, ("", 0))
        assert {address[0] for address in runner.addresses} >= {host}
        assert port
    finally:
        await runner.cleanup()
