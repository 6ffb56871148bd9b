"""Leaving, and the log of errors."""

from __future__ import annotations

from typing import Any

from tests.component.manager.api.conftest import Api
from tests.support.signed_http import RawClient, RawReply


async def login(api: Api, password: str, **more: Any) -> RawReply:
    body = {"type": "keypair", "domain": "default", "username": "other@local", "password": password, **more}
    return await RawClient(port=api.port).request("POST", "/auth/authorize", json=body)


async def test_who_leaves_is_locked_out_at_once(api: Api) -> None:
    body = {"email": "other@local", "password": "a long password"}
    assert (await api.user.request("POST", "/auth/signout", json=body)).status == 403
    assert (await api.other.request("POST", "/auth/signout", json={**body, "password": "wrong one"})).status == 401
    assert (await api.other.request("POST", "/auth/signout", json=body)).status == 200
    assert (await api.other.request("GET", "/auth/role")).status == 401
    assert (await login(api, "a long password")).status == 401
    assert (await api.admin.request("POST", "/auth/signout", json={"password": "x"})).status == 403
    assert (await RawClient(port=api.port).request("POST", "/auth/signup", json={})).problem == "not-supported"


async def test_errors_are_reported_and_seen_within_bounds(api: Api) -> None:
    body = {
        "severity": "error",
        "source": "client",
        "message": "it broke",
        "context_lang": "python",
        "context_env": '{"a": 1}',
        "request_url": "/x",
        "request_status": 500,
        "traceback": "line 1",
    }
    made = await api.user.request("POST", "/logs/error", json=body)
    assert made.json()["success"] is True
    assert (await api.user.request("POST", "/logs/error", json={**body, "context_env": "[1]"})).status == 400
    await api.other.request("POST", "/logs/error", json={**body, "message": "elsewhere"})
    query = "/logs/error?mark_read=True&page_size=20&page_no=1"
    mine = (await api.user.request("GET", query)).json()
    assert [(one["message"], one["is_read"], mine["count"]) for one in mine["logs"]] == [("it broke", False, 1)]
    assert isinstance(mine["logs"][0]["created_at"], float)
    assert mine["logs"][0]["context_env"] == {"a": 1}
    everybody = (await api.admin.request("GET", "/logs/error?mark_read=False&page_size=20&page_no=1")).json()
    assert [(one["message"], one["is_read"]) for one in everybody["logs"]] == [("elsewhere", False), ("it broke", True)]
    number = made.json()["log_id"]
    assert (await api.other.request("POST", f"/logs/error/{number}/clear")).status == 404
    assert (await api.user.request("POST", f"/logs/error/{number}/clear")).json() == {"success": True}
    assert (await api.user.request("GET", query)).json()["logs"] == []
    assert (await api.user.request("POST", "/logs/error/x/clear")).status == 404
