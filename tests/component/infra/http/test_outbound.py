"""Attempts to reach a server on this machine through a client that must not: each fails before a byte is sent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from ai.backend.common.errors import AddressRefused
from ai.backend.infra.http.outbound import (
    LINK_LOCAL,
    NOT_PUBLIC,
    OutboundClient,
    OutboundFailed,
    RedirectRefused,
    ResponseTooLarge,
    parse_networks,
    parse_url,
)

TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=10.0)


@dataclass
class Internal:
    """A server that must not be reached, or redirects where it is told to."""

    port: int = 0
    location: str = ""
    seen: list[tuple[str, str | None]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.path, request.headers.get("Authorization")))
        if request.path == "/away":
            return web.Response(status=302, headers={"Location": self.location})
        if request.path == "/large":
            return web.Response(body=b"x" * 1001)
        if request.path == "/zipped":
            return web.Response(body=b"x", headers={"Content-Encoding": "gzip"})
        if request.path == "/slow":
            await asyncio.sleep(60)
        return web.Response(text="secret")


@pytest.fixture
async def internal() -> AsyncIterator[Internal]:
    server = Internal()
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


class Resolver(AbstractResolver):
    """Answers with these addresses, one list after the other."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""


async def _fetch(url: str, *, limit: int = 1000, within_s: float = 10.0, **how: Any) -> str:
    how = {"refused": NOT_PUBLIC, "timeout": TIMEOUT, **how}
    client = OutboundClient(**how)
    try:
        response = await client.read(
            "GET",
            parse_url(url, with_credentials=True),
            limit=limit,
            headers={} if "@" in url else {"Authorization": "Bearer mine"},
            max_redirects=2,
            timeout_s=within_s,
        )
        return response.body.decode()
    finally:
        await client.close()


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "[::1]", "[::]", "0.0.0.0", "127.1", "0177.0.0.1", "0x7f.0.0.1", "2130706433"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "127.0.0.1."),
        *("①②⑦.0.0.1", "127。0。0。1", "１２７.0.0.1", "ⓛocalhost", "%E2%91%A0%E2%91%A1%E2%91%A6.0.0.1"),
        *("8.8.8.8@127.0.0.1", "8.8.8.8:80@localhost", "example.com%2F@127.0.0.1"),
    ],
)
async def test_no_spelling_of_this_machine_is_reached(internal: Internal, host: str) -> None:
    with pytest.raises((AddressRefused, OutboundFailed)):
        await _fetch(f"http://{host}:{internal.port}/")
    assert internal.seen == []


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["::1", "127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::ffff:127.0.0.1"]]
)
async def test_a_name_is_judged_by_its_addresses(internal: Internal, addresses: list[str]) -> None:
    with pytest.raises(AddressRefused, match=r"rebound\.test"):
        await _fetch(f"http://rebound.test:{internal.port}/", resolver=Resolver(addresses))
    assert internal.seen == []


async def test_a_name_that_changes_its_address_between_check_and_connection(internal: Internal) -> None:
    """DNS rebinding. The first answer is harmless; a guard that resolves by itself would be content with it."""
    resolver = Resolver(["192.0.2.1"], ["127.0.0.1"])
    client = OutboundClient(refused=parse_networks("127.0.0.0/8"), timeout=TIMEOUT, resolver=resolver)
    url = parse_url(f"http://rebound.test:{internal.port}/")
    try:
        await resolver.resolve("rebound.test")
        with pytest.raises(AddressRefused):
            await client.read("GET", url, limit=1000)
    finally:
        await client.close()
    assert internal.seen == []


async def test_an_address_that_may_be_reached_is_taken_though_another_one_is_refused(internal: Internal) -> None:
    resolver = Resolver(["10.0.0.1", "127.0.0.1"])
    url = f"http://mixed.test:{internal.port}/"
    assert await _fetch(url, resolver=resolver, refused=parse_networks("10.0.0.0/8")) == "secret"


@pytest.mark.parametrize(
    "location", ["http://169.254.169.254/latest/meta-data", "http://[::ffff:169.254.169.254]/", "http://[fe80::1]/"]
)
async def test_redirects_are_judged_again(internal: Internal, location: str) -> None:
    internal.location = location
    with pytest.raises(AddressRefused):
        await _fetch(f"http://127.0.0.1:{internal.port}/away", refused=LINK_LOCAL)
    assert [path for path, _ in internal.seen] == ["/away"]


@pytest.mark.parametrize(
    "location", ["", "file:///etc/passwd", "gopher://127.0.0.1/", "http://a@b/", "http://[::1", "/away"]
)
async def test_redirects_that_are_not_followed(internal: Internal, location: str) -> None:
    internal.location = location
    with pytest.raises((RedirectRefused, AddressRefused)):
        await _fetch(f"http://127.0.0.1:{internal.port}/away", refused=())
    assert {path for path, _ in internal.seen} == {"/away"}


async def test_authorization_stays_with_its_origin(internal: Internal) -> None:
    internal.location = f"http://localhost:{internal.port}/there"
    assert await _fetch(f"http://127.0.0.1:{internal.port}/away", refused=()) == "secret"
    assert internal.seen == [("/away", "Bearer mine"), ("/there", None)]


async def test_an_allowed_host_is_reached_wherever_it_is_and_leads_nowhere_else(internal: Internal) -> None:
    url = f"http://hub.test:{internal.port}"
    how: dict[str, Any] = {"resolver": Resolver(["127.0.0.1"]), "allowed_hosts": ("hub.test",)}
    assert await _fetch(f"{url}/x", **how) == "secret"
    internal.location = f"http://127.0.0.1:{internal.port}/there"
    with pytest.raises(AddressRefused):
        await _fetch(f"{url}/away", **how)
    with pytest.raises(AddressRefused, match="allowed hosts"):
        await _fetch(f"http://8.8.8.8:{internal.port}", only_allowed=True, **how)
    assert [path for path, _ in internal.seen] == ["/x", "/away"]


@pytest.mark.parametrize(
    ("path", "kind"), [("/large", ResponseTooLarge), ("/zipped", OutboundFailed), ("/slow", OutboundFailed)]
)
async def test_responses_have_limits(internal: Internal, path: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await _fetch(f"http://127.0.0.1:{internal.port}{path}", refused=(), within_s=1.0)


async def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/path?key=hidden"
    with pytest.raises(OutboundFailed) as caught:
        await _fetch(url, refused=())
    assert "hidden" not in str(caught.value)
