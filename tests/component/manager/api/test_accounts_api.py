"""Signing up, the policy of passwords, rotation of keypairs, networks of keypairs, administrators of projects."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from ai.backend.manager.identity.settings import PasswordPolicy, SignUpSettings
from ai.backend.plugin.hooks import AbstractHook, Account, HookDenied, SignUpRequest
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_folders_api import call
from tests.component.manager.api.test_passwords_api import authorize
from tests.component.manager.api.test_people_api import (
    MODIFY,
    NEW_KEY,
    PASSWORD,
    SET_KEY,
    new_client,
    new_user,
    signs,
)
from tests.component.manager.api.test_resource_groups_api import ask
from tests.support.signed_http import RawClient, RawReply

ROTATE = "mutation($k: String!) { rotate_keypair(access_key: $k) { ok msg keypair { access_key secret_key } } }"
GROUP = """mutation($g: UUID!, $m: String!, $u: [String]!) {
  modify_group(gid: $g, props: {user_update_mode: $m, user_uuids: $u}) { ok msg group { admins } } }"""


class OpenHouse(AbstractHook):
    """Admits addresses of one domain, and delivers tokens into a list."""

    def __init__(self) -> None:
        super().__init__(None)
        self.sent: list[tuple[str, str]] = []

    async def admit_sign_up(self, request: SignUpRequest) -> bool:
        if request.email.startswith("evil"):
            raise HookDenied("Not you.")
        return request.email.endswith("@site.example")

    async def deliver_verification(self, request: SignUpRequest, token: str) -> bool:
        self.sent.append((request.email, token))
        return True

    async def check_password(self, account: Account, password: str) -> None:
        if "password123" in password:
            raise HookDenied("That password was in a leak.")


@pytest.fixture
def house(api: Api) -> OpenHouse:
    services, hook = api.cluster.manager.services, OpenHouse()
    services.hooks.plugins = [("house", hook)]
    services.sign_up._settings = SignUpSettings(mode="hooks")
    return hook


async def _post(api: Api, path: str, **body: Any) -> RawReply:
    return await RawClient(port=api.port).request("POST", path, json=body)


async def test_who_signs_up_proves_the_address(api: Api, house: OpenHouse) -> None:
    body = {"email": "ann@site.example", "password": PASSWORD, "full_name": "Ann"}
    made = await _post(api, "/auth/signup", **body)
    assert (made.status, made.json()) == (200, {"status": "before-verification"})
    assert (await authorize(api, PASSWORD, "ann@site.example")).status == 401
    [(email, token)] = house.sent
    assert email == "ann@site.example"
    for wrong in ({"token": token + "x"}, {"password": "another password"}, {"token": "a.b.c"}, {"token": ""}):
        assert (await _post(api, "/auth/verify-email", **{"token": token, "password": PASSWORD, **wrong})).status == 401
    assert (await _post(api, "/auth/verify-email", token=token, password=PASSWORD)).json() == {"status": "active"}
    assert (await authorize(api, PASSWORD, "ann@site.example")).status == 200
    assert (await _post(api, "/auth/verify-email", token=token, password=PASSWORD)).status == 401, "it is good once"
    shown = await ask(api, '{ user(email: "ann@site.example") { role full_name groups { name } } }')
    assert shown == {"role": "user", "full_name": "Ann", "groups": [{"name": "default"}]}


async def test_signing_up_tells_nothing_of_other_accounts(api: Api, house: OpenHouse) -> None:
    await new_user(api, "bob@site.example")
    replies = [
        await _post(api, "/auth/signup", email=email, password=PASSWORD)
        for email in ("bob@site.example", "new@site.example")
    ]
    assert replies[0].body == replies[1].body
    assert [bool(token) for _, token in house.sent] == [False, True]
    refused = [
        ({"email": "x@else.example"}, 403),
        ({"email": "evil@site.example"}, 403),
        ({"email": "no address"}, 400),
        ({"password": "short"}, 400),
        ({"password": "my password123"}, 403),
    ]
    for more, status in refused:
        reply = await _post(api, "/auth/signup", **{"email": "c@site.example", "password": PASSWORD, **more})
        assert reply.status == status, more


async def test_nobody_prepares_an_account_for_the_owner_of_an_address(api: Api, house: OpenHouse) -> None:
    for password in ("the attacker's own", "the owner's own"):
        assert (await _post(api, "/auth/signup", email="owner@site.example", password=password)).status == 200
    (_, first), (_, second) = house.sent
    for password in ("the attacker's own", "the owner's own"):
        assert (await _post(api, "/auth/verify-email", token=first, password=password)).status == 401
    assert (await _post(api, "/auth/verify-email", token=second, password="the attacker's own")).status == 401
    assert (await _post(api, "/auth/verify-email", token=second, password="the owner's own")).status == 200


async def test_the_policy_of_passwords(api: Api) -> None:
    services = api.cluster.manager.services
    services.passwords._policy = PasswordPolicy(min_kinds=3, history=2, max_age_days=30)
    made = 'mutation($p: UserInput!) { create_user(email: "ann@local", props: $p) { ok msg } }'
    assert not (await ask(api, made, p={"password": "only small letters"}))["ok"]
    assert (await ask(api, made, p={"password": "First passw0rd"}))["ok"]
    path, change = "/auth/update-password-no-auth", {"username": "ann@local", "current_password": "First passw0rd"}
    assert (await _post(api, path, **change, new_password="Second passw0rd")).status == 403, "it is good still"

    user = await services.identity.user(api.cluster.admin, email="ann@local")
    long_ago = services.clock.now() - timedelta(days=31)
    await services.stores.identities.change_user(user.uuid, password_changed_at=long_ago)
    expired = await authorize(api, "First passw0rd")
    assert expired.json()["detail"].startswith("Password expired on 20")
    assert (await _post(api, path, **change, new_password="First passw0rd")).status == 400
    assert (await _post(api, path, **change, new_password="Second passw0rd")).status == 200
    assert (await authorize(api, "Second passw0rd")).status == 200
    keys = (await authorize(api, "Second passw0rd")).json()["data"]
    ann = RawClient(port=api.port, access_key=keys["access_key"], secret_key=keys["secret_key"])

    async def changed(old: str, new: str) -> int:
        body = {"old_password": old, "new_password": new, "new_password2": new}
        return (await ann.request("POST", "/auth/update-password", json=body)).status

    assert await changed("Second passw0rd", "First passw0rd") == 400, "one of the last two"
    assert await changed("Second passw0rd", "Third passw0rd") == 200
    assert await changed("Third passw0rd", "First passw0rd") == 200
    assert not (await ask(api, MODIFY, e="ann@local", p={"password": "Third passw0rd"}))["ok"], "nor by administrators"


async def test_refusals_do_not_tell_who_exists(api: Api) -> None:
    """The work is the same: one verification and the same reads, whether the user exists, is inactive or has no
    password."""
    passwords, verified = api.cluster.manager.services.passwords, 0

    def slow_verify(stored: str, given: str) -> bool:
        nonlocal verified
        verified += 1
        time.sleep(0.02)  # in a thread, as argon2 runs
        return stored == given

    passwords._verify = slow_verify
    await new_user(api, "off@local", status="inactive")
    bodies = set()
    for email in ("nobody@local", "off@local", "user@local", "other@local"):
        reply = await authorize(api, "wrong password", email)
        bodies.add((reply.status, reply.json()["detail"]))
    assert bodies == {(401, "The address or the password is wrong.")}
    assert verified == 4


async def test_a_rotated_keypair_has_a_new_secret_at_once(api: Api) -> None:
    session = await api.create(api.other)
    rotated = (await api.other.request("POST", "/auth/keypair/rotate")).json()
    assert rotated["access_key"] == api.other.access_key
    assert not await signs(api.other)
    renewed = RawClient(port=api.port, access_key=rotated["access_key"], secret_key=rotated["secret_key"])
    assert await signs(renewed)
    assert (await renewed.request("GET", f"/session/{session['sessionId']}")).status == 200, "its sessions stay its own"
    assert not (await ask(api, ROTATE, by=renewed, k=api.user.access_key))["ok"]
    by_admin = await ask(api, ROTATE, k=api.other.access_key)
    assert by_admin["ok"]
    assert not await signs(renewed)


async def test_a_keypair_has_networks_of_its_own(api: Api) -> None:
    made = await ask(api, NEW_KEY, u="other@local", p={"allowed_client_ip": ["192.0.2.0/24"]})
    keypair = made["keypair"]
    client = RawClient(port=api.port, access_key=keypair["access_key"], secret_key=keypair["secret_key"])
    assert not await signs(client)
    forged = await client.request("GET", "/auth/role", headers={"X-Forwarded-For": "192.0.2.7"})
    assert forged.status == 403, "only a trusted proxy says who asks"
    assert (await ask(api, SET_KEY, k=keypair["access_key"], p={"allowed_client_ip": ["127.0.0.0/8"]}))["ok"]
    assert await signs(client)
    assert (await ask(api, MODIFY, e="other@local", p={"allowed_client_ip": ["192.0.2.0/24"]}))["ok"]
    assert not await signs(client), "both lists hold"
    assert not (await ask(api, SET_KEY, k=keypair["access_key"], p={"allowed_client_ip": ["10.0.0"]}))["ok"]


async def test_members_administrate_their_project_alone(api: Api) -> None:
    groups: Any = await ask(api, "{ groups { id name } }")
    group = next(item["id"] for item in groups if item["name"] == "default")
    ann, bob = await new_user(api, "ann@local"), await new_user(api, "bob@local", group_ids=[])
    client = await new_client(api, "ann@local")
    folder = {"name": "shared", "host": "local:volume1", "group": "default"}
    assert (await call(api, "POST", "", folder, by=client)).status == 403
    assert not (await ask(api, GROUP, by=client, g=group, m="add-admins", u=[ann["uuid"]]))["ok"]
    assert not (await ask(api, GROUP, g=group, m="add-admins", u=[bob["uuid"]]))["ok"], "no member"
    made = await ask(api, GROUP, g=group, m="add-admins", u=[ann["uuid"]])
    assert (made["ok"], made["group"]["admins"]) == (True, [ann["uuid"]])

    role = (await client.request("GET", "/auth/role?group=default")).json()
    assert (role["global_role"], role["group_role"]) == ("user", "admin")
    assert (await call(api, "POST", "", folder, by=client)).status == 201
    assert (await ask(api, GROUP, by=client, g=group, m="add", u=[bob["uuid"]]))["ok"]
    assert (await ask(api, GROUP, by=client, g=group, m="remove", u=[bob["uuid"]]))["ok"]
    for mode in ("add-admins", "remove-admins"):
        assert not (await ask(api, GROUP, by=client, g=group, m=mode, u=[ann["uuid"]]))["ok"]
    rename = 'mutation($g: UUID!) { modify_group(gid: $g, props: {name: "mine"}) { ok msg } }'
    assert not (await ask(api, rename, by=client, g=group))["ok"]
    assert not (await ask(api, MODIFY, by=client, e="bob@local", p={"full_name": "x"}))["ok"]

    lab = await ask(api, 'mutation { create_group(name: "lab", props: {domain_name: "default"}) { group { id } } }')
    other = lab["group"]["id"]
    assert not (await ask(api, GROUP, by=client, g=other, m="add", u=[ann["uuid"]]))["ok"], "of another project"
    assert (await ask(api, GROUP, g=group, m="remove-admins", u=[ann["uuid"]]))["ok"]
    assert (await call(api, "POST", "", {**folder, "name": "more"}, by=client)).status == 403, "at once"


async def test_sessions_of_those_who_may_are_told_of_sudo(api: Api) -> None:
    store = api.cluster.manager.stores.sessions

    async def environ() -> dict[str, str]:
        body = {
            "image": "python",
            "name": f"s{time.monotonic_ns()}",
            "config": {"environ": {"SUDO_SESSION_ENABLED": "1"}},
        }
        made = (await api.other.request("POST", "/session", json=body)).json()
        session = await store.get(made["sessionId"])
        assert session is not None
        return dict(session.environ)

    assert "SUDO_SESSION_ENABLED" not in await environ(), "users cannot say so themselves"
    assert (await ask(api, MODIFY, e="other@local", p={"sudo_session_enabled": True}))["ok"]
    assert (await environ())["SUDO_SESSION_ENABLED"] == "1"
