"""Members and administrators of projects over GraphQL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_people_api import MODIFY, new_client, new_user
from tests.component.manager.api.test_resource_groups_api import ask
from tests.support.signed_http import RawClient

LIST = """query($g: UUID!, $f: String, $o: String) { group_member_list(group_id: $g, limit: 10, offset: 0, filter: $f,
  order: $o) { total_count items { uuid email full_name role status is_admin live_sessions } } }"""
CHANGE = """mutation($g: UUID!, $m: String!, $e: [String]) {
  modify_group(gid: $g, props: {user_update_mode: $m, user_emails: $e}) { ok msg } }"""


async def default_group(api: Api) -> str:
    groups: Any = await ask(api, "{ groups { id name } }")
    found: str = next(item["id"] for item in groups if item["name"] == "default")
    return found


async def members(api: Api, by: RawClient | None = None, **variables: Any) -> dict[str, dict[str, Any]]:
    page = await ask(api, LIST, by, **variables)
    assert page["total_count"] == len(page["items"])
    return {item["email"]: item for item in page["items"]}


async def test_administrators_list_add_and_remove_members_by_address(api: Api) -> None:
    group = await default_group(api)
    await new_user(api, "ann@local")
    await new_user(api, "bob@local", group_ids=[])
    assert not (await members(api, g=group))["ann@local"]["is_admin"]
    assert (await ask(api, CHANGE, g=group, m="add-admins", e=["ann@local"]))["ok"]
    ann = await new_client(api, "ann@local")
    assert "bob@local" not in await members(api, ann, g=group)
    assert (await ask(api, CHANGE, ann, g=group, m="add", e=["bob@local"]))["ok"]
    listed = await members(api, ann, g=group)
    assert (listed["ann@local"]["is_admin"], listed["bob@local"]["is_admin"]) == (True, False)
    assert list(listed) == sorted(listed), "by address"
    assert list(await members(api, ann, g=group, f='email ilike "%bob%"')) == ["bob@local"]
    assert list(await members(api, ann, g=group, o="-email")) == sorted(listed, reverse=True)
    for address in ("nobody@local", "bob@local.", ""):
        refused = await ask(api, CHANGE, ann, g=group, m="add", e=[address])
        assert not refused["ok"], address
    assert (await ask(api, CHANGE, ann, g=group, m="remove", e=["bob@local"]))["ok"]
    assert "bob@local" not in await members(api, ann, g=group)
    assert not (await ask(api, CHANGE, ann, g=group, m="add-admins", e=["other@local"]))["ok"], "nobody appoints peers"


async def test_what_a_member_would_leave_behind_is_counted(api: Api) -> None:
    group = await default_group(api)
    await api.create(api.other, name="task-one")
    await api.create(api.other, name="task-two")
    await api.create(api.user, name="mine")
    listed = await members(api, g=group)
    assert (listed["other@local"]["live_sessions"], listed["user@local"]["live_sessions"]) == (2, 1)
    assert (await ask(api, CHANGE, g=group, m="remove", e=["other@local"]))["ok"]
    assert (await api.other.request("GET", "/session/task-one")).status == 200, "they go on"
    refused = await api.other.request("POST", "/session", json={"image": "python", "name": "task-three"})
    assert refused.status in (403, 404), "no others start"


async def test_members_are_shown_to_those_alone_who_administrate_them(api: Api) -> None:
    group = await default_group(api)
    lab = (await ask(api, 'mutation { create_group(name: "lab", props: {}) { group { id } } }'))["group"]["id"]
    await new_user(api, "ann@local", group_ids=[lab])
    assert (await ask(api, CHANGE, g=lab, m="add-admins", e=["ann@local"]))["ok"]
    ann = await new_client(api, "ann@local")
    assert list(await members(api, ann, g=lab)) == ["ann@local"]
    for client, named in ((api.user, group), (ann, group), (api.user, lab)):
        reply = await api.gql(LIST, client, g=named)
        assert reply["data"]["group_member_list"] is None
        assert reply["errors"]
    assert not (await ask(api, CHANGE, ann, g=group, m="add", e=["ann@local"]))["ok"], "of another project"
    assert not (await ask(api, CHANGE, api.user, g=lab, m="add", e=["user@local"]))["ok"]


async def test_who_is_monitor_or_administrator_of_another_domain(api: Api) -> None:
    group = await default_group(api)
    await ask(api, 'mutation { create_domain(name: "far", props: {}) { ok } }')
    await new_user(api, "boss@far", domain_name="far", role="admin", group_ids=[])
    await new_user(api, "eve@local", role="monitor")
    eve, boss = await new_client(api, "eve@local"), await new_client(api, "boss@far")
    assert "user@local" in await members(api, eve, g=group)
    assert not (await ask(api, CHANGE, eve, g=group, m="add", e=["eve@local"]))["ok"]
    assert (await api.gql(LIST, boss, g=group))["data"]["group_member_list"] is None
    assert not (await ask(api, CHANGE, boss, g=group, m="add", e=["boss@far"]))["ok"]
    assert not (await ask(api, CHANGE, g=group, m="add", e=["boss@far"]))["ok"], "members are of the project's domain"


@pytest.mark.parametrize(
    "part",
    [{"f": 'resource_policy == "default"'}, {"f": '(email == "a") & (totp_activated is true)'}, {"o": "created_at"}],
)
async def test_other_fields_of_users_are_not_guessed_by_filters(api: Api, part: dict[str, str]) -> None:
    reply = await api.gql(LIST, api.admin, g=await default_group(api), **part)
    assert reply["data"]["group_member_list"] is None
    assert "found and ordered" in str(reply["errors"]) or "filter" in str(reply["errors"])


async def test_an_administrator_of_a_project_removes_no_other_one(api: Api) -> None:
    group = await default_group(api)
    for email in ("ann@local", "bob@local"):
        await new_user(api, email)
    assert (await ask(api, CHANGE, g=group, m="add-admins", e=["ann@local", "bob@local"]))["ok"]
    ann = await new_client(api, "ann@local")
    assert not (await ask(api, CHANGE, ann, g=group, m="remove", e=["bob@local"]))["ok"]
    assert (await ask(api, CHANGE, ann, g=group, m="remove", e=["ann@local"]))["ok"], "but may leave"
    assert not (await ask(api, CHANGE, ann, g=group, m="remove", e=["bob@local"]))["ok"]
    assert (await ask(api, MODIFY, e="bob@local", p={"full_name": "Bob"}))["ok"]
