"""What administrators do with folders: owners, quotas, model stores, unmanaged paths, volumes and the trash."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.folders import FolderStatus
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.manager.folders.facade import Folders
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_folders_api import call, create, directories, make, names

HOST = "local:volume1"


def folders_of(api: Api) -> Folders:
    folders = api.cluster.manager.services.folders
    assert folders is not None
    return folders


async def user_id(api: Api, email: str) -> str:
    return str(
        (await api.gql("query($e: String) { user(email: $e) { uuid } }", api.admin, e=email))["data"]["user"]["uuid"]
    )


# ---- owners ----


async def test_a_folder_changes_hands(api: Api) -> None:
    folder = await make(api, "data")
    await call(api, "POST", "/data/mkdir", {"path": "kept"})
    body = {"vfolder": folder["id"], "user_email": "other@local"}
    for client in (api.user, api.other):
        assert (await call(api, "POST", "/_/change-ownership", body, by=client)).status == 403
    assert (await call(api, "POST", "/_/change-ownership", body, by=api.admin)).json() == {"msg": "changed"}
    assert (await call(api, "POST", "/_/change-ownership", body, by=api.admin)).status == 200, "twice is once"
    assert await names(api) == []
    [item] = (await call(api, "GET", "", by=api.other)).json()
    assert (item["name"], item["is_owner"], item["user_email"]) == ("data", True, "other@local")
    assert item["quota_scope_id"] == f"user:{api.cluster.user.user_id}", "it counts where it lies"
    files = (await call(api, "GET", "/data/files", by=api.other)).json()["items"]
    assert [f["name"] for f in files] == ["kept"]
    again = await make(api, "data")
    clash = await call(api, "POST", "/_/change-ownership", {**body, "vfolder": again["id"]}, by=api.admin)
    assert clash.problem == "vfolder-already-exists"
    unknown = await call(api, "POST", "/_/change-ownership", {**body, "user_email": "nobody@local"}, by=api.admin)
    assert unknown.status == 404
    assert (await call(api, "DELETE", "/data", by=api.other)).status == 204


async def test_a_folder_in_use_keeps_its_owner(api: Api) -> None:
    folder = await make(api, "data")
    assert (await create(api, mounts=["data"])).status == 201
    body = {"vfolder": folder["id"], "user_email": "other@local"}
    busy = await call(api, "POST", "/_/change-ownership", body, by=api.admin)
    assert (busy.status, "mounts it" in busy.json()["msg"]) == (409, True)
    team = await make(api, "team", by=api.admin, group="default")
    group = await call(api, "POST", "/_/change-ownership", {**body, "vfolder": team["id"]}, by=api.admin)
    assert group.status == 409


async def test_shares_go_on_and_the_new_owners_ends(api: Api) -> None:
    folder = await make(api, "data")
    await call(api, "POST", "/data/invite", {"perm": "ro", "emails": ["other@local", "admin@local"]})
    for client in (api.other, api.admin):
        [invitation] = (await call(api, "GET", "/invitations/list", by=client)).json()["invitations"]
        await call(api, "POST", "/invitations/accept", {"inv_id": invitation["id"]}, by=client)
    body = {"vfolder": folder["id"], "user_email": "other@local"}
    assert (await call(api, "POST", "/_/change-ownership", body, by=api.admin)).status == 200
    [share] = (await call(api, "GET", "/_/shared", by=api.other)).json()["shared"]
    assert share["shared_to"]["email"] == "admin@local"
    assert (await call(api, "GET", "/data", by=api.other)).json()["permission"] == "wd"
    assert (await call(api, "GET", f"/{folder['id']}")).status == 404


# ---- unmanaged paths ----


async def test_unmanaged_paths_are_refused_until_a_setting_opens_them(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"name": "raw", "unmanaged_path": "/mnt/scratch/set/one"}
    closed = await call(api, "POST", "", wanted, by=api.admin)
    assert (closed.status, "folders.unmanaged-roots" in closed.json()["msg"]) == (403, True)
    monkeypatch.setattr(folders_of(api).service._unmanaged, "_roots", ["/mnt/scratch"])
    assert (await call(api, "POST", "", wanted)).status == 403, "superadmins only"
    for path in (
        "/mnt",
        "/mnt/scratch2",
        "/mnt/scratch/../etc",
        "mnt/scratch",
        "/mnt/scratch/",
        "/etc",
        "/mnt/scratch/\n",
    ):
        refused = await call(api, "POST", "", {**wanted, "unmanaged_path": path}, by=api.admin)
        assert refused.status == 403, path
    made = await make(api, **wanted, by=api.admin)
    assert (made["unmanaged_path"], made["status"]) == ("/mnt/scratch/set/one", "ready")
    assert directories(api) == 0
    assert (await call(api, "GET", "/raw", by=api.admin)).json()["numFiles"] is None
    for method, path, body in (
        ("GET", "/raw/files", None),
        ("POST", "/raw/mkdir", {"path": "d"}),
        ("POST", "/raw/request-upload", {"path": "a", "size": 0}),
        ("POST", "/raw/request-download", {"path": "a"}),
    ):
        refused = await call(api, method, path, body, by=api.admin)
        assert (refused.status, "mount it" in refused.json()["msg"]) == (400, True)
    session = {"image": "python", "config": {"mounts": ["raw", "raw/deep:/deep"]}}
    assert (await api.admin.request("POST", "/session", json=session)).status == 201
    sources = [m.source for m in api.agent.created[0].mounts]
    assert sources == ["/mnt/scratch/./set/one", "/mnt/scratch/./set/one/deep"], "resolved beneath the root"
    monkeypatch.setattr(folders_of(api).service._unmanaged, "_roots", [])
    again = await api.admin.request("POST", "/session", json={"image": "python", "config": {"mounts": ["raw"]}})
    assert (again.status, "'raw' cannot be mounted" in again.json()["msg"]) == (403, True)


# ---- the model store ----


async def test_everybody_reads_and_clones_the_models_of_a_store(api: Api) -> None:
    query = '{ groups_by_name(name: "model-store") { id type allowed_vfolder_hosts } }'
    group = (await api.gql(query, api.admin))["data"]["groups_by_name"][0]
    assert group["type"] == "MODEL_STORE"
    assert json.loads(group["allowed_vfolder_hosts"])[HOST] == ["mount-in-session", "download-file"]
    general = await call(api, "POST", "", {"name": "bert", "group": "model-store"}, by=api.admin)
    assert (general.status, "usage mode model" in general.json()["msg"]) == (400, True)
    await make(api, "bert", by=api.admin, group="model-store", usage_mode="model")
    assert (await call(api, "POST", "", {"name": "x", "group": "model-store", "usage_mode": "model"})).status == 404
    assert [(i["name"], i["permission"]) for i in (await call(api, "GET", "")).json()] == [("bert", "ro")]
    root = '{ vfolder_list(limit: 9, offset: 0, filter: "(usage_mode == \\"MODEL\\")") { items { name } total_count } }'
    assert (await api.gql(root))["data"]["vfolder_list"] == {"items": [{"name": "bert"}], "total_count": 1}
    assert (await call(api, "POST", "/bert/mkdir", {"path": "d"})).status == 403
    assert (await call(api, "POST", "/bert/mkdir", {"path": "weights"}, by=api.admin)).status == 201
    assert [f["name"] for f in (await call(api, "GET", "/bert/files")).json()["items"]] == ["weights"]
    cloned = await call(api, "POST", "/bert/clone", {"target_name": "mine", "target_host": None, "usage_mode": "model"})
    assert cloned.status == 200, cloned.body
    mine: dict[str, Any] = {}
    for _ in range(500):
        mine = (await call(api, "GET", "/mine")).json()
        if mine["status"] == "ready":
            break
        await asyncio.sleep(0.02)
    assert (mine["user"], mine["group"], mine["usage_mode"]) == (str(api.cluster.user.user_id), None, "model")
    assert (await create(api, mounts=["bert"])).status == 201
    [mount] = api.agent.created[0].mounts
    assert mount.read_only
    groups = (await api.gql('{ groups(type: ["GENERAL"]) { name } }', api.admin))["data"]["groups"]
    assert [g["name"] for g in groups] == ["default"]


# ---- quotas ----

GET = """query($h: String!, $s: String!) { quota_scope(storage_host_name: $h, quota_scope_id: $s) {
  quota_scope_id storage_host_name details { usage_bytes usage_count hard_limit_bytes enforcement } } }"""
SET = """mutation($h: String!, $s: String!, $p: QuotaScopeInput!) {
  set_quota_scope(storage_host_name: $h, quota_scope_id: $s, props: $p) {
    quota_scope { quota_scope_id storage_host_name details { hard_limit_bytes } } } }"""
UNSET = """mutation($h: String!, $s: String!) {
  unset_quota_scope(storage_host_name: $h, quota_scope_id: $s) { quota_scope { details { hard_limit_bytes } } } }"""


async def test_a_quota_scope_is_read_set_and_unset(api: Api) -> None:
    scope = f"user:{api.cluster.user.user_id}"
    asked: dict[str, Any] = {"h": HOST, "s": scope}
    nothing = {"usage_bytes": 0, "usage_count": None, "hard_limit_bytes": None, "enforcement": "soft"}
    assert (await api.gql(GET, **asked))["data"]["quota_scope"]["details"] == nothing
    await make(api, "data")
    (next(api.storage.root.glob("volume1/*/*")) / "file").write_bytes(b"x" * 100)
    full = {"usage_bytes": 100, "usage_count": 1, "hard_limit_bytes": None, "enforcement": "soft"}
    assert (await api.gql(GET, **asked))["data"]["quota_scope"] == {
        "quota_scope_id": scope,
        "storage_host_name": HOST,
        "details": full,
    }
    refused = await api.gql(SET, p={"hard_limit_bytes": 1}, **asked)
    assert refused["errors"][0]["extensions"]["code"] == "forbidden"
    limit = 1 << 40
    done = await api.gql(SET, api.admin, p={"hard_limit_bytes": limit}, **asked)
    assert done["data"]["set_quota_scope"]["quota_scope"]["details"] == {"hard_limit_bytes": limit}
    assert api.storage.limits[HOST, QuotaScopeId.parse(scope)] == limit
    folder = (await call(api, "GET", "/_/quota", {"folder_host": HOST, "id": "data"})).json()
    assert (folder["limit_bytes"], folder["used_bytes"], folder["enforcement"]) == (limit, 100, "soft")
    body = {"folder_host": HOST, "id": (await call(api, "GET", "/data")).json()["id"], "input": {"size_bytes": 5}}
    assert (await call(api, "POST", "/_/quota", body)).status == 403
    assert (await call(api, "POST", "/_/quota", body, by=api.admin)).json() == {"size_bytes": 5}
    assert api.storage.limits[HOST, QuotaScopeId.parse(scope)] == 5
    undone = await api.gql(UNSET, api.admin, **asked)
    assert undone["data"]["unset_quota_scope"]["quota_scope"]["details"] == {"hard_limit_bytes": None}
    records = await api.cluster.manager.services.audit.recent(api.cluster.admin)
    assert {"set_quota_scope", "unset_quota_scope"} <= {r.operation for r in records}


@pytest.mark.parametrize(
    ("host", "scope", "code"),
    [
        ("nowhere", "user:{me}", "invalid-api-params"),
        ("no:where", "user:{me}", "not-found"),
        (HOST, "group:{me}", "invalid-api-params"),
        (HOST, "user:x", "invalid-api-params"),
        (HOST, "user:{nobody}", "not-found"),
        (HOST, "project:{nobody}", "not-found"),
    ],
)
async def test_quotas_that_cannot_be_set(api: Api, host: str, scope: str, code: str) -> None:
    told = scope.format(me=api.cluster.user.user_id, nobody=uuid4())
    answer = await api.gql(SET, api.admin, h=host, s=told, p={"hard_limit_bytes": 1})
    assert answer["errors"][0]["extensions"]["code"] == code
    assert api.storage.limits == {}


async def test_who_sees_a_quota_scope(api: Api) -> None:
    group = (await api.gql("{ groups { id } }"))["data"]["groups"][0]["id"]
    for scope, client, sees in (
        (f"user:{api.cluster.user.user_id}", api.other, False),
        (f"user:{api.cluster.user.user_id}", api.admin, True),
        (f"project:{group}", api.other, True),
        (f"project:{uuid4()}", api.other, False),
    ):
        answer = await api.gql(GET, client, h=HOST, s=scope)
        assert ("errors" not in answer) is sees, answer
    for limit in (-1, 2**53):
        answer = await api.gql(SET, api.admin, h=HOST, s=f"project:{group}", p={"hard_limit_bytes": limit})
        assert "number" in answer["errors"][0]["message"]


async def test_policies_bound_what_has_no_limit_of_its_own(api: Api) -> None:
    mine, theirs = await mine_and_theirs(api)
    query = "mutation($n: String!, $p: {kind}!) {{ {field}(name: $n, props: $p) {{ ok msg }} }}"
    create_policy = query.format(kind="CreateUserResourcePolicyInput", field="create_user_resource_policy")
    change_policy = query.format(kind="ModifyUserResourcePolicyInput", field="modify_user_resource_policy")
    sizes = {"max_quota_scope_size": 1000, "max_vfolder_count": 2}
    assert not (await api.gql(create_policy, n="default", p=sizes))["data"]["create_user_resource_policy"]["ok"]
    done = await api.gql(create_policy, api.admin, n="default", p=sizes)
    assert done["data"]["create_user_resource_policy"]["ok"], done
    await make(api, "data")
    assert api.storage.limits[HOST, mine] == 1000, "before anything is put into it"
    await make(api, "more")
    assert (await call(api, "POST", "", {"name": "third"})).status == 406
    await make(api, "data", by=api.other)
    await api.gql(SET, api.admin, h=HOST, s=str(mine), p={"hard_limit_bytes": 7})
    changed = await api.gql(change_policy, api.admin, n="default", p={"max_quota_scope_size": 2000})
    assert changed["data"]["modify_user_resource_policy"]["ok"]
    for _ in range(500):
        if api.storage.limits[HOST, theirs] == 2000:
            break
        await asyncio.sleep(0.02)
    assert api.storage.limits[HOST, theirs] == 2000
    assert api.storage.limits[HOST, mine] == 7, "its own limit stays"
    await api.gql(UNSET, api.admin, h=HOST, s=str(mine))
    assert api.storage.limits[HOST, mine] == 2000, "back to the policy"
    told = (await api.gql("{ user_resource_policies { name max_quota_scope_size } }", api.admin))["data"]
    assert told["user_resource_policies"] == [{"name": "default", "max_quota_scope_size": 2000}]


async def mine_and_theirs(api: Api) -> tuple[QuotaScopeId, QuotaScopeId]:
    first, second = [QuotaScopeId.parse(f"user:{await user_id(api, who)}") for who in ("user@local", "other@local")]
    return first, second


async def test_a_limit_that_a_proxy_missed_is_told_later(api: Api) -> None:
    """And a manager that knows nothing of what was told tells it again."""
    scope = QuotaScopeId.parse(f"user:{api.cluster.user.user_id}")
    await make(api, "data")
    loop = folders_of(api).quota_loop
    store = api.cluster.manager.stores.folders
    assert store is not None
    await store.set_scope_limit(HOST, scope, 42)
    api.storage.down = True
    await loop.once()
    api.storage.down = False
    await loop.once()
    assert api.storage.limits[HOST, scope] == 42
    del api.storage.limits[HOST, scope]
    await loop.once()
    assert (HOST, scope) not in api.storage.limits, "told once is enough"
    loop._applied.clear()
    await loop.once()
    assert api.storage.limits[HOST, scope] == 42


# ---- volumes ----


async def test_superadmins_look_at_volumes(api: Api) -> None:
    query = """query($l: Int!, $o: Int!, $f: String, $r: String) {
      storage_volume_list(limit: $l, offset: $o, filter: $f, order: $r) {
        items { id backend capabilities hardware_metadata performance_metric usage } total_count } }"""
    assert (await api.gql(query, l=10, o=0))["errors"][0]["extensions"]["code"] == "forbidden"
    found = (await api.gql(query, api.admin, l=2, o=0))["data"]["storage_volume_list"]
    assert ([v["id"] for v in found["items"]], found["total_count"]) == (["far:away", "local:volume1"], 3)
    first = found["items"][0]
    assert list(first) == ["id", "backend", "capabilities", "hardware_metadata", "performance_metric", "usage"]
    assert json.loads(first["usage"]) == {"capacity_bytes": 1 << 40, "used_bytes": 1 << 30}
    assert json.loads(first["hardware_metadata"])["status"] == "healthy"
    some = await api.gql(query, api.admin, l=9, o=0, f='id ilike "local:%"', r="-id")
    assert [v["id"] for v in some["data"]["storage_volume_list"]["items"]] == ["local:volume2", "local:volume1"]
    one = await api.gql("query($h: String!) { storage_volume(id: $h) { id path fsprefix } }", api.admin, h=HOST)
    assert one["data"]["storage_volume"]["fsprefix"] == "."
    none = await api.gql('{ storage_volume(id: "no:where") { id } }', api.admin)
    assert none["data"] == {"storage_volume": None}
    metric = await call(api, "GET", "/_/perf-metric", {"folder_host": HOST}, by=api.admin)
    assert metric.json()["metric"]["io_bytes_read"] == 4096
    mounts = (await call(api, "GET", "/_/mounts", by=api.admin)).json()
    assert (mounts["manager"]["success"], sorted(mounts["storage_proxy"])) == (True, ["far", "local"])
    for method, path, body in (
        ("GET", "/_/fstab", {"agent_id": None}),
        ("POST", "/_/mounts", {"name": "x", "fs_location": "nfs:/x", "options": "", "edit_fstab": False}),
        ("DELETE", "/_/mounts", {"name": "x", "edit_fstab": False}),
    ):
        assert (await call(api, method, path, body, by=api.admin)).status == 501
    for path in ("/_/perf-metric?folder_host=local:volume1", "/_/mounts", "/_/fstab"):
        assert (await call(api, "GET", path)).status == 403


# ---- lists ----


async def test_lists_are_bounded_by_role_and_narrowed_by_arguments(api: Api) -> None:
    for n in range(3):
        await make(api, f"mine{n}")
    await make(api, "theirs", by=api.other)
    await make(api, "team", by=api.admin, group="default")

    async def listed(by: Any = None, *, root: str = "vfolder_list", **arguments: Any) -> tuple[list[str], int]:
        told = "".join(f", {name}: {json.dumps(value)}" for name, value in ({"offset": 0} | arguments).items())
        page = (await api.gql(f"{{ {root}(limit: 2{told}) {{ items {{ name }} total_count }} }}", by))["data"][root]
        return [item["name"] for item in page["items"]], page["total_count"]

    assert await listed(order="+name") == (["mine0", "mine1"], 4)
    assert await listed(order="name", offset=2) == (["mine2", "team"], 4)
    assert await listed(order_key="name", order_asc=False) == (["team", "mine2"], 4)
    assert await listed(api.admin, order="-name") == (["theirs", "team"], 5)
    key = api.cluster.user.access_key
    assert await listed(api.admin, access_key=key, order="name") == (["mine0", "mine1"], 3)
    assert await listed(api.other, access_key=key) == ([], 0)
    assert await listed(api.admin, domain_name="nowhere") == ([], 0)
    assert await listed(filter='name ilike "%2" & permission == "READ_WRITE"') == (["mine2"], 1)
    assert await listed(root="vfolder_project_list") == (["team"], 1)
    assert await listed(root="vfolder_invited_list") == ([], 0)
    group = (await api.gql("{ groups { id } }"))["data"]["groups"][0]["id"]
    assert await listed(group_id=group, order="name") == (["team"], 1)
    assert (await listed(group_id=str(uuid4())))[1] == 0
    folder = (await call(api, "GET", "/mine0")).json()["id"]
    one = "query($i: UUID!) { vfolder(id: $i) { name unmanaged_path } }"
    assert (await api.gql(one, i=folder))["data"]["vfolder"] == {"name": "mine0", "unmanaged_path": None}
    assert (await api.gql(one, api.other, i=folder))["data"]["vfolder"] is None


# ---- the trash ----


async def test_the_trash_empties_itself(api: Api) -> None:
    for name in ("old", "new", "back"):
        await make(api, name)
        assert (await call(api, "DELETE", f"/{name}")).status == 204
    store = api.cluster.manager.stores.folders
    assert store is not None
    rows = {folder.name: folder for folder in await store.by_status({FolderStatus.DELETE_PENDING})}
    long_ago = rows["old"].status_changed - timedelta(days=31)
    for name in ("old", "back"):
        await store.change(rows[name].id, status_changed=long_ago)
    assert (await call(api, "POST", "/restore-from-trash-bin", {"id": str(rows["back"].id)})).status == 204
    loop = folders_of(api).loop
    await asyncio.gather(*(loop.once() for _ in range(3)))
    assert await names(api, trash=True) == ["new"]
    assert await names(api) == ["back"]
    found = await store.get(rows["old"].id)
    assert found is not None
    assert (found.folder.status, directories(api)) == (FolderStatus.DELETE_COMPLETE, 2)
    loop._trash_days = 0
    await store.change(rows["new"].id, status_changed=long_ago)
    await loop.once()
    assert await names(api, trash=True) == ["new"], "0 keeps it for ever"
