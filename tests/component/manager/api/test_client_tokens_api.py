"""Every kind of change is made once under its client token; the mechanism itself is tested in infra/http."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.component.manager.api.conftest import Api
from tests.support.signed_http import RawReply

FORM = b'--B\r\nContent-Disposition: form-data; name="src"; filename="a"\r\n\r\n1\r\n--B--\r\n'
UPLOAD = {"body": FORM, "content_type": "multipart/form-data; boundary=B"}
CODE = {"json": {"mode": "query", "code": "out:hi", "runId": "r"}}


def _executions(api: Api) -> int:
    return len(api.agent.executed)


@pytest.mark.parametrize(
    ("method", "path", "more", "status", "count"),
    [
        ("POST", "", CODE, 200, _executions),
        ("POST", "/interrupt", {}, 204, lambda api: api.agent.interrupted),
        ("POST", "/upload", UPLOAD, 204, lambda api: len(api.agent.uploads)),
        ("PATCH", "", {}, 204, lambda api: max(held.attempt for held in api.agent.kernels.values()) - 1),
        ("POST", "/rename?name=other-name", {}, 204, lambda api: 1),
        ("DELETE", "", {}, 200, lambda api: len(api.agent.destroyed)),
    ],
)
async def test_a_change_is_made_once(
    api: Api, method: str, path: str, more: dict[str, Any], status: int, count: Callable[[Api], int]
) -> None:
    await api.create(name="base")

    async def send() -> RawReply:
        headers = {"X-BackendAI-Client-Token": "token"}
        return await api.user.request(method, f"/session/base{path}", headers=headers, **more)

    replies = [*await asyncio.gather(send(), send()), await send()]
    assert {(r.status, r.body) for r in replies} == {(status, replies[0].body)}, [r.body for r in replies]
    assert sorted(r.headers.get("x-backendai-replayed", "") for r in replies) == ["", "true", "true"]
    assert count(api) == 1
    clash = await api.user.request(
        "POST", "/session/base/interrupt", json={}, headers={"X-BackendAI-Client-Token": "token"}
    )
    assert (clash.status, clash.problem) == (422, "client-token-reused")


async def test_somebody_elses_token_is_another_one(api: Api) -> None:
    body = {"image": "python", "name": "same-name"}
    headers = {"X-BackendAI-Client-Token": "token"}
    mine = await api.user.request("POST", "/session", json=body, headers=headers)
    theirs = await api.other.request("POST", "/session", json=body, headers=headers)
    assert mine.json()["sessionId"] != theirs.json()["sessionId"]


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_session_is_created_once(api: Api, monkeypatch: pytest.MonkeyPatch, is_kept: bool) -> None:
    """Double submits, several at once, and one whose server died between the commit and the answer; without a name."""
    store, finish = api.cluster.manager.stores.answers, api.cluster.manager.stores.answers.finish

    async def die(*_: object) -> None:
        raise RuntimeError("killed")

    async def send() -> RawReply:
        headers = {"X-BackendAI-Client-Token": "token"}
        return await api.user.request("POST", "/session", json={"image": "python"}, headers=headers)

    if not is_kept:
        monkeypatch.setattr(store, "finish", die)
    first = await send()
    monkeypatch.setattr(store, "finish", finish)
    replies = [first, *await asyncio.gather(send(), send(), send()), await send()]
    assert {r.json()["sessionId"] for r in replies} == {first.json()["sessionId"]}
    assert await api.cluster.manager.services.sessions.count_active() == 1
    repeated = [r.headers.get("x-backendai-replayed", "") for r in replies[1:]]
    assert sorted(repeated) == (["true"] * 4 if is_kept else ["", "true", "true", "true"])
