"""Calls of model services from the console: by the token of the login session, streamed, bounded, and never a page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from ai.backend.web.relay import services_api
from tests.component.web.conftest import FakeManager, Site, running_site
from tests.support.serving import serve

ENDPOINT_ID = "11111111-2222-3333-4444-555555555555"
CHAT = {"method": "POST", "path": "/v1/chat/completions", "body": '{"stream": true}'}


@dataclass
class FakeService:
    """An app proxy with a service that takes the tokens that its manager has made."""

    tokens: list[str] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_public: bool = False
    url: str = ""
    refusal: int = 0

    async def describe(self, _: web.Request) -> web.Response:
        if self.refusal:
            return web.json_response({"type": "p", "title": "Refused", "msg": "Not yours."}, status=self.refusal)
        url = self.url or None
        return web.json_response(
            {"endpoint_id": ENDPOINT_ID, "service_endpoint": url, "is_public": self.is_public, "status": "healthy"}
        )

    async def make_token(self, request: web.Request) -> web.Response:
        assert await request.json() == {"duration": "600s"}
        self.tokens.append(f"token-{len(self.tokens)}")
        return web.json_response({"token": self.tokens[-1]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.raw_path, await request.text()))
        assert "Cookie" not in request.headers
        if not self.is_public:
            assert request.headers["Authorization"] == f"Bearer {self.tokens[-1]}"
        match request.path:
            case "/base/page":
                headers = {"Content-Type": "text/html", "Set-Cookie": "backendai=x", "Location": "http://evil"}
                return web.Response(status=401, body=b"<script>alert(1)</script>", headers=headers)
            case "/base/long":
                return web.Response(body=bytes(services_api.MAX_ANSWER_BYTES + 1))
            case "/base/redirect":
                raise web.HTTPFound("http://127.0.0.1:9/")
            case "/base/compressed":
                return web.Response(body=b"x", headers={"Content-Encoding": "br"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await response.write(b"data: 1\n\n")
            await self.go_on.wait()
            await response.write(b"data: 2\n\n")
        finally:
            self.ended.set()
        return response


class Manager(FakeManager):
    service: FakeService

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        match request.method, request.path:
            case ("GET", path) if path.startswith("/services/"):
                return await self.service.describe(request)
            case ("POST", path) if path == f"/services/{ENDPOINT_ID}/token":
                return await self.service.make_token(request)
        return await super()._answer(request)


@dataclass
class Case:
    site: Site
    service: FakeService

    def call(self, **body: Any) -> Any:
        return self.site.http.post(f"{self.site.url}/server/services/my-service/call", json=body)

    async def problem(self, status: int, **body: Any) -> dict[str, Any]:
        async with self.call(**body) as response:
            assert (response.status, response.content_type) == (status, "application/problem+json")
            document: dict[str, Any] = json.loads(await response.text())
            return document


@pytest.fixture
async def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    service = FakeService()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.answer)
    runner, port = await serve(app, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{port}/base/"
    monkeypatch.setattr(Manager, "service", service, raising=False)
    async with running_site(tmp_path, manager=Manager()) as site:
        await site.login()
        yield Case(site, service)
    await runner.cleanup()


async def test_an_answer_is_streamed_and_the_token_stays_in_the_server(case: Case) -> None:
    async with case.call(**CHAT) as response:
        assert response.status == 200
        assert response.headers[services_api.STATUS_HEADER] == "200"
        assert response.headers[services_api.TYPE_HEADER] == "text/event-stream"
        assert await response.content.readuntil(b"\n\n") == b"data: 1\n\n"
        case.service.go_on.set()
        assert await response.read() == b"data: 2\n\n"
        assert "token-0" not in str(response.headers)
    assert case.service.requests == [("POST", "/base/v1/chat/completions", '{"stream": true}')]
    async with case.call(path="/v1/models?a=%2F") as response:
        await response.read()
    assert case.service.requests[-1] == ("GET", "/base/v1/models?a=%2F", "")
    assert len(case.service.tokens) == 1, "a token is made once in its life"


async def test_a_client_that_stops_ends_the_call_of_the_service(case: Case) -> None:
    async with case.call(**CHAT) as response:
        await response.content.readuntil(b"\n\n")
        assert not case.service.ended.is_set()
        response.close()
    await asyncio.wait_for(case.service.ended.wait(), 10)


async def test_an_answer_is_no_page_of_the_console(case: Case) -> None:
    async with case.call(path="/page") as response:
        assert response.status == 200
        assert response.headers[services_api.STATUS_HEADER] == "401"
        assert response.headers["Content-Type"] == "application/octet-stream"
        assert response.headers["Content-Disposition"] == "attachment"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert not {"Set-Cookie", "Location"} & set(response.headers)
        assert await response.read() == b"<script>alert(1)</script>"


async def test_nothing_is_followed_and_nothing_is_without_end(case: Case) -> None:
    async with case.call(path="/redirect") as response:
        assert response.headers[services_api.STATUS_HEADER] == "302"
    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
        async with case.call(path="/long") as response:
            await response.read()
    assert "compresses" in (await case.problem(503, path="/compressed"))["msg"]


@pytest.mark.parametrize(
    "path",
    ["//../x", "/../admin", "/v1/%2e%2e/x", "/v1/%2E./x", "/v1/..%5cx", "x", "/a b", "/a#b", "/\u00e9", "", "/" * 2049],
)
async def test_a_path_that_leaves_the_service_is_refused(case: Case, path: str) -> None:
    await case.problem(400, path=path)
    assert case.service.requests == []


@pytest.mark.parametrize("body", [{"path": "/", "method": "CONNECT"}, {"path": "/", "headers": {}}, {}])
async def test_malformed_calls_are_refused(case: Case, body: dict[str, Any]) -> None:
    await case.problem(400, **body)


async def test_a_path_cannot_name_another_host(case: Case) -> None:
    async with case.call(path="/@127.0.0.1:9//host") as response:
        assert response.headers[services_api.STATUS_HEADER] == "200"
        case.service.go_on.set()
        await response.read()
    assert case.service.requests[0][1] == "/base/@127.0.0.1:9//host"


async def test_the_manager_decides_who_calls(case: Case) -> None:
    case.service.refusal = 404
    assert (await case.problem(404, path="/"))["msg"] == "Not yours."
    case.service.refusal, case.service.url = 0, ""
    assert "no URL yet" in (await case.problem(409, path="/"))["msg"]
    assert case.service.tokens == []


async def test_a_public_service_needs_no_token(case: Case) -> None:
    case.service.is_public = True
    case.service.go_on.set()
    async with case.call(**CHAT) as response:
        await response.read()
    assert case.service.tokens == []


async def test_calls_end_with_the_login_and_need_one(case: Case) -> None:
    async with case.call(**CHAT) as response:
        await response.content.readuntil(b"\n\n")
        async with case.site.http.post(f"{case.site.url}/server/logout", json={}) as logout:
            assert logout.status == 200
        async with asyncio.timeout(10):
            with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
                await response.read()
            await case.service.ended.wait()
    await case.problem(401, path="/")


async def test_pages_of_other_sites_call_nothing(case: Case) -> None:
    url = f"{case.site.url}/server/services/my-service/call"
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        async with case.site.http.post(url, json=CHAT, headers=headers) as response:
            assert response.status == 403
    assert case.service.requests == []


async def test_calls_at_once_are_bounded(case: Case) -> None:
    opened = [await case.call(**CHAT) for _ in range(services_api.MAX_CALLS_OF_LOGIN)]
    await case.problem(429, **CHAT)
    case.service.go_on.set()
    for response in opened:
        await response.read()
    async with case.call(**CHAT) as response:
        assert response.status == 200
        await response.read()


async def test_a_service_that_is_away_is_a_problem(case: Case) -> None:
    case.service.url = "http://127.0.0.1:9/"
    assert "does not answer" in (await case.problem(503, path="/"))["msg"]


async def test_a_name_of_a_service_is_one_part_of_the_managers_path(case: Case) -> None:
    url = URL(f"{case.site.url}/server/services/a%2Fb%3Fc/call", encoded=True)
    case.service.go_on.set()
    async with case.site.http.post(url, json=CHAT) as response:
        await response.read()
    assert case.site.manager.requests[0].raw_path == "/services/a%2Fb%3Fc"
