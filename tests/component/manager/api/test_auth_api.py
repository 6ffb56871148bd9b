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
    assert (
        await RawClient(port=api.port).request(
            "POST", "/auth/signup", json={"email": "x@local", "password": "a long password"}
        )
    ).problem == "not-supported"


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


async def test_the_ssh_key_of_a_keypair_reaches_its_sessions(api: Api) -> None:
    path = "/auth/ssh-keypair"
    assert (await api.user.request("GET", path)).json() == {"ssh_public_key": ""}
    made = (await api.user.request("PATCH", path)).json()
    public, private = made["ssh_public_key"], made["ssh_private_key"]
    assert public.startswith("ssh-ed25519 AAAA")
    assert public.endswith(" user@local")
    assert private.startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert (await api.user.request("GET", path)).json() == {"ssh_public_key": public}
    assert (await api.gql("{ keypair { ssh_public_key ssh_private_key } }"))["data"]["keypair"] == {
        "ssh_public_key": public,
        "ssh_private_key": None,
    }
    await api.create(name="reachable")
    assert api.agent.created[-1].ssh_public_key == public
    assert (await api.other.request("GET", path)).json() == {"ssh_public_key": ""}

    theirs = {"pubkey": public, "privkey": private}
    assert (await api.other.request("POST", path, json=theirs)).json()["ssh_public_key"] == public
    another = (await api.user.request("PATCH", path)).json()
    assert another["ssh_public_key"] != public, "in the place of the old one"
    for body, field in (
        ({"pubkey": "nonsense"}, "pubkey"),
        ({"pubkey": f'command="rm -r ." {public}'}, "pubkey"),
        ({"pubkey": f"{public}\nssh-rsa AAAA"}, "pubkey"),
        ({"pubkey": public[:60]}, "pubkey"),
        ({"pubkey": "ssh-rsa " + public.split()[1]}, "pubkey"),
        ({**theirs, "privkey": another["ssh_private_key"]}, "privkey"),
        ({**theirs, "privkey": "x"}, "privkey"),
        ({**theirs, "privkey": private.replace("AAAA", "!", 1)}, "privkey"),
    ):
        refused = await api.other.request("POST", path, json=body)
        assert (refused.status, list(refused.json()["data"])) == (400, [field]), body
    assert (await api.other.request("GET", path)).json() == {"ssh_public_key": public}
    await api.create(api.admin, name="unreachable")
    assert api.agent.created[-1].ssh_public_key is None
