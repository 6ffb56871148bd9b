from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from ai.backend.infra.http.routes import Call, Endpoint, RequestHandler, endpoints_of, register, route


class Api:
    @route("GET", "/session/_/match")
    async def match(self, call: Call) -> None:
        """Match.

        More."""

    @route("GET", "/session/{s}")
    async def get(self, call: Call) -> None: ...

    @route("POST", "/session/{s}")
    async def execute(self, call: Call) -> None: ...

    @route("GET", "/session/{s}/files")
    async def files(self, call: Call) -> None: ...

    @route("POST", "/session/{s}/{any}")
    async def files_of(self, call: Call) -> None: ...

    @route("POST", "/session/{s}/files")
    async def upload(self, call: Call) -> None: ...

    @route("POST", "/session/_/create-from")
    async def template(self, call: Call) -> None: ...

    @route("GET", "/")
    async def root(self, call: Call) -> None: ...

    @route("GET", "/{version}")
    async def version(self, call: Call) -> None: ...


def _handler_of(endpoint: Endpoint) -> RequestHandler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(text=endpoint.name)

    return handle


async def _route(method: str, path: str) -> tuple[str, dict[str, str]]:
    """The name of the endpoint that aiohttp's router finds, and the variable parts of the path."""
    router = web.UrlDispatcher()
    register(router, endpoints_of(Api()), _handler_of)
    request = make_mocked_request(method, path)
    match = await router.resolve(request)
    response = await match.handler(request)
    assert isinstance(response, web.Response)
    return str(response.text), dict(match)


@pytest.mark.parametrize(
    ("method", "path", "name", "params"),
    [
        ("GET", "/session/_/match", "match", {}),
        ("GET", "/session/abc", "get", {"s": "abc"}),
        ("HEAD", "/session/abc", "get", {"s": "abc"}),
        ("REPORT", "/session/abc", "get", {"s": "abc"}),
        ("POST", "/session/a%20b%2Fc", "execute", {"s": "a b/c"}),
        ("GET", "/session/_/files", "files", {"s": "_"}),
        ("GET", "/session/match/files", "files", {"s": "match"}),
        ("GET", "/session/{x}", "get", {"s": "{x}"}),
        ("GET", "/session/a%0Ab", "get", {"s": "a\nb"}),
        ("POST", "/session/_/match", "files_of", {"s": "_", "any": "match"}),
        ("POST", "/session/x/files", "upload", {"s": "x"}),
        ("GET", "/", "root", {}),
        ("GET", "/v7", "version", {"version": "v7"}),
        ("GET", "/session/%ED%95%9C", "get", {"s": "한"}),
    ],
)
async def test_routing(method: str, path: str, name: str, params: dict[str, str]) -> None:
    assert await _route(method, path) == (name, params)


@pytest.mark.parametrize("path", ["/session/x/", "/a/b/c/d", "/session/x/y/z", "/session//files"])
async def test_nothing_there(path: str) -> None:
    with pytest.raises(web.HTTPNotFound):
        await _route("GET", path)


async def test_another_method() -> None:
    with pytest.raises(web.HTTPMethodNotAllowed) as caught:
        await _route("DELETE", "/session/abc")
    assert caught.value.allowed_methods == {"GET", "HEAD", "REPORT", "POST"}


def test_declarations() -> None:
    endpoints = {e.name: e for e in endpoints_of(Api(), tag="t")}
    assert endpoints["match"].summary == "Match."
    assert endpoints["match"].tag == "t"
    assert endpoints["execute"].audited
    assert not endpoints["get"].audited


def test_a_route_declared_twice_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="already registered"):
        register(web.UrlDispatcher(), [*endpoints_of(Api()), *endpoints_of(Api())], _handler_of)
