"""Calls on folders as spec 03-08 describes them, and the folders of others that administrators reach."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ai.backend.manager.folders.schemas import MAX_BYTES
from tests.component.manager.api.conftest import Api
from tests.support.signed_http import RawClient, RawReply


async def call(api: Api, method: str, path: str, body: Any = None, *, by: RawClient | None = None) -> RawReply:
    return await (by or api.user).request(method, f"/folders{path}", json=body)


async def make(api: Api, name: str, *, by: RawClient | None = None, **options: Any) -> dict[str, Any]:
    reply = await call(api, "POST", "", {"name": name, **options}, by=by)
    assert reply.status == 201, reply.body
    folder: dict[str, Any] = reply.json()
    return folder


async def client_of(api: Api, email: str, **props: Any) -> RawClient:
    services = api.cluster.manager.services
    _, pair = await services.users.create_user(api.cluster.admin, email, "a long password", props)
    credentials = await services.identity.credentials(pair.access_key)
    assert credentials is not None
    return RawClient(port=api.port, access_key=pair.access_key, secret_key=credentials.secret_key)


async def test_a_share_ends_only_if_the_request_says_so(api: Api) -> None:
    folder = await make(api, "team")
    await call(api, "POST", "/team/invite", {"emails": ["other@local"], "perm": "ro"})
    (invitation,) = (await call(api, "GET", "/invitations/list", by=api.other)).json()["invitations"]
    await call(api, "POST", "/invitations/accept", {"inv_id": invitation["id"]}, by=api.other)
    (share,) = (await call(api, "GET", "/_/shared")).json()["shared"]
    body = {"vfolder": folder["id"], "user": share["shared_to"]["uuid"]}
    refused = await call(api, "POST", "/_/shared", body)
    assert (refused.status, refused.json()["data"]) == (400, {"perm": "required"})
    assert len((await call(api, "GET", "/_/shared")).json()["shared"]) == 1
    assert (await call(api, "POST", "/_/shared", {**body, "perm": None})).json() == {"msg": "ended"}
    assert (await call(api, "GET", "/_/shared")).json()["shared"] == []


async def test_a_share_or_clone_says_its_permission_and_host(api: Api) -> None:
    await make(api, "team", by=api.admin, group="default")
    refused = await call(api, "POST", "/team/share", {"emails": ["user@local"]}, by=api.admin)
    assert (refused.status, refused.json()["data"]) == (400, {"permission": "required"})
    await make(api, "source", cloneable=True)
    refused = await call(api, "POST", "/source/clone", {"target_name": "copy"})
    assert (refused.status, refused.json()["data"]) == (400, {"target_host": "required"})
    done = await call(api, "POST", "/source/clone", {"target_name": "copy", "target_host": None})
    assert (done.status, done.json()["host"]) == (200, "local:volume1")


@pytest.mark.parametrize("quota", [2**63, 2**53, str(2**64), "9e", f"{2**60}m"])
async def test_a_quota_beyond_what_json_can_say_is_refused(api: Api, quota: Any) -> None:
    reply = await call(api, "POST", "", {"name": "q", "quota": quota})
    assert (reply.status, reply.problem) == (400, "invalid-api-params")
    assert "quota" in reply.json()["data"]
    assert (await make(api, "q", quota=MAX_BYTES))["max_size"] == MAX_BYTES


async def test_a_rename_says_whether_it_means_a_directory(api: Api) -> None:
    await make(api, "data")
    await call(api, "POST", "/data/mkdir", {"path": "d"})
    await call(api, "POST", "/data/request-upload", {"path": "f", "size": 0})
    for target, is_dir, status in (("d", False, 400), ("f", True, 400), ("d", True, 200), ("f", False, 200)):
        body = {"target_path": target, "new_name": f"{target}2", "is_dir": is_dir}
        assert (await call(api, "POST", "/data/rename-file", body)).status == status, body
    gone = await call(api, "POST", "/data/rename-file", {"target_path": "x", "new_name": "y", "is_dir": True})
    assert gone.status == 404


async def test_files_have_whole_seconds_and_the_time_of_the_last_access(api: Api) -> None:
    await make(api, "data")
    await call(api, "POST", "/data/request-upload", {"path": "f", "size": 0})
    (entry,) = json.loads((await call(api, "GET", "/data/files")).json()["files"])
    assert {name: type(entry[name]) for name in ("mtime", "ctime", "atime")} == dict.fromkeys(
        ("mtime", "ctime", "atime"), int
    )


async def test_an_administrator_outside_of_the_group_reaches_its_folders_by_name(api: Api) -> None:
    made = await api.gql(
        'mutation { create_group(name: "lab", props: {domain_name: "default"}) { ok msg group { id } } }', api.admin
    )
    group_id = made["data"]["create_group"]["group"]["id"]
    hosts = json.dumps({"local:volume1": ["create-vfolder", "modify-vfolder", "delete-vfolder", "upload-file"]})
    await api.gql(
        "mutation($g: UUID!, $h: JSONString) { modify_group(gid: $g, props: {allowed_vfolder_hosts: $h}) { ok msg } }",
        api.admin, g=group_id, h=hosts,
    )  # fmt: skip
    folder = await make(api, "results", by=api.admin, group="lab")
    info = await call(api, "GET", "/results", by=api.admin)
    assert (info.status, info.json()["id"]) == (200, folder["id"])
    listed = (await call(api, "GET", f"?group_id={group_id}", by=api.admin)).json()
    assert [item["name"] for item in listed] == ["results"]
    assert (await call(api, "GET", "?group_id=lab", by=api.admin)).json() == listed
    assert (await call(api, "GET", "", by=api.admin)).json() == []
    assert (await call(api, "GET", "/results")).status == 404
    assert (await call(api, "GET", f"?group_id={group_id}")).json() == []
    assert (await call(api, "POST", "/results/rename", {"new_name": "renamed"}, by=api.admin)).status == 201


async def test_an_administrator_of_a_domain_has_no_rights_on_folders_of_superadmins(api: Api) -> None:
    domain_admin = await client_of(api, "chief@local", role="admin")
    folder = await make(api, ".ssh", by=api.admin)
    for method, path, body in (
        ("GET", "", None),
        ("POST", "/request-upload", {"path": "authorized_keys", "size": 0}),
        ("POST", "/request-download", {"path": "id_rsa"}),
        ("POST", "/rename", {"new_name": "x"}),
        ("DELETE", "", None),
    ):
        reply = await call(api, method, f"/{folder['id']}{path}", body, by=domain_admin)
        assert (reply.status, reply.problem) == (404, "vfolder-not-found"), (method, path)
    mine = await make(api, "mine")
    assert (await call(api, "POST", f"/{mine['id']}/rename", {"new_name": "x"}, by=domain_admin)).status == 201
    everything = {"id": folder["id"]}
    assert (await call(api, "DELETE", "", everything, by=domain_admin)).status == 404
