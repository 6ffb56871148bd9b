"""Signing in with a password, and changing it."""

from __future__ import annotations

import asyncio
from typing import Any

from ai.backend.manager.identity.passwords import MAX_FAILURES, hash_password, verify_password
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_people_api import CREATE, MODIFY, PASSWORD, new_user, signs
from tests.component.manager.api.test_resource_groups_api import ask
from tests.support.signed_http import RawClient, RawReply


async def authorize(api: Api, password: str, email: str = "ann@local", **more: Any) -> RawReply:
    body = {"type": "keypair", "domain": "default", "username": email, "password": password, **more}
    nobody = RawClient(port=api.port, access_key="AKIANOBODY", secret_key="")
    reply: RawReply = await nobody.request("POST", "/auth/authorize", json=body)
    return reply


def test_passwords_are_hashed_with_argon2id() -> None:
    kept = hash_password("ü" * 30)
    assert kept.startswith("$argon2id$")
    assert kept != hash_password("ü" * 30), "each has a salt of its own"
    assert verify_password(kept, "ü" * 30)
    for wrong in ("", "ü" * 29, kept):
        assert not verify_password(kept, wrong)
    assert not verify_password("no hash", "no hash")


async def test_a_password_opens_the_main_keypair(api: Api) -> None:
    await new_user(api, "ann@local")
    told = (await authorize(api, PASSWORD)).json()["data"]
    assert (told["role"], told["status"]) == ("user", "active")
    ann = RawClient(port=api.port, access_key=told["access_key"], secret_key=told["secret_key"])
    assert await signs(ann)
    for wrong in (
        await authorize(api, "another password"),
        await authorize(api, PASSWORD, "nobody@local"),
        await authorize(api, PASSWORD, domain="lab"),
        await authorize(api, PASSWORD, "user@local"),
    ):
        assert wrong.status == 401
        assert "address or the password" in wrong.body.decode()
    body = {"old_password": PASSWORD, "new_password": "a new password", "new_password2": "a new password"}
    for bad in (
        {"new_password2": "x"},
        {"old_password": "wrong password"},
        {"new_password": "x", "new_password2": "x"},
    ):
        assert (await ann.request("POST", "/auth/update-password", json={**body, **bad})).status in (400, 401)
    assert (await ann.request("POST", "/auth/update-password", json=body)).status == 200
    assert (await authorize(api, PASSWORD)).status == 401
    assert (await authorize(api, "a new password")).status == 200

    unsigned = {"username": "ann@local", "current_password": "a new password", "new_password": "the third one"}
    path = "/auth/update-password-no-auth"
    assert (await ann.request("POST", path, json=unsigned)).status == 403, "who need not, signs in"
    assert (await ask(api, MODIFY, e="ann@local", p={"need_password_change": True}))["ok"]
    assert "must be changed" in (await authorize(api, "a new password")).body.decode()
    assert (await ann.request("POST", path, json=unsigned)).status == 200
    assert (await authorize(api, "the third one")).status == 200
    assert (await ask(api, MODIFY, e="ann@local", p={"status": "inactive"}))["ok"]
    assert (await authorize(api, "the third one")).status == 401


async def test_of_many_tries_at_once_no_more_count_than_one_by_one(api: Api) -> None:
    await new_user(api, "ann@local")
    at_once = [authorize(api, f"wrong password {n}") for n in range(3 * MAX_FAILURES)]
    answers = [reply.status for reply in await asyncio.gather(*at_once)]
    assert sorted(answers) == [401] * MAX_FAILURES + [429] * (2 * MAX_FAILURES)


async def test_nobody_tries_for_ever(api: Api) -> None:
    await new_user(api, "ann@local")
    for _ in range(MAX_FAILURES):
        assert (await authorize(api, "wrong password")).status == 401
    refused = await authorize(api, PASSWORD)
    assert refused.status == 429, "the right one is refused too"
    assert int(refused.headers["retry-after"]) > 0
    assert (await authorize(api, PASSWORD, "other@local")).status in (200, 401), "others are not"


async def test_common_passwords_are_refused(api: Api) -> None:
    for common in ("password1", "PassWord", "qwertyuiop", "12345678"):
        refused = await ask(api, CREATE, e="ann@local", p={"password": common})
        assert (refused["ok"], "common" in refused["msg"]) == (False, True), common
    await new_user(api, "ann@local")
    keys = (await authorize(api, PASSWORD)).json()["data"]
    ann = RawClient(port=api.port, access_key=keys["access_key"], secret_key=keys["secret_key"])
    body = {"old_password": PASSWORD, "new_password": "iloveyou1", "new_password2": "iloveyou1"}
    assert (await ann.request("POST", "/auth/update-password", json=body)).json()["data"] == {"password": "common"}
    assert (await authorize(api, PASSWORD)).status == 200
