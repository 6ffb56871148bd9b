"""Requests below /func reach the manager signed, as they were, and nothing else does."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import WSMsgType
from yarl import URL

from tests.component.web.conftest import Site


async def test_a_request_is_passed_on_signed_and_as_it_is_spelled(site: Site) -> None:
    await site.login()
    target = "/folders/a%2Fb/files?path=%2e%2e%2Fx&x=1+2"
    url = URL(f"{site.url}/func{target}", encoded=True)
    headers = {"Forwarded": "for=1.2.3.4", "X-Forwarded-For": "1.2.3.4", "X-Secret-Hop": "x", "Range": "bytes=0-1"}
    async with site.http.get(url, headers={**headers, "Connection": "X-Secret-Hop"}) as response:
        answer = await response.json()
        assert answer["path"] == target
        assert response.headers["X-Extra"] == "kept"
        assert "Set-Cookie" not in response.headers
        assert "Access-Control-Allow-Origin" not in response.headers
        assert response.headers["Cache-Control"] == "no-store"
    sent = {name.lower(): value for name, value in answer["headers"].items()}
    assert sent["x-forwarded-for"] == "127.0.0.1"
    assert sent["range"] == "bytes=0-1"
    assert not sent.keys() & {"cookie", "forwarded", "x-secret-hop"}


async def test_a_large_body_is_streamed_with_its_length(site: Site) -> None:
    await site.login()
    size = 32 << 20
    async with site.http.put(f"{site.url}/func/upload", data=io.BytesIO(bytes(size))) as response:
        answer = await response.json()
        assert answer["bytes"] == size
        assert answer["headers"]["Content-Length"] == str(size)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * 1000

    async with site.http.patch(f"{site.url}/func/upload", data=pieces()) as response:
        assert (await response.json())["bytes"] == 4000


def _gzip_with_a_long_head(content: bytes, head_bytes: int) -> bytes:
    plain = gzip.compress(content)
    return plain[:3] + b"\x08" + plain[4:10] + b"n" * head_bytes + b"\0" + plain[10:]


async def test_a_compressed_body_takes_nothing_of_the_next_request(site: Site) -> None:
    """Decompressed, it would be shorter than its ``Content-Length`` says: the manager took the head of the next
    request, of whatever user, for the rest of it."""
    await site.login()
    body = _gzip_with_a_long_head(b"abc", 300)
    headers = {"Content-Encoding": "gzip", "Connection": "keep-alive, content-encoding"}
    for headers_sent in (headers, {"Content-Encoding": "gzip"}):
        async with site.http.post(f"{site.url}/func/unread", data=body, headers=headers_sent) as response:
            assert response.status == 200
        for number in range(3):
            async with site.http.get(f"{site.url}/func/next/{number}") as response:
                assert (response.status, (await response.json())["path"]) == (200, f"/next/{number}")
    async with site.http.post(f"{site.url}/func/read", data=body, headers=headers) as response:
        assert (await response.json())["bytes"] == len(body), "a body is passed on as it came"


async def test_without_a_login_only_anonymous_paths_are_served(site: Site) -> None:
    async with site.http.get(f"{site.url}/func/") as response:
        assert (await response.json())["manager"] == "23.09.10"
    for path in ("/func/sessions", "/func//auth/signup", "/func/auth/../sessions", "/func/stream/echo"):
        async with site.http.get(URL(site.url + path, encoded=True)) as response:
            assert response.status == 401, path
            assert response.content_type == "application/problem+json"
            assert "WWW-Authenticate" not in response.headers or "Basic" not in response.headers["WWW-Authenticate"]
    assert not site.manager.requests


async def test_a_body_that_breaks_off_looks_broken(site: Site) -> None:
    await site.login()
    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
        async with site.http.get(f"{site.url}/func/broken?bytes=100000") as response:
            await response.read()
    async with site.http.get(f"{site.url}/func/broken?bytes=100") as response:
        assert response.status == 503, "a small body is read before the answer begins"
        assert (await response.json())["title"]


async def test_a_websocket_carries_messages_and_codes_both_ways(site: Site) -> None:
    await site.login()
    async with site.http.ws_connect(f"{site.url}/func/stream/echo") as socket:
        await socket.send_str("text")
        await socket.send_bytes(b"\x00" * 70_000)
        assert (await socket.receive()).data == "text"
        assert len((await socket.receive()).data) == 70_000
        await socket.send_str("bye")
        message = await socket.receive()
        assert message.type is WSMsgType.CLOSE
        assert message.data == 4001
    async with site.http.ws_connect(f"{site.url}/func/stream/echo") as socket:
        await socket.close()
    await asyncio.wait_for(site.manager.closed_sockets.wait(), 10)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await site.http.ws_connect(f"{site.url}/func/no/socket")
    assert refusal.value.status >= 400


async def test_streams_end_with_the_login(site: Site) -> None:
    await site.login()
    socket = await site.http.ws_connect(f"{site.url}/func/stream/echo")
    events = await site.http.get(f"{site.url}/func/events")
    assert events.headers["X-Accel-Buffering"] == "no"
    assert await events.content.readline() == b"event: tick\n"
    async with site.http.post(f"{site.url}/server/logout", json={}) as response:
        assert response.status == 200
    async with asyncio.timeout(10):
        assert (await socket.receive()).type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
        with pytest.raises(aiohttp.ClientPayloadError):
            await events.read()
        await site.manager.broken.wait()


async def test_a_client_that_leaves_ends_the_managers_stream(site: Site) -> None:
    await site.login()
    async with site.http.get(f"{site.url}/func/events") as response:
        await response.content.readline()
        response.close()
    await asyncio.wait_for(site.manager.broken.wait(), 10)


async def test_the_next_manager_answers_while_one_is_away(site: Site) -> None:
    pool = site.server.managers
    pool._endpoints.insert(0, URL("http://127.0.0.1:9"))
    pool._avoided_until[pool._endpoints[0]] = 0.0
    assert (await site.login())["authenticated"] is True
    async with site.http.post(f"{site.url}/func/sessions", data=b"x" * 1000) as response:
        assert (await response.json())["bytes"] == 1000


async def test_a_manager_that_keeps_silent_is_reported_before_the_probe_gives_up(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async with site.http.get(f"{site.url}/readyz") as response:
        assert response.status == 200
    site.manager.silent.set()
    timeout = aiohttp.ClientTimeout(total=5.0)
    async with site.http.get(f"{site.url}/readyz", timeout=timeout) as response:
        assert (response.status, (await response.json())["checks"]) == (503, {"manager": False})
    assert "this server is not ready: The manager did not answer" in caplog.text


async def test_pipelines_are_refused_by_name(site: Site) -> None:
    for method, path in (("POST", "login/"), ("GET", "pipelines"), ("GET", "stream/x")):
        async with site.http.request(method, f"{site.url}/pipeline/{path}") as response:
            assert response.status == 501
            assert "pipeline" in await response.text()
