"""No value of any field is our fault: whatever comes, the answer is a success or a 4xx, never a 5xx."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_sessions_api import PUBLISHED_BODY

NASTY: list[Any] = [
    None,
    True,
    -1,
    2**31,
    2**63,
    10**400,
    1.5,
    1e308,
    "",
    "x" * 5_000,
    "a\0b",
    "\ud800",
    "../../etc/passwd",
    "'; DROP TABLE sessions; --",
    "%s%n",
    "\u202e\U0001f4a9",
    [],
    [[]],
    ["a", 1, None],
    {},
    {"": ""},
    {"a\0": {"b": [{}]}},
    {"cpu": "1e400"},
    {"cpu": "NaN", "mem": "-Infinity"},
    {"mem": "1" * 60},
]


def _paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, dict):
            yield from _paths(inner, (*path, key))


def _with(body: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(body)
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return dict(changed)


_BODY = {**PUBLISHED_BODY, "name": None, "enqueueOnly": True}


@pytest.mark.slow
@pytest.mark.parametrize("path", list(_paths(_BODY)), ids=".".join)
async def test_creation(api: Api, path: tuple[str, ...]) -> None:
    for value in NASTY:
        reply = await api.user.request("POST", "/session", json=_with(_BODY, path, value))
        assert reply.status < 500, (path, value, reply.body)
        if reply.status >= 400:
            assert reply.problem
        else:
            await api.user.request("DELETE", f"/session/{reply.json()['sessionId']}?forced=true")


_REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/session/hostile", {"mode": "query", "code": "", "runId": "r", "options": {"build": "*"}}),
    ("POST", "/session/hostile/complete", {"code": "", "options": {"row": 0, "col": 0, "line": "", "post": ""}}),
    ("GET", "/session/hostile/files", {"path": "."}),
    ("GET", "/session/hostile/download", {"files": ["a"]}),
    ("POST", "/resource/check-presets", {"group": "default", "scaling_group": "default"}),
    ("POST", "/admin/gql", {"query": "{ domains { name } }", "variables": {}, "operationName": None}),
    ("GET", "/session/_/match", {"id": "a"}),
    ("DELETE", "/session/not-there", {"forced": True, "recursive": True}),
    ("PUT", "/manager/status", {"status": "frozen", "force_kill": True}),
]


@pytest.mark.parametrize(("method", "target", "body"), _REQUESTS, ids=[r[1] for r in _REQUESTS])
async def test_other_requests(api: Api, method: str, target: str, body: dict[str, Any]) -> None:
    await api.create(name="hostile")
    for path in _paths(body):
        for value in NASTY:
            reply = await api.user.request(method, target, json=_with(body, path, value))
            assert reply.status < 500 or reply.status == 501, (target, path, value, reply.body)


_TARGETS = [
    "/session/%00",
    "/session/%ff",
    "/session/..%2F..%2Fetc",
    "/session/" + "x" * 6_000,
    "/session/hostile/rename?name=%00%00%00%00",
    "/session/hostile/rename?name=%ed%a0%80abcd",
    "/session/hostile/rename",
    "/session/hostile/files?path=%ff",
    "/session/hostile?owner_access_key=%00",
    "/session/hostile?owner_access_key=" + "A" * 5_000,
    "/session/hostile?a=b&" * 200,
    "/events/session?sessionId=%00",
    "/events/background-task?task_id=%00",
    "/scaling-groups?group=%00",
    "/auth/role?group=%f0%9f%92%a9",
    "/%",
    "/%zz",
    "/session/%",
    "//session//hostile",
    "/session/hostile#fragment",
    "/v7//session",
    "/session/_/logs?taskId=../../etc",
]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH", "REPORT"])
async def test_targets(api: Api, method: str) -> None:
    await api.create(name="hostile")
    for target in _TARGETS:
        reply = await api.user.request(method, target)
        assert reply.status < 500, (method, target, reply.body)


_VARIABLES: dict[str, Any] = {
    "limit": 5,
    "offset": 0,
    "ak": None,
    "status": "RUNNING",
    "filter": 'name == "x"',
    "order": "name",
    "group": None,
    "domain": "default",
}
_QUERY = """query($limit:Int!, $offset:Int!, $ak:String, $status:String, $filter:String, $order:String, $group:String,
  $domain:String) { compute_session_list(limit:$limit, offset:$offset, access_key:$ak, status:$status, filter:$filter,
  order:$order, group_id:$group, domain_name:$domain) { total_count items { id } } }"""
_FILTERS = [
    'created_at > "yesterday"',
    'created_at > "9999-99-99"',
    "created_at < 5",
    'cluster_size == "many"',
    "cluster_size == 1e3",
    'cluster_size in ["a", null, true]',
    'id == "x"',
    "id is null",
    'group_id == "%"',
    'status == "?"',
    'status in ["RUNNING", 5]',
    "status > 5",
    'status ilike "%"',
    'requested_slots contains "cpu"',
    'requested_slots == "x"',
    'environ like "%"',
    "mounts is null",
    'kernels == "x"',
    'version == "x"',
    'name == "' + "%" * 2_000 + '"',
    'name like "\ud800"',
]


async def test_graphql_variables_and_filters(api: Api) -> None:
    for path in _paths(_VARIABLES):
        for value in NASTY:
            reply = await api.user.request(
                "POST", "/admin/gql", json={"query": _QUERY, "variables": _with(_VARIABLES, path, value)}
            )
            _check(reply.status, reply.body, (path, value))
    for client in (api.user, api.admin):
        for text in _FILTERS:
            variables = {**_VARIABLES, "status": None, "filter": text}
            reply = await client.request("POST", "/admin/gql", json={"query": _QUERY, "variables": variables})
            _check(reply.status, reply.body, text)
        for order in ("environ", "id", "requested_slots", "-status", "version"):
            variables = {**_VARIABLES, "status": None, "filter": None, "order": order}
            reply = await client.request("POST", "/admin/gql", json={"query": _QUERY, "variables": variables})
            _check(reply.status, reply.body, order)


def _check(status: int, body: bytes, what: Any) -> None:
    assert status < 500, (what, body)
    if status == 200:
        for error in json.loads(body).get("errors", ()):
            assert error.get("extensions", {}).get("code") != "internal-error", (what, body)
