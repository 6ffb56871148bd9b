"""Signatures as clients really write them (client wire contract 1.1 and 1.2)."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.component.infra.http.conftest import SECRET, Demo

NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    "target",
    [
        "/things/a",
        "/things/a%20b",
        "/things/a+b",
        "/things/%25",
        "/things/%ED%95%9C",
        "/things/a%2Fb?path=x+y",
        "/things/a?path=%2B%26%22%7B",
        "/things/a?path=/?:*,",
        "/things/a?path=",
        "/v7/things/a?path=%2f",
    ],
)
async def test_the_target_is_signed_as_it_is_on_the_wire(demo: Demo, target: str) -> None:
    reply = await demo.client().request("GET", target)
    assert reply.status == 200, reply.body


async def test_another_encoding_of_the_same_target_is_another_target(demo: Demo) -> None:
    reply = await demo.client().request("GET", "/things/%2f", signed_target="/things/%2F")
    assert (reply.status, reply.problem) == (401, "auth-failed")


@pytest.mark.parametrize(
    ("host", "signed"),
    [
        ("h", "h:80"),
        ("h", "h:443"),
        ("h:80", "h"),
        ("h:443", "h"),
        ("MiXed.Example:8090", "mixed.example:8090"),
        ("mixed.example:8090", "MIXED.example:8090"),
        ("[::1]:8090", "[::1]:8090"),
    ],
)
async def test_authorities(demo: Demo, host: str, signed: str) -> None:
    reply = await demo.client(host=host, signed_host=signed).request("GET", "/things/a")
    assert reply.status == 200


@pytest.mark.parametrize(("host", "signed"), [("h:8080", "h"), ("h", "other"), ("h:80", "h:443")])
async def test_other_authorities(demo: Demo, host: str, signed: str) -> None:
    assert (await demo.client(host=host, signed_host=signed).request("GET", "/things/a")).status == 401


async def test_a_trusted_proxy_tells_the_authority(demo: Demo) -> None:
    client = demo.client(host="inner:8090", signed_host="api.example.org")
    headers = {"X-Forwarded-Host": "API.example.org"}
    assert (await client.request("GET", "/things/a", headers=headers)).status == 200
    assert (await client.request("GET", "/things/a")).status == 401


async def test_a_key_signs_from_its_networks_only(demo: Demo) -> None:
    """The demo trusts its neighbour: the last hop that is no trusted proxy is the client."""
    demo.keys.put("AKNEAR", networks=("198.51.100.0/24",))
    client = demo.client(access_key="AKNEAR")

    async def status(forwarded: str | None) -> int:
        headers = {"X-Forwarded-For": forwarded} if forwarded else {}
        return (await client.request("GET", "/things/a", headers=headers)).status

    assert await status("198.51.100.7") == 200
    assert await status("203.0.113.9, 198.51.100.7, 127.0.0.1") == 200
    assert await status("198.51.100.7, 203.0.113.9") == 403, "what a client adds itself does not count"
    line = "\r\nX-Forwarded-For: "
    assert await status(f"198.51.100.7{line}203.0.113.9") == 403, "the last line is the proxy's"
    assert await status(f"203.0.113.9{line}198.51.100.7{line}127.0.0.1") == 200
    assert await status("nonsense") == 403
    assert await status(None) == 403


@pytest.mark.parametrize("content_type", ["text/plain", "application/json; charset=UTF-8", "Application/JSON", None])
async def test_content_types_are_signed_bare_and_default_to_octet_stream(demo: Demo, content_type: str | None) -> None:
    assert (await demo.client().request("GET", "/things/a", content_type=content_type)).status == 200


@pytest.mark.parametrize("sign_body", [False, True])
@pytest.mark.parametrize("hash_name", ["sha256", "sha512", "sha3_256"])
async def test_either_digest_of_the_body_and_any_hash(demo: Demo, sign_body: bool, hash_name: str) -> None:
    reply = await demo.client().request("POST", "/things", json={"name": "x"}, sign_body=sign_body, hash_name=hash_name)
    assert reply.status == 201


async def test_a_signed_body_cannot_be_changed(demo: Demo) -> None:
    client = demo.client()
    body = b'{"name": "x"}'
    head = client.head("POST", "/things", body=body, content_type="application/json", sign_body=True)
    assert (await client.exchange(head + body.replace(b"x", b"y"))).status == 401


@pytest.mark.parametrize("date_header", ["Date", "X-BackendAI-Date"])
@pytest.mark.parametrize(("minutes", "status"), [(-16, 401), (-14, 200), (14, 200), (16, 401)])
async def test_the_skew_window(demo: Demo, date_header: str, minutes: int, status: int) -> None:
    date = datetime.now(UTC) + timedelta(minutes=minutes)
    reply = await demo.client().request("GET", "/things/a", date=date, date_header=date_header)
    assert reply.status == status


async def test_a_date_without_zone_is_utc(demo: Demo) -> None:
    naive = datetime.now(UTC).replace(tzinfo=None)
    assert (await demo.client().request("GET", "/things/a", date=naive)).status == 200


async def test_an_override_is_covered_by_the_signature(demo: Demo) -> None:
    for signed, status in (("POST", 401), ("DELETE", 204)):
        reply = await demo.client().request(
            "POST", "/things/a", headers={"X-Method-Override": "DELETE"}, signed_method=signed
        )
        assert reply.status == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Basic Zm9vOmJhcg=="},
        {"Authorization": "BackendAI"},
        {"Authorization": "BackendAI signMethod=HMAC-MD5, credential=AKTEST:00"},
        {"Authorization": "BackendAI signMethod=HMAC-SHA256, credential=AKTEST:"},
        {"Authorization": "BackendAI signMethod=HMAC-SHA256, credential=AKTEST:deadbeef"},
        {"Authorization": "BackendAI signMethod=HMAC-SHA256, credential=AKTEST:\u00e9"},
        {"Date": "yesterday"},
    ],
)
async def test_malformed_credentials(demo: Demo, headers: dict[str, str]) -> None:
    reply = await demo.client().request("GET", "/things/a", headers=headers)
    assert (reply.status, reply.problem) == (401, "auth-failed")


async def test_no_credentials(demo: Demo) -> None:
    reply = await demo.client(access_key="").request("GET", "/things/a")
    assert (reply.status, reply.problem) == (401, "auth-failed")


@pytest.mark.parametrize("version", ["", "v7", "latest"])
async def test_a_malformed_version(demo: Demo, version: str) -> None:
    reply = await demo.client().request("GET", "/things/a", headers={"X-BackendAI-Version": version})
    assert (reply.status, reply.problem) == (400, "invalid-api-params")
    assert "X-BackendAI-Version" in reply.json()["data"]


async def test_a_wrong_signature_and_an_unknown_key_look_the_same(demo: Demo) -> None:
    wrong = await demo.client(secret_key="other").request("GET", "/things/a")
    unknown = await demo.client(access_key="NOBODY").request("GET", "/things/a")
    told: list[Any] = [{**reply.json(), "request_id": ""} for reply in (wrong, unknown)]
    assert wrong.status == 401
    assert told[0] == told[1]


async def test_inactive_keys(demo: Demo) -> None:
    demo.keys.put("SLEEPER", active=False)
    reply = await demo.client(access_key="SLEEPER", secret_key=SECRET).request("GET", "/things/a")
    assert reply.status == 401


async def test_a_revocation_takes_effect_within_a_second(demo: Demo) -> None:
    client = demo.client()
    assert (await client.request("GET", "/things/a")).status == 200
    demo.keys.put(active=False)
    revoked = time.monotonic()
    while (await client.request("GET", "/things/a")).status == 200:
        assert time.monotonic() - revoked < 1
        await asyncio.sleep(0.02)


async def test_a_key_is_looked_up_once_while_it_is_believed(demo: Demo) -> None:
    for _ in range(5):
        await demo.client().request("GET", "/things/a")
    assert demo.keys.lookups <= 2


async def test_who_owns_what_is_told_in_the_query(demo: Demo) -> None:
    reply = await demo.client().request("GET", "/things/a?owner_access_key=AKOTHER")
    assert reply.json()["owner"] == "AKOTHER"
