from __future__ import annotations

import pytest

from ai.backend.infra.http.errors import MethodNotAllowed, RouteNotFound
from ai.backend.infra.http.routes import Call, RouteTable, endpoints_of, route


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

    @route("POST", "/session/_/create-from")
    async def template(self, call: Call) -> None: ...

    @route("GET", "/")
    async def root(self, call: Call) -> None: ...

    @route("GET", "/{version}")
    async def version(self, call: Call) -> None: ...


@pytest.fixture
def table() -> RouteTable:
    return RouteTable(endpoints_of(Api()))


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
        ("GET", "/", "root", {}),
        ("GET", "/v7", "version", {"version": "v7"}),
        ("GET", "/session/%ED%95%9C", "get", {"s": "한"}),
    ],
)
def test_find(table: RouteTable, method: str, path: str, name: str, params: dict[str, str]) -> None:
    endpoint, found = table.find(method, path)
    assert (endpoint.name, found) == (name, params)


@pytest.mark.parametrize("path", ["/session", "/session/", "/a/b/c/d", "/session/x/nothing"])
def test_nothing_there(table: RouteTable, path: str) -> None:
    with pytest.raises((RouteNotFound, MethodNotAllowed)):
        table.find("PUT", path)


def test_another_method(table: RouteTable) -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        table.find("DELETE", "/session/abc")
    assert caught.value.data["allowed"] == ["GET", "POST"]


def test_declarations() -> None:
    endpoints = {e.name: e for e in endpoints_of(Api(), tag="t")}
    assert endpoints["match"].summary == "Match."
    assert endpoints["match"].tag == "t"
    assert endpoints["execute"].audited
    assert not endpoints["get"].audited


def test_a_route_declared_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        RouteTable([*endpoints_of(Api()), *endpoints_of(Api())])
