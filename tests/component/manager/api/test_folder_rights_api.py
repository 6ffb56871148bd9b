"""Who may do what with folders on which host: every permission against every operation, and how they are set."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ai.backend.common.folders import HostPermission
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_folders_api import call, make
from tests.support.signed_http import RawClient, RawReply

HOST = "local:volume1"
ALL = [permission.value for permission in HostPermission]


async def allow(api: Api, permissions: list[str], *, host: str = HOST) -> None:
    """Set what the domain allows, as the published client does."""
    answer = await api.gql(
        "mutation($name: String!, $input: ModifyDomainInput!) { modify_domain(name: $name, props: $input) { ok msg } }",
        api.admin,
        name="default",
        input={"allowed_vfolder_hosts": json.dumps({host: permissions})},
    )
    assert answer["data"]["modify_domain"]["ok"], answer


async def _share(api: Api) -> None:
    await call(api, "POST", "/data/invite", {"perm": "rw", "emails": ["other@local"]})
    [invitation] = (await call(api, "GET", "/invitations/list", by=api.other)).json()["invitations"]
    await call(api, "POST", "/invitations/accept", {"inv_id": invitation["id"]}, by=api.other)


async def _session(api: Api) -> RawReply:
    return await api.user.request("POST", "/session", json={"image": "python", "config": {"mounts": ["data"]}})


Operation = tuple[str, str, Any]
OPERATIONS: dict[str, tuple[str, str | None, Operation | None]] = {
    "create": ("user", "create-vfolder", ("POST", "", {"name": "more"})),
    "clone": ("user", "create-vfolder", ("POST", "/data/clone", {"target_name": "copy", "target_host": None})),
    "rename": ("user", "modify-vfolder", ("POST", "/data/rename", {"new_name": "newer"})),
    "update-options": ("user", "modify-vfolder", ("POST", "/data/update-options", {"cloneable": True})),
    "mkdir": ("user", "modify-vfolder", ("POST", "/data/mkdir", {"path": "e"})),
    "rename-file": ("user", "modify-vfolder", ("POST", "/data/rename-file", {"target_path": "d", "new_name": "e"})),
    "move-file": ("user", "modify-vfolder", ("POST", "/data/move-file", {"src": "d", "dst": "e"})),
    "delete-files": ("user", "modify-vfolder", ("DELETE", "/data/delete-files", {"files": ["d"], "recursive": True})),
    "restore": ("user", "modify-vfolder", ("POST", "/restore-from-trash-bin", {"id": "thrown"})),
    "delete": ("user", "delete-vfolder", ("DELETE", "/data", None)),
    "purge": ("user", "delete-vfolder", ("POST", "/purge", {"id": "thrown"})),
    "request-upload": ("user", "upload-file", ("POST", "/data/request-upload", {"path": "b", "size": 1})),
    "request-download": ("user", "download-file", ("POST", "/data/request-download", {"path": "f"})),
    "invite": ("user", "invite-others", ("POST", "/data/invite", {"perm": "ro", "emails": ["admin@local"]})),
    "share": (
        "admin",
        "set-user-specific-permission",
        ("POST", "/team/share", {"permission": "rw", "emails": ["user@local"]}),
    ),
    "unshare": ("admin", "set-user-specific-permission", ("DELETE", "/team/unshare", {"emails": ["user@local"]})),
    "change-share": ("user", "set-user-specific-permission", ("POST", "/_/shared", {"vfolder": "data", "perm": "ro"})),
    "mount": ("user", "mount-in-session", None),
    "info": ("user", None, ("GET", "/data", None)),
    "list": ("user", None, ("GET", "", None)),
    "files": ("user", None, ("GET", "/data/files", None)),
    "leave": ("other", None, ("POST", "/data/leave", {})),
    "shares": ("user", None, ("GET", "/_/shared", None)),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_each_operation_needs_its_permission_and_no_other(api: Api, name: str) -> None:
    who, needed, operation = OPERATIONS[name]
    client: RawClient = getattr(api, who)
    await make(api, "data", cloneable=True)
    await make(api, "team", by=api.admin, group="default")
    thrown = await make(api, "thrown")
    await call(api, "DELETE", "/thrown")
    await call(api, "POST", "/data/mkdir", {"path": "d"})
    await call(api, "POST", "/data/request-upload", {"path": "f", "size": 0})
    await _share(api)
    other = (await api.gql("{ user { uuid } }", api.other))["data"]["user"]["uuid"]

    async def do() -> RawReply:
        if operation is None:
            return await _session(api)
        method, path, body = operation
        told = {**body, "user": other} if path == "/_/shared" and body else body
        told = {"id": thrown["id"]} if told == {"id": "thrown"} else told
        return await call(api, method, path, told, by=client)

    if needed is not None:
        await allow(api, [permission for permission in ALL if permission != needed])
        refused = await do()
        assert refused.status == 403, refused.body
        told = refused.json()["data"]
        assert told in ({"host": HOST, "permission": needed}, {"config.mounts": "data: forbidden"})
    await allow(api, [needed] if needed is not None else [])
    done = await do()
    assert done.status < 300, done.body


async def test_what_is_blocked_on_a_volume_nobody_may_do(api: Api) -> None:
    await make(api, "data", cloneable=True)
    api.storage.blocks = {HOST: frozenset({"mount-in-session", "clone-vfolder", "no-such-word"})}
    assert (await _session(api)).status == 403
    clone = await call(api, "POST", "/data/clone", {"target_name": "copy", "target_host": None})
    assert (clone.status, "Nobody may clone" in clone.json()["msg"]) == (403, True)
    api.storage.blocks = {HOST: frozenset({"create-vfolder"})}
    for client in (api.user, api.admin):
        assert (await call(api, "POST", "", {"name": "more"}, by=client)).status == 403
    assert (await _session(api)).status == 201


async def test_domain_group_and_policy_each_open_a_host(api: Api) -> None:
    """Whatever any of the three allows is allowed; nobody but a superadmin sets them."""
    group = (await api.gql("{ groups { id } }"))["data"]["groups"][0]["id"]
    hosts = json.dumps({"local:volume2": ["create-vfolder"]})
    setters: dict[str, tuple[str, str, dict[str, Any]]] = {
        "modify_domain(name: $id, props: $p)": ("superadmins", "String!, $p: ModifyDomainInput!", {"id": "default"}),
        "modify_group(gid: $id, props: $p)": ("administrators", "UUID!, $p: ModifyGroupInput!", {"id": group}),
        "modify_keypair_resource_policy(name: $id, props: $p)": (
            "superadmins",
            "String!, $p: ModifyKeyPairResourcePolicyInput!",
            {"id": "default"},
        ),
    }
    for n, (field, (who, types, variables)) in enumerate(setters.items()):
        query = f"mutation($id: {types}) {{ done: {field} {{ ok msg }} }}"
        refused = (await api.gql(query, p={"allowed_vfolder_hosts": hosts}, **variables))["data"]["done"]
        assert (refused["ok"], refused["msg"].partition(" change ")[0]) == (False, f"Only {who}")
        host = {"host": "local:volume2"}
        assert (await call(api, "POST", "", {"name": f"f{n}", **host})).status == 403
        done = await api.gql(query, api.admin, p={"allowed_vfolder_hosts": hosts}, **variables)
        assert done["data"]["done"]["ok"], done
        assert (await call(api, "POST", "", {"name": f"f{n}", **host})).status == 201
        undone = await api.gql(query, api.admin, p={"allowed_vfolder_hosts": "{}"}, **variables)
        assert undone["data"]["done"]["ok"]
    records = await api.cluster.manager.services.audit.recent(api.cluster.admin)
    assert {"modify_domain", "modify_group", "modify_keypair_resource_policy"} <= {r.operation for r in records}
    assert {r.outcome for r in records if r.operation == "modify_domain"} == {"success", "forbidden"}


@pytest.mark.parametrize(
    "hosts", ["nonsense", '["nowhere"]', '{"local:volume1": ["fly"]}', '{"local:volume1": "upload-file"}', "7"]
)
async def test_malformed_hosts_are_refused_with_a_sentence(api: Api, hosts: str) -> None:
    query = 'mutation($p: ModifyDomainInput!) { modify_domain(name: "default", props: $p) { ok msg } }'
    answer = (await api.gql(query, api.admin, p={"allowed_vfolder_hosts": hosts}))["data"]["modify_domain"]
    assert answer["ok"] is False
    assert answer["msg"].endswith((".", "proxy:volume"))
    told = (await api.gql("{ domain { allowed_vfolder_hosts } }"))["data"]["domain"]["allowed_vfolder_hosts"]
    assert set(json.loads(told)) == {HOST, "far:away"}


async def test_domains_groups_and_policies_are_made_and_changed(api: Api) -> None:
    make_domain = 'mutation($p: DomainInput!) { create_domain(name: "lab", props: $p) { ok msg domain { name } } }'
    made = await api.gql(make_domain, api.admin, p={"description": "d", "allowed_vfolder_hosts": [HOST]})
    assert made["data"]["create_domain"] == {"ok": True, "msg": "success", "domain": {"name": "lab"}}
    again = (await api.gql(make_domain, api.admin, p={}))["data"]["create_domain"]
    assert (again["ok"], "already" in again["msg"], again["domain"]) == (False, True, None)
    told = (await api.gql('{ domain(name: "lab") { allowed_vfolder_hosts } }', api.admin))["data"]["domain"]
    assert json.loads(told["allowed_vfolder_hosts"]) == {HOST: ALL}
    assert [d["name"] for d in (await api.gql("{ domains { name } }", api.admin))["data"]["domains"]] == [
        "default",
        "lab",
    ]
    assert [d["name"] for d in (await api.gql("{ domains { name } }"))["data"]["domains"]] == ["default"]
    query = """mutation($p: GroupInput!) {
      create_group(name: "team", props: $p) { ok msg group { id domain_name name } } }"""
    group = (await api.gql(query, api.admin, p={"domain_name": "default", "description": "", "is_active": True}))[
        "data"
    ]
    gid = group["create_group"]["group"]["id"]
    user = (await api.gql("{ user { uuid } }"))["data"]["user"]["uuid"]
    change = "mutation($g: UUID!, $p: ModifyGroupInput!) { modify_group(gid: $g, props: $p) { ok msg } }"
    for mode, expected in (("add", ["default", "team"]), ("remove", ["default"])):
        done = await api.gql(change, api.admin, g=gid, p={"user_update_mode": mode, "user_uuids": [user]})
        assert done["data"]["modify_group"]["ok"], done
        assert [g["name"] for g in (await api.gql("{ groups { name } }"))["data"]["groups"]] == expected
    for wrong in ({"user_update_mode": "swap"}, {"user_update_mode": "add", "user_uuids": ["x"]}, {"name": "default"}):
        assert not (await api.gql(change, api.admin, g=gid, p=wrong))["data"]["modify_group"]["ok"]
    policy = """mutation($p: CreateKeyPairResourcePolicyInput!) {
      create_keypair_resource_policy(name: "small", props: $p) {
        ok msg resource_policy { name max_vfolder_count } } }"""
    props = {
        "default_for_unspecified": "LIMITED",
        "total_resource_slots": json.dumps({"cpu": "2"}),
        "max_session_lifetime": 0,
        "max_concurrent_sessions": 2,
        "max_concurrent_sftp_sessions": 1,
        "max_containers_per_session": 1,
        "idle_timeout": 0,
        "max_vfolder_count": 3,
        "allowed_vfolder_hosts": json.dumps({HOST: ["upload-file"]}),
    }
    made = (await api.gql(policy, api.admin, p=props))["data"]["create_keypair_resource_policy"]
    assert made == {"ok": True, "msg": "success", "resource_policy": {"name": "small", "max_vfolder_count": 3}}
    remove = "mutation($n: String!) { delete_keypair_resource_policy(name: $n) { ok msg } }"
    for name, ok in (("default", False), ("small", True), ("small", False)):
        assert (await api.gql(remove, api.admin, n=name))["data"]["delete_keypair_resource_policy"]["ok"] is ok
