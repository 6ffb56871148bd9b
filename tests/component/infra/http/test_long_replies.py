"""Event streams and WebSockets (client wire contract 1.7 and 1.8)."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import WSMsgType

from ai.backend.infra.http import streams
from ai.backend.infra.http.streams import MAX_MESSAGE_BYTES, STREAMS, SseEvent
from tests.component.infra.http.conftest import Demo
from tests.support.signed_http import RawClient, read_chunk, read_head


async def _open_events(demo: Demo) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    client = demo.client(access_key="")
    return await client.send(client.head("GET", "/events", content_type=None))


async def test_an_event_stream(demo: Demo) -> None:
    reader, writer = await _open_events(demo)
    status, headers = await read_head(reader)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    text = b""
    while chunk := await read_chunk(reader):
        text += chunk
    writer.close()
    lines = text.decode().split("\n")
    assert all(":" in line for line in lines if line)
    assert [line for line in lines if line and not line.startswith(":")] == [
        "id: 1",
        "event: one",
        'data: {"n":1}',
        "id: 2",
        "event: two",
        'data: {"n":2}',
        "event: server_close",
        "data: {}",
    ]


async def test_the_first_event_does_not_come_with_the_head(demo: Demo) -> None:
    reader, writer = await _open_events(demo)
    first = await reader.read(65_536)
    assert b"200" in first
    assert b"event:" not in first
    writer.close()


async def test_heartbeats_and_a_client_that_goes(demo: Demo) -> None:
    demo.api.events, demo.api.hold = [], asyncio.Event()
    reader, writer = await _open_events(demo)
    await read_head(reader)
    assert await read_chunk(reader) == b": open\n\n"
    assert await read_chunk(reader) == b": heartbeat\n\n"
    writer.transport.abort()
    await asyncio.wait_for(demo.api.source_closed.wait(), 30)


async def test_a_source_that_refuses_at_its_first_step_is_a_plain_problem(demo: Demo) -> None:
    reply = await demo.client(access_key="").request("GET", "/events/refused", content_type=None)
    assert (reply.status, reply.problem) == (404, "not-found")


async def test_a_stop_of_the_server_ends_streams_without_saying_that_it_is_over(demo: Demo) -> None:
    demo.api.events, demo.api.hold = [SseEvent("one", {})], asyncio.Event()
    reader, writer = await _open_events(demo)
    await read_head(reader)
    seen = await read_chunk(reader)
    stop = asyncio.create_task(demo.runner.cleanup())
    while chunk := await read_chunk(reader):
        seen += chunk
    await stop
    writer.close()
    assert b"event: one" in seen
    assert b"server_close" not in seen


async def _socket(
    demo: Demo, client: RawClient, session: aiohttp.ClientSession, target: str = "/socket"
) -> aiohttp.ClientWebSocketResponse:
    head = client.head("GET", target, content_type=None).decode().split("\r\n")[1:-2]
    headers = {name: value for name, _, value in (line.partition(": ") for line in head)}
    return await session.ws_connect(f"http://127.0.0.1:{demo.port}{target}", headers=headers, max_msg_size=0)


async def test_a_socket(demo: Demo) -> None:
    async with aiohttp.ClientSession() as session, await _socket(demo, demo.client(), session) as socket:
        await socket.ping(b"hello")
        await socket.send_str("x")
        assert await socket.receive_str(timeout=30) == "echo x"
        await socket.send_str("boom")
        message = await socket.receive(timeout=30)
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 1011, "nothing here")


async def test_a_message_that_is_too_long(demo: Demo) -> None:
    client = demo.client()
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    reader, writer = await client.send(client.head("GET", "/socket", content_type=None, headers=handshake))
    assert (await read_head(reader))[0] == 101
    writer.write(b"\x81\xff" + (MAX_MESSAGE_BYTES + 1).to_bytes(8, "big") + b"\0\0\0\0")
    frame = await asyncio.wait_for(reader.read(4), 30)
    writer.close()
    assert frame[0] == 0x88
    assert int.from_bytes(frame[2:4], "big") == 1009


async def test_a_stop_of_the_server_closes_sockets(demo: Demo) -> None:
    async with aiohttp.ClientSession() as session, await _socket(demo, demo.client(), session) as socket:
        await socket.send_str("x")
        await socket.receive_str(timeout=30)
        stop = asyncio.create_task(demo.runner.cleanup())
        message = await socket.receive(timeout=30)
        assert (message.type, message.data) == (WSMsgType.CLOSE, 1001)
        await stop
    assert demo.runner.app is not None
    assert len(demo.runner.app[STREAMS]) == 0


async def test_a_socket_needs_a_signature(demo: Demo) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await _socket(demo, demo.client(secret_key="wrong"), session)
    assert caught.value.status == 401


async def test_a_plain_get_of_a_socket_is_refused(demo: Demo) -> None:
    reply = await demo.client().request("GET", "/socket")
    assert reply.status == 400
    assert reply.problem


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_KEY_CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(streams, "_CLOSE_TIMEOUT_S", 0.2)


@pytest.mark.usefixtures("soon")
async def test_what_a_key_has_opened_ends_when_the_key_does(demo: Demo) -> None:
    demo.keys.put("AKIAOTHER")
    other = demo.client(access_key="AKIAOTHER")
    demo.api.events, demo.api.hold = [], asyncio.Event()
    async with aiohttp.ClientSession() as session:
        mine, theirs = await _socket(demo, demo.client(), session), await _socket(demo, other, session)
        reader, writer = await other.send(other.head("GET", "/events/signed", content_type=None))
        anonymous, its = await _open_events(demo)
        await read_head(reader)
        demo.keys.put("AKIAOTHER", active=False)
        message = await theirs.receive(timeout=30)
        assert (message.type, message.data) == (WSMsgType.CLOSE, 1008)
        assert message.extra == "the access key is no longer active"
        async with asyncio.timeout(30):
            while await reader.read(65_536):
                pass
            await demo.api.source_closed.wait()
        await mine.send_str("x")
        assert await mine.receive_str(timeout=30) == "echo x"
        assert (await read_head(anonymous))[0] == 200
        writer.close()
        its.close()
        await mine.close()
    assert {"AKIAOTHER", demo.client().access_key} in demo.keys.asked
    demo.api.hold.set()


@pytest.mark.usefixtures("soon")
async def test_a_client_that_does_not_read_is_ended_too(demo: Demo) -> None:
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    client = demo.client()
    reader, writer = await client.send(client.head("GET", "/socket/flood", content_type=None, headers=handshake))
    assert (await read_head(reader))[0] == 101
    demo.keys.put(active=False)
    await asyncio.wait_for(demo.api.source_closed.wait(), 30)
    writer.close()


@pytest.mark.usefixtures("soon")
async def test_a_store_that_is_away_ends_nothing_and_is_asked_again(
    demo: Demo, caplog: pytest.LogCaptureFixture
) -> None:
    async with aiohttp.ClientSession() as session, await _socket(demo, demo.client(), session) as socket:
        demo.keys.fails = True
        async with asyncio.timeout(30):
            while len(demo.keys.asked) < 3:  # noqa: ASYNC110  # a list has no event
                await asyncio.sleep(0.01)
        await socket.send_str("x")
        assert await socket.receive_str(timeout=30) == "echo x"
        demo.keys.put(active=False)
        demo.keys.fails = False
        assert (await socket.receive(timeout=30)).data == 1008
    assert "the store is away" in caplog.text


async def test_streams_and_sockets_have_the_headers_of_every_reply(demo: Demo) -> None:
    demo.keys.put("LIMITED", limit=9)
    client = demo.client(access_key="LIMITED")
    for target in ("/events/signed", "/files", "/things/a", "/nothing"):
        reader, writer = await client.send(client.head("GET", target, headers={"X-Request-ID": "mine"}))
        status, headers = await read_head(reader)
        writer.close()
        assert headers["x-request-id"] == "mine", target
        assert headers["content-language"] == "en"
        if status != 404:
            assert {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-window"} <= headers.keys(), target


async def test_a_long_request_line_is_answered_with_a_problem(demo: Demo) -> None:
    assert (await demo.client().request("GET", "/things/a?path=" + "a" * 20_000)).status == 200
    reply = await demo.client().request("GET", "/things/a?other=" + "a" * 20_000)
    assert (reply.status, reply.problem) == (400, "invalid-api-params")


@pytest.mark.parametrize("head", [b"GET /things/a?path=" + b"a" * 70_000 + b" HTTP/1.1\r\n", b"no HTTP\r\n"])
async def test_what_is_no_request_is_answered_in_plain_text(demo: Demo, head: bytes) -> None:
    reader, writer = await demo.client().send(head + b"Host: here\r\n\r\n")
    status, headers = await read_head(reader)
    writer.close()
    assert (status, headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert (await demo.client().request("GET", "/things/a")).status == 200
