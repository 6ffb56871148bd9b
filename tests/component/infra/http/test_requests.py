from __future__ import annotations

import asyncio
import gzip
import io

import pytest
from aiohttp import MultipartReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from multidict import CIMultiDict

from ai.backend.infra.http import routes
from ai.backend.infra.http.routes import MemoryBudget
from tests.component.infra.http.conftest import Demo


@pytest.mark.parametrize("target", ["/", "/v7", "/v5/"])
async def test_the_version_probe_needs_no_signature(demo: Demo, target: str) -> None:
    reply = await demo.client(access_key="").request("GET", target)
    assert reply.json()["version"] == ("v5.20191215" if "5" in target else "v7.20230615")
    assert reply.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize(("target", "unsigned"), [("/v1", 404), ("/v99", 404), ("/nothing", 401), ("/v", 401)])
async def test_no_such_version(demo: Demo, target: str, unsigned: int) -> None:
    assert (await demo.client(access_key="").request("GET", target)).status == unsigned
    assert (await demo.client().request("GET", target)).status == 404


async def test_unknown_paths_and_methods(demo: Demo) -> None:
    reply = await demo.client().request("GET", "/a/b/c")
    assert (reply.status, reply.problem) == (404, "url-not-found")
    reply = await demo.client().request("PUT", "/things/a")
    assert (reply.status, reply.problem) == (405, "method-not-allowed")
    assert reply.headers["allow"] == "DELETE, GET, HEAD, PATCH, REPORT"


@pytest.mark.parametrize(
    ("target", "value"),
    [("/things/a%20b%2Fc", "a b/c"), ("/things/%7Bx%7D", "{x}"), ("/things/a%252Fb", "a%2Fb"), ("/v7/things/%41", "A")],
)
async def test_parts_of_a_path_are_decoded_once_and_signed_as_they_came(demo: Demo, target: str, value: str) -> None:
    reply = await demo.client().request("GET", target)
    assert (reply.status, reply.json()["t"]) == (200, value)
    assert (await demo.client().request("GET", target, signed_target=f"/things/{value[:1]}")).status == 401


async def test_a_head_has_no_body(demo: Demo) -> None:
    reader, writer = await demo.client().send(demo.client().head("HEAD", "/things/a") + b"")
    writer.write(demo.client().head("GET", "/open", headers={"Connection": "close"}))
    replies = (await asyncio.wait_for(reader.read(), 30)).split(b"HTTP/1.1 ")
    writer.close()
    assert [reply[:3] for reply in replies] == [b"", b"200", b"200"]
    assert replies[1].endswith(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["GET", "REPORT"])
async def test_parameters_in_a_body_of_a_read(demo: Demo, method: str) -> None:
    reply = await demo.client().request(method, "/things/a", json={"path": "/x", "files": ["p", "q"]})
    assert reply.json()["path"] == "/x"
    assert reply.json()["files"] == ["p", "q"]
    reply = await demo.client().request(method, "/things/a?files=p&files=q&path=/x")
    assert reply.json()["files"] == ["p", "q"]


async def test_report_by_override(demo: Demo) -> None:
    reply = await demo.client().request(
        "POST", "/things/a", json={"path": "/x"}, headers={"X-Method-Override": "report"}
    )
    assert reply.json()["path"] == "/x"


async def test_override_is_for_post_only_and_needs_a_method(demo: Demo) -> None:
    reply = await demo.client().request("GET", "/things/a", headers={"X-Method-Override": "DELETE"})
    assert reply.json()["method"] == "GET"
    reply = await demo.client().request("POST", "/things/a", headers={"X-Method-Override": "a b"})
    assert reply.status == 400


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (b"Authorization: BackendAI signMethod=HMAC-SHA256, credential=\xff:00", "Authorization"),
        (b"Content-Type: \xff", "Content-Type"),
        (b"X-Forwarded-Host: \xfe", "X-Forwarded-Host"),
        (b"X-BackendAI-Client-Token: \xff", "X-BackendAI-Client-Token"),
    ],
)
async def test_headers_that_are_no_text(demo: Demo, header: bytes, named: str) -> None:
    reply = await asyncio.wait_for(_bytes(demo, b"GET /things/a HTTP/1.1\r\nHost: x\r\n" + header), 30)
    assert reply.startswith(b"HTTP/1.1 400")
    assert f'"{named}":"not UTF-8"'.encode() in reply


async def test_odd_characters_in_a_path_get_a_problem(demo: Demo) -> None:
    reply = await asyncio.wait_for(_bytes(demo, b"GET /a%0d%0ab HTTP/1.1\r\nHost: x"), 30)
    assert reply.startswith(b"HTTP/1.1 404")
    assert b"application/problem+json" in reply


async def test_bodies_of_strangers_share_a_bound(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers with large bodies wait for each other, not those who sign; nothing stays taken."""
    monkeypatch.setattr(routes, "SMALL_BODY_BYTES", 100)
    budget = demo.server.unverified = MemoryBudget(1_000)
    stranger = demo.client(secret_key="wrong")
    head = stranger.head("POST", "/things", headers={"Content-Length": "900"})
    writers = [(await stranger.send(head + b"{"))[1] for _ in range(3)]
    await _wait_remaining(budget, 100)
    async with asyncio.timeout(30):
        reply = await demo.client().request("POST", "/things", json={"name": "x" * 200})
    assert reply.status != 503
    for writer in writers:
        writer.close()
    await _wait_remaining(budget, 1_000)


async def test_a_compressed_body_counts_as_large_as_it_may_become(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else strangers would have a megabyte each held for a kilobyte that they send."""
    monkeypatch.setattr(routes, "SMALL_BODY_BYTES", 100)
    budget = demo.server.unverified = MemoryBudget(1_000)
    stranger = demo.client(secret_key="wrong")
    head = stranger.head("POST", "/things", headers={"Content-Length": "90", "Content-Encoding": "gzip"})
    _, writer = await stranger.send(head + gzip.compress(bytes(900))[:-8])
    await _wait_remaining(budget, 0)
    writer.close()
    await _wait_remaining(budget, 1_000)


async def _wait_remaining(budget: MemoryBudget, amount: int) -> None:
    for _ in range(500):
        if budget.remaining == amount:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{budget.remaining} remain, not {amount}")


async def test_what_is_no_http_fills_no_log(demo: Demo, caplog: pytest.LogCaptureFixture) -> None:
    for head in (b"*", b"GET * HTTP/1.1\r\nHost: x", b"GET / HTTP/1.1\r\nX: \x1b", b"GET /" + b"x" * 70_000):
        assert b" 400 " in (await asyncio.wait_for(_bytes(demo, head), 30)).partition(b"\n")[0]
    assert not caplog.records


async def _bytes(demo: Demo, head: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", demo.port)
    writer.write(head + b"\r\nConnection: close\r\n\r\n")
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_bodies(demo: Demo) -> None:
    client = demo.client()
    reply = await client.request("POST", "/things", json={"title": "x", "size": 10})
    assert (reply.status, reply.json()) == (201, {"name": "x", "size": 10})
    reply = await client.request("POST", "/things", json={"size": 11, "more": 1})
    assert (reply.status, reply.problem) == (400, "invalid-api-params")
    assert set(reply.json()["data"]) == {"name", "size", "more"}
    reply = await client.request("POST", "/things", body=b"<x/>", content_type="text/xml")
    assert (reply.status, reply.problem) == (415, "unsupported-media-type")
    reply = await client.request("POST", "/things", body=b"{", content_type="application/json")
    assert reply.status == 400
    reply = await client.request("PATCH", "/things/missing", json={"unknown": 1})
    assert list(reply.json()["data"]) == ["unknown"]
    reply = await client.request("DELETE", "/things/a", json={"path": "x"})
    assert (reply.status, reply.body) == (204, b"")


@pytest.mark.parametrize("chunked", [False, True])
async def test_oversized_bodies(demo: Demo, chunked: bool) -> None:
    client = demo.client()
    if chunked:
        head = client.head("POST", "/things", content_type="application/json", headers={"Transfer-Encoding": "chunked"})
        head = head.replace(b"Content-Length: 0\r\n", b"")
        reader, writer = await client.send(head)
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(17):
            writer.write(chunk)
        status = int((await reader.readline()).split()[1])
        writer.close()
    else:
        status = (
            await client.request("POST", "/things", body=b" " * 1_048_577, content_type="application/json")
        ).status
    assert status == 413


async def test_a_fault_of_ours(demo: Demo) -> None:
    reply = await demo.client().request("PATCH", "/things/a")
    assert (reply.status, reply.problem) == (500, "internal-error")
    assert b"secret detail" not in reply.body


async def test_a_response_names_no_version_of_a_library(demo: Demo) -> None:
    for path in ("/things/a", "/nowhere"):
        assert (await demo.client().request("GET", path)).headers["server"] == "backend.ai"


async def test_request_ids(demo: Demo) -> None:
    client = demo.client()
    reply = await client.request("GET", "/things/a", headers={"X-Request-ID": "mine-1"})
    assert reply.headers["x-request-id"] == reply.json()["request_id"] == "mine-1"
    reply = await client.request("PATCH", "/things/missing", headers={"X-Request-ID": "x" * 65})
    assert reply.headers["x-request-id"] == reply.json()["request_id"] != "x" * 65


async def test_the_audit_trail(demo: Demo) -> None:
    client = demo.client()
    await client.request("POST", "/things", json={"name": "x"})
    await client.request("GET", "/things/a")
    await client.request("PATCH", "/things/missing")
    await demo.client(access_key="NOBODY").request("DELETE", "/things/a")
    assert demo.trail.notes == [
        ("make", "ok", {"who": "AKTEST"}),
        ("fail", "not-found", {"who": "AKTEST"}),
        ("delete", "auth-failed", None),
    ]


async def test_limits_by_access_key(demo: Demo) -> None:
    demo.keys.put("LIMITED", limit=2)
    client = demo.client(access_key="LIMITED")
    first = await client.request("GET", "/things/a")
    assert first.headers["x-ratelimit-limit"] == "2"
    assert first.headers["x-ratelimit-remaining"] == "1"
    assert first.headers["x-ratelimit-window"] == "900"
    assert (await client.request("PATCH", "/things/missing")).headers["x-ratelimit-remaining"] == "0"
    third = await client.request("GET", "/things/a")
    assert (third.status, third.problem) == (429, "rate-limit-exceeded")
    assert int(third.headers["retry-after"]) > 0
    assert (await demo.client().request("GET", "/things/a")).status == 200


async def test_limits_by_address(demo: Demo) -> None:
    anonymous = demo.client(access_key="")
    assert (await anonymous.request("GET", "/open")).headers["x-ratelimit-remaining"] == "7"
    guesser = demo.client(secret_key="guess")
    statuses = [(await guesser.request("GET", "/things/a")).status for _ in range(9)]
    assert statuses == [401] * 7 + [429] * 2
    assert (await anonymous.request("GET", "/open")).status == 429
    assert (await demo.client().request("GET", "/things/a")).status == 200
    elsewhere = {"X-Forwarded-For": "203.0.113.9, 127.0.0.1"}
    assert (await anonymous.request("GET", "/open", headers=elsewhere)).status == 200
    assert (await anonymous.request("GET", "/livez")).status == 200


async def test_health_and_metrics(demo: Demo) -> None:
    client = demo.client(access_key="")
    assert (await client.request("GET", "/livez")).json() == {"status": "alive"}
    assert (await client.request("GET", "/readyz")).json()["checks"] == {"database": True}
    demo.ready["database"] = False
    assert (await client.request("GET", "/readyz")).status == 503
    text = (await client.request("GET", "/metrics")).body.decode()
    assert 'backendai_demo_http_requests_total{route="GET /livez",status="200"} 1.0' in text
    document = (await client.request("GET", "/openapi.json")).json()
    assert document["paths"]["/things"]["post"]["requestBody"]
    assert [p["name"] for p in document["paths"]["/things/{t}"]["get"]["parameters"]] == [
        "t",
        "owner_access_key",
        "path",
        "files",
    ]


def _form(*parts: tuple[str, bytes], name: str = "src") -> bytes:
    body = b""
    for filename, data in parts:
        head = f'--B\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
        body += head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + data + b"\r\n"
    return body + b"--B--\r\n"


_FORM = "multipart/form-data; boundary=B"


@pytest.mark.parametrize("sign_body", [False, True])
async def test_uploads(demo: Demo, sign_body: bool) -> None:
    body = _form(("d%2Fx.txt", b"12345"), ("100%25.bin", b"\r\n-B\0\xff"))
    reply = await demo.client().request("POST", "/files", body=body, content_type=_FORM, sign_body=sign_body)
    assert reply.json() == {"d/x.txt": 5, "100%.bin": 6}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (_form(("a", b"x" * 65)), 400),
        (_form(("a", b""), ("b", b""), ("c", b"")), 400),
        (_form(), 400),
        (b"garbage", 400),
        (_form(("a", b"x"))[:-20], 400),
        (_form(("a", b"x" * 4096)), 413),
        (_form(("%00", b"")), 400),
        (_form(("%ff", b"")), 400),
        (b"--B\r\nno header\r\n\r\nx\r\n--B--\r\n", 400),
        (b'--B\r\nContent-Disposition: form-data; name="\x01"\r\n\r\nx\r\n--B--\r\n', 400),
    ],
)
async def test_bad_uploads(demo: Demo, body: bytes, status: int) -> None:
    reply = await demo.client().request("POST", "/files", body=body, content_type=_FORM)
    assert reply.status == status, reply.body
    assert reply.problem


async def test_an_upload_of_another_type(demo: Demo) -> None:
    assert (await demo.client().request("POST", "/files", json={})).status == 415


async def test_downloads_are_readable_by_the_library_of_the_published_client(demo: Demo) -> None:
    reply = await demo.client().request("GET", "/files")
    loop = asyncio.get_running_loop()
    stream = StreamReader(BaseProtocol(loop), 2**20, loop=loop)
    stream.feed_data(io.BytesIO(reply.body).read())
    stream.feed_eof()
    parts = []
    async for part in MultipartReader(CIMultiDict({"Content-Type": reply.headers["content-type"]}), stream):
        parts.append((part.filename, bytes(await part.read(decode=True))))  # type: ignore[union-attr]  # no nesting
    assert parts == [("a%20b.tar", b"\r\n--x" * 9), ("e.tar", b"")]


async def test_a_call_that_changes_something_is_finished_without_its_client(demo: Demo) -> None:
    demo.api.hold.clear()
    client = demo.client()
    _, writer = await client.send(client.head("PUT", "/slow"))
    await asyncio.wait_for(demo.api.entered.wait(), 30)
    writer.transport.abort()
    await asyncio.sleep(0.05)
    demo.api.hold.set()
    async with asyncio.timeout(30):
        await demo.trail.noted.wait()
    assert [note[:2] for note in demo.trail.notes] == [("slow", "ok")]


async def test_a_client_that_goes_before_its_body_has_come(demo: Demo) -> None:
    client = demo.client()
    head = client.head("POST", "/things", body=b"x" * 100, content_type="application/json")
    _, writer = await client.send(head + b"x")
    await asyncio.sleep(0.02)
    writer.transport.abort()
    async with asyncio.timeout(30):
        await demo.trail.noted.wait()
    assert [note[:2] for note in demo.trail.notes] == [("make", "gone")]


async def test_a_broken_chunk(demo: Demo) -> None:
    client = demo.client()
    head = client.head("POST", "/things", content_type="application/json", headers={"Transfer-Encoding": "chunked"})
    reply = await client.exchange(head.replace(b"Content-Length: 0\r\n", b"") + b"zz\r\nxx\r\n")
    assert reply.status == 400


async def test_a_body_that_does_not_come(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BODY_TIMEOUT_S", 0.1)
    client = demo.client()
    head = client.head("POST", "/things", body=b"x" * 100, content_type="application/json")
    reply = await client.exchange(head + b"x")
    assert (reply.status, reply.problem) == (408, "request-timeout")
    assert reply.headers["connection"] == "close"
