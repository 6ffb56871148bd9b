"""Virtual folders over REST, as the published client and the Web UI ask for them."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest

from ai.backend.common.structs import replace
from tests.component.manager.api.conftest import Api
from tests.support.signed_http import RawClient, RawReply


async def call(api: Api, method: str, path: str, body: Any = None, *, by: RawClient | None = None) -> RawReply:
    return await (by or api.user).request(method, f"/folders{path}", json=body)


async def make(api: Api, name: str, *, by: RawClient | None = None, **options: Any) -> dict[str, Any]:
    reply = await call(api, "POST", "", {"name": name, **options}, by=by)
    assert reply.status == 201, reply.body
    told: dict[str, Any] = reply.json()
    return told


async def names(api: Api, *, by: RawClient | None = None, **query: Any) -> list[str]:
    return [item["name"] for item in (await call(api, "GET", "", query or None, by=by)).json()]


def directories(api: Api) -> int:
    return len([p for p in api.storage.root.glob("*/*/*") if p.is_dir()])


# ---- life ----


async def test_a_folder_as_the_published_client_makes_it(api: Api) -> None:
    reply = await call(
        api,
        "POST",
        "",
        {
            "name": "My Data",
            "host": "local:volume1",
            "unmanaged_path": None,
            "group": None,
            "usage_mode": "general",
            "permission": "rw",
            "quota": "0",
            "cloneable": False,
        },
    )
    assert reply.status == 201
    made = reply.json()
    assert (made["name"], made["host"], made["status"]) == ("My Data", "local:volume1", "ready")
    assert (made["is_owner"], made["permission"], made["ownership_type"]) == (True, "wd", "user")
    assert made["user"] == str(api.cluster.user.user_id)
    assert made["quota_scope_id"] == f"user:{api.cluster.user.user_id}"
    assert directories(api) == 1
    info = (await call(api, "GET", "/My%20Data")).json()
    assert info["id"] == made["id"]
    assert (info["numFiles"], info["type"], info["creator"]) == (0, "user", "user@local")
    assert (await call(api, "GET", f"/{UUID(made['id']).hex}")).json()["name"] == "My Data"
    assert await names(api) == ["My Data"]


async def test_names_are_unique_for_each_owner_over_all_hosts(api: Api) -> None:
    await make(api, "same", host="local:volume1")
    again = await call(api, "POST", "", {"name": "same", "host": "far:away"})
    assert (again.status, again.problem) == (400, "vfolder-already-exists")
    await make(api, "same", by=api.other)
    assert await names(api) == ["same"]
    replies = await asyncio.gather(*(call(api, "POST", "", {"name": "race"}) for _ in range(8)))
    assert sorted(r.status for r in replies) == [201] + [400] * 7
    assert directories(api) == 3


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"name": "../up"}, 400, "invalid-name"),
        ({"name": "-rf"}, 400, "invalid-name"),
        ({"name": "x", "host": "nowhere"}, 400, "invalid-api-params"),
        ({"name": "x", "host": "local:volume2"}, 403, "forbidden"),
        ({"name": "x", "group": "default"}, 403, "forbidden"),
        ({"name": "x", "group": "nobody"}, 404, "not-found"),
        ({"name": "x", "quota": "a lot"}, 400, "invalid-api-params"),
        ({"name": "x", "unmanaged_path": "/etc"}, 403, "forbidden"),
    ],
)
async def test_what_cannot_be_made(api: Api, body: dict[str, Any], status: int, problem: str) -> None:
    reply = await call(api, "POST", "", body)
    assert (reply.status, reply.problem) == (status, problem)
    assert directories(api) == 0


async def test_the_number_of_folders_is_limited(api: Api) -> None:
    store = api.cluster.manager.stores.identities
    policy = (await store.policies(name="default"))[0]
    await store.put(replace(policy, max_vfolder_count=2))
    replies = await asyncio.gather(*(call(api, "POST", "", {"name": f"f{n}"}) for n in range(5)))
    assert sorted(r.status for r in replies) == [201, 201, 406, 406, 406]
    assert directories(api) == 2
    thrown = (await names(api))[0]
    assert (await call(api, "DELETE", f"/{thrown}")).status == 204
    await make(api, "room-again")
    found = (await call(api, "GET", "/_/id", {"name": thrown})).json()
    assert (await call(api, "POST", "/restore-from-trash-bin", found)).status == 406, "the trash is no way around it"
    assert (await call(api, "DELETE", "/room-again")).status == 204
    assert (await call(api, "POST", "/restore-from-trash-bin", found)).status == 204


async def test_trash_gives_the_name_back_and_restores(api: Api) -> None:
    first = await make(api, "data")
    assert (await call(api, "DELETE", "/data")).status == 204
    assert await names(api) == []
    assert await names(api, trash=True) == ["data"]
    assert (await call(api, "GET", "/_/id", {"name": "data"})).json() == {"id": first["id"]}
    assert (await call(api, "GET", "/data/files")).status == 409
    second = await make(api, "data")
    assert (await call(api, "GET", "/_/id", {"name": "data"})).json() == {"id": second["id"]}
    short = UUID(first["id"]).hex
    taken = await call(api, "POST", "/restore-from-trash-bin", {"id": short})
    assert taken.problem == "vfolder-already-exists"
    assert (await call(api, "POST", "/data/rename", {"new_name": "newer"})).status == 201
    assert (await call(api, "POST", "/restore-from-trash-bin", {"vfolder_id": short})).status == 204
    assert sorted(await names(api)) == ["data", "newer"]
    live = await call(api, "POST", "/purge", {"id": short})
    assert (live.status, live.json()["data"]) == (409, {"status": "ready"})
    assert (await call(api, "DELETE", "", {"id": short})).status == 204
    assert (await call(api, "POST", "/purge", {"id": short})).status == 204
    for _ in range(500):
        if (await call(api, "GET", f"/{short}")).status == 404:
            break
        await asyncio.sleep(0.02)
    assert directories(api) == 1


async def test_options_change(api: Api) -> None:
    await make(api, "data")
    assert (await call(api, "POST", "/data/update-options", {"cloneable": True, "permission": "ro"})).status == 201
    assert (await call(api, "POST", "/data/update-options", {"cloneable": None, "permission": None})).status == 201
    item = (await call(api, "GET", "")).json()[0]
    assert (item["cloneable"], item["permission"]) == (True, "wd"), "an owner may always write"


async def test_hosts(api: Api) -> None:
    told = (await call(api, "GET", "/_/hosts")).json()
    assert (told["default"], told["allowed"]) == ("local:volume1", ["far:away", "local:volume1"])
    assert told["volume_info"]["local:volume1"]["sftp_scaling_groups"] == []
    assert (await call(api, "GET", "/_/all-hosts")).status == 403
    every = (await call(api, "GET", "/_/all_hosts", by=api.admin)).json()
    assert every["allowed"] == ["local:volume1", "local:volume2", "far:away"]
    assert (await call(api, "GET", "/_/allowed_types")).json() == ["user", "group"]


# ---- whose ----


OPERATIONS = [
    ("GET", "/{f}", None),
    ("DELETE", "/{f}", None),
    ("DELETE", "", {"id": "{f}"}),
    ("POST", "/{f}/rename", {"new_name": "mine"}),
    ("POST", "/{f}/update-options", {"cloneable": True}),
    ("POST", "/{f}/clone", {"target_name": "copy", "target_host": None}),
    ("GET", "/{f}/files", None),
    ("POST", "/{f}/mkdir", {"path": "d"}),
    ("POST", "/{f}/request-upload", {"path": "a", "size": 1}),
    ("POST", "/{f}/request-download", {"path": "a"}),
    ("POST", "/{f}/rename-file", {"target_path": "a", "new_name": "b"}),
    ("POST", "/{f}/move-file", {"src": "a", "dst": "b"}),
    ("DELETE", "/{f}/delete-files", {"files": ["a"]}),
    ("POST", "/{f}/invite", {"perm": "rw", "emails": ["admin@local"]}),
    ("POST", "/{f}/share", {"permission": "rw", "emails": ["admin@local"]}),
    ("DELETE", "/{f}/unshare", {"emails": ["admin@local"]}),
    ("POST", "/{f}/leave", {}),
    ("GET", "/_/shared", {"vfolder_id": "{f}"}),
    ("POST", "/_/shared", {"vfolder": "{f}", "user": str(uuid4()), "perm": "rw"}),
    ("POST", "/purge", {"id": "{f}"}),
    ("POST", "/restore-from-trash-bin", {"id": "{f}"}),
    ("GET", "/_/id", {"name": "{f}"}),
]


@pytest.mark.parametrize("by_name", [True, False])
async def test_somebody_elses_folder_is_not_found_by_any_operation(api: Api, by_name: bool) -> None:
    folder = await make(api, "secret")
    ref = "secret" if by_name else folder["id"]
    for method, path, body in OPERATIONS:
        wanted = json.loads(json.dumps(body).replace("{f}", ref))
        reply = await call(api, method, path.replace("{f}", ref), wanted, by=api.other)
        assert (reply.status, reply.problem) == (404, "vfolder-not-found"), (method, path)
    assert (await call(api, "GET", "/secret")).json()["status"] == "ready"
    everything = await call(api, "GET", "", {"all": True}, by=api.other)
    assert everything.status == 403
    assert await names(api, by=api.admin, all=True) == ["secret"]
    assert (await call(api, "GET", f"/{folder['id']}", by=api.admin)).json()["is_owner"] is False


async def test_host_permissions_are_asked_for_each_operation(api: Api) -> None:
    await make(api, "data")
    await call(api, "POST", "/data/request-upload", {"path": "a", "size": 0})
    store = api.cluster.manager.stores.identities
    domain = await store.domain("default")
    assert domain is not None
    every = list(domain.allowed_vfolder_hosts["local:volume1"])
    needs = {
        "create-vfolder": ("POST", "", {"name": "more"}),
        "modify-vfolder": ("POST", "/data/mkdir", {"path": "d"}),
        "upload-file": ("POST", "/data/request-upload", {"path": "b", "size": 1}),
        "download-file": ("POST", "/data/request-download", {"path": "a"}),
        "invite-others": ("POST", "/data/invite", {"perm": "ro", "emails": ["other@local"]}),
        "set-user-specific-permission": ("POST", "/_/shared", {"vfolder": "data", "user": str(uuid4()), "perm": "ro"}),
        "delete-vfolder": ("DELETE", "/data", None),
    }
    for permission, (method, path, body) in needs.items():
        left = [p for p in every if p != permission]
        await store.put(replace(domain, allowed_vfolder_hosts={"local:volume1": left}))
        reply = await call(api, method, path, body)
        assert (reply.status, reply.json()["data"]["permission"]) == (403, permission)
    assert set(needs) | {"mount-in-session"} == set(every)
    mount = await api.user.request("POST", "/session", json={"image": "python", "config": {"mounts": ["data"]}})
    assert mount.status != 403
    await store.put(replace(domain, allowed_vfolder_hosts={"local:volume1": ["create-vfolder"]}))
    mount = await api.user.request("POST", "/session", json={"image": "python", "config": {"mounts": ["data"]}})
    assert (mount.status, mount.json()["data"]) == (403, {"config.mounts": "data: forbidden"})


# ---- files ----


async def test_files(api: Api) -> None:
    await make(api, "data")
    made = await call(api, "POST", "/data/mkdir", {"path": "p/q", "parents": True, "exist_ok": False})
    assert made.json() == {"results": {"success": [{"item": "p/q", "msg": None}], "failed": []}}
    some = await call(api, "POST", "/data/mkdir", {"path": ["r", "p/q"], "parents": False, "exist_ok": False})
    assert (some.status, [r["item"] for r in some.json()["results"]["failed"]]) == (207, ["p/q"])
    none = await call(api, "POST", "/data/mkdir", {"path": ["p"], "parents": False, "exist_ok": False})
    assert none.status == 400
    ticket = (await call(api, "POST", "/data/request-upload", {"path": "p/empty", "size": 0})).json()
    assert ticket["url"].endswith("/upload")
    listing = (await call(api, "GET", "/data/files", {"path": "p"})).json()
    assert [f["filename"] for f in json.loads(listing["files"])] == ["empty", "q"]
    assert [(i["name"], i["type"]) for i in listing["items"]] == [("empty", "FILE"), ("q", "DIRECTORY")]
    page = (await call(api, "GET", "/data/files?path=p&limit=1")).json()
    assert ([i["name"] for i in page["items"]], page["cursor"]) == (["empty"], "1")
    assert (await call(api, "POST", "/data/request-download", {"file": "p/empty", "archive": False})).status == 200
    assert (await call(api, "POST", "/data/request-download", {"path": "p"})).problem == "wrong-kind-of-file"
    assert (await call(api, "POST", "/data/request-download", {"path": "p", "archive": True})).status == 200
    assert (await call(api, "POST", "/data/request-download", {"path": "gone"})).problem == "file-not-found"
    renamed = await call(api, "POST", "/data/rename-file", {"target_path": "p/empty", "new_name": "e"})
    assert renamed.status == 200
    assert (await call(api, "POST", "/data/move-file", {"src": "p/e", "dst": "r"})).status == 200
    directory = await call(api, "DELETE", "/data/delete-files", {"files": ["p"], "recursive": False})
    assert (directory.status, directory.problem) == (400, "wrong-kind-of-file")
    assert (await call(api, "DELETE", "/data/delete-files", {"files": ["p"], "recursive": True})).status == 200
    left = (await call(api, "GET", "/data/files", {"path": "r"})).json()["items"]
    assert [item["name"] for item in left] == ["e"]
    assert (await call(api, "GET", "/data")).json()["numFiles"] == 1


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a\0b", "x" * 300, "", "."])
async def test_paths_that_leave_the_folder_reach_no_proxy(api: Api, path: str) -> None:
    await make(api, "data")
    api.storage.calls.clear()
    for body in (("request-upload", {"path": path, "size": 0}), ("mkdir", {"path": path})):
        assert (await call(api, "POST", f"/data/{body[0]}", body[1])).status == 400
    assert (await call(api, "DELETE", "/data/delete-files", {"files": [path], "recursive": True})).status == 400
    assert api.storage.calls == []


async def test_a_proxy_that_does_not_answer_leaves_nothing(api: Api) -> None:
    await make(api, "data")
    api.storage.down = True
    made = await call(api, "POST", "", {"name": "more", "host": "local:volume1"})
    assert made.status in (404, 503)
    assert (await call(api, "GET", "/data/files")).problem == "unavailable"
    info = (await call(api, "GET", "/data")).json()
    assert (info["name"], info["numFiles"]) == ("data", None)
    api.storage.down = False
    assert await names(api) == ["data"]
    await make(api, "more")


# ---- others ----


async def test_an_invitation_from_its_sending_to_leaving(api: Api) -> None:
    folder = await make(api, "data")
    invited = await call(api, "POST", "/data/invite", {"perm": "ro", "user_ids": ["other@local", "nobody@local"]})
    assert invited.json() == {"invited_ids": ["other@local"]}
    again = await call(api, "POST", "/data/invite", {"perm": "rw", "user_ids": ["other@local"]})
    assert again.json() == {"invited_ids": []}
    assert (await call(api, "POST", "/data/invite", {"perm": "rw", "emails": []})).status == 400
    assert (await call(api, "POST", "/data/invite", {"perm": "rw", "emails": ["nobody@local"]})).status == 404
    sent = (await call(api, "GET", "/invitations/list-sent")).json()["invitations"]
    [invitation] = (await call(api, "GET", "/invitations/list", by=api.other)).json()["invitations"]
    assert sent == [invitation]
    assert invitation["inviter"] == "user@local"
    assert (invitation["perm"], invitation["vfolder_name"]) == ("ro", "data")
    assert invitation["vfolder_id"] == folder["id"]
    path = f"/invitations/update/{invitation['id']}"
    assert (await call(api, "POST", path, {"perm": "rw"}, by=api.other)).status == 404, "not theirs to change"
    assert (await call(api, "POST", path, {"perm": "rw"})).status == 200
    inv_id = {"inv_id": invitation["id"]}
    assert (await call(api, "POST", "/invitations/accept", inv_id)).status == 404, "not theirs to accept"
    assert (await call(api, "POST", "/invitations/accept", inv_id, by=api.other)).status == 200
    assert (await call(api, "POST", "/invitations/accept", inv_id, by=api.other)).status == 404
    [item] = (await call(api, "GET", "", by=api.other)).json()
    assert (item["name"], item["is_owner"], item["permission"]) == ("data", False, "rw")
    [share] = (await call(api, "GET", "/_/shared")).json()["shared"]
    assert (share["shared_to"]["email"], share["perm"], share["owner"]) == ("other@local", "rw", "user@local")
    told = {"vfolder": folder["id"], "user": share["shared_to"]["uuid"], "perm": "ro"}
    assert (await call(api, "POST", "/_/shared", told)).status == 200
    assert (await call(api, "POST", "/data/mkdir", {"path": "x"}, by=api.other)).problem == "forbidden"
    for method, rest, body in (
        ("DELETE", "", None),
        ("POST", "/rename", {"new_name": "x"}),
        ("POST", "/invite", {"emails": ["a@b"]}),
    ):
        assert (await call(api, method, f"/data{rest}", body, by=api.other)).status == 403
    assert (await call(api, "POST", "/data/leave", {})).status == 400, "one's own folder"
    assert (await call(api, "POST", "/data/leave", {"shared_user_uuid": None}, by=api.other)).status == 200
    assert await names(api, by=api.other) == []


async def test_invitations_that_are_declined_or_clash(api: Api) -> None:
    await make(api, "data")
    await call(api, "POST", "/data/invite", {"perm": "ro", "emails": ["other@local"]})
    [invitation] = (await call(api, "GET", "/invitations/list", by=api.other)).json()["invitations"]
    inv_id = {"inv_id": invitation["id"]}
    await make(api, "data", by=api.other)
    clash = await call(api, "POST", "/invitations/accept", inv_id, by=api.other)
    assert (clash.status, clash.problem) == (400, "vfolder-already-exists")
    assert (await call(api, "DELETE", "/invitations/delete", inv_id, by=api.other)).status == 200
    assert (await call(api, "GET", "/invitations/list", by=api.other)).json() == {"invitations": []}
    again = await call(api, "POST", "/data/invite", {"perm": "ro", "emails": ["other@local"]})
    assert again.json() == {"invited_ids": ["other@local"]}, "who declined may be asked again"
    await call(api, "DELETE", "/data")
    assert (await call(api, "GET", "/invitations/list", by=api.other)).json() == {"invitations": []}


async def test_a_folder_of_a_group(api: Api) -> None:
    folder = await make(api, "team", by=api.admin, group="default", permission="ro")
    assert (folder["ownership_type"], folder["user"], folder["group_name"]) == ("group", None, "default")
    [item] = (await call(api, "GET", "")).json()
    assert (item["name"], item["permission"], item["is_owner"]) == ("team", "ro", False)
    assert (await call(api, "POST", "/team/mkdir", {"path": "d"})).status == 403
    assert (await call(api, "POST", "/team/share", {"permission": "rw", "emails": ["user@local"]})).status == 403
    shared = await call(api, "POST", "/team/share", {"permission": "rw", "emails": ["user@local"]}, by=api.admin)
    assert (shared.status, shared.json()) == (201, {"shared_emails": ["user@local"]})
    assert (await call(api, "POST", "/team/mkdir", {"path": "d"})).status == 201
    assert (await call(api, "POST", "/team/mkdir", {"path": "e"}, by=api.other)).status == 403
    back = await call(api, "DELETE", "/team/unshare", {"emails": ["user@local"]}, by=api.admin)
    assert back.json() == {"unshared_emails": ["user@local"]}
    assert (await call(api, "POST", "/team/mkdir", {"path": "e"})).status == 403
    for method, rest, body in (("DELETE", "", None), ("POST", "/leave", {}), ("POST", "/rename", {"new_name": "x"})):
        assert (await call(api, method, f"/team{rest}", body)).status in (400, 403)
    mine = await make(api, "team")
    assert (await call(api, "GET", "/team")).json()["id"] == mine["id"], "one's own comes first"


# ---- clones ----


async def test_a_clone_is_filled_in_the_background(api: Api) -> None:
    folder = await make(api, "data")
    refused = await call(api, "POST", "/data/clone", {"target_name": "copy", "target_host": None})
    assert refused.status == 403
    await call(api, "POST", "/data/update-options", {"cloneable": True})
    await call(api, "POST", "/data/request-upload", {"path": "a", "size": 0})
    elsewhere = await call(api, "POST", "/data/clone", {"target_name": "copy", "target_host": "far:away"})
    assert elsewhere.status == 400
    taken = await call(api, "POST", "/data/clone", {"target_name": "data", "target_host": None})
    assert taken.problem == "vfolder-already-exists"
    api.storage.clone_gate.clear()
    begun = (await call(api, "POST", "/data/clone", {"target_name": "copy", "target_host": "local:volume1"})).json()
    assert (begun["name"], begun["status"]) == ("copy", "cloning")
    busy = await call(api, "DELETE", "/data")
    assert (busy.status, "copy" in busy.json()["msg"]) == (409, True)
    assert (await call(api, "DELETE", "/copy")).status == 409
    api.storage.clone_gate.set()
    services = api.cluster.manager.services
    seen = [task.status.value async for task in services.tasks.subscribe(api.cluster.user, UUID(begun["bgtask_id"]))]  # type: ignore[arg-type]  # an id
    assert seen[-1] == "bgtask_done"
    copy = (await call(api, "GET", "/copy")).json()
    assert (copy["status"], copy["numFiles"], copy["cloneable"]) == ("ready", 1, False)
    assert (await call(api, "DELETE", f"/{folder['id']}")).status == 204


# ---- mounts ----


async def create(api: Api, **config: Any) -> RawReply:
    return await api.user.request("POST", "/session", json={"image": "python", "config": config})


async def test_a_session_mounts_folders(api: Api) -> None:
    await make(api, "data")
    team = await make(api, "team", by=api.admin, group="default", permission="ro")
    await make(api, ".config")
    reply = await api.user.request(
        "POST",
        "/session",
        json={
            "image": "python",
            "clusterSize": 2,
            "config": {
                "mounts": ["data", f"{team['id']}"],
                "mount_map": {"data": "/workspace"},
                "mount_options": {team["id"]: {"type": "bind", "permission": "ro"}},
            },
        },
    )
    assert reply.status == 201, reply.body
    for spec in api.agent.created:
        seen = {mount.name: (mount.target, mount.read_only) for mount in spec.mounts}
        assert seen == {
            "data": ("/workspace", False),
            "team": ("/home/work/team", True),
            ".config": ("/home/work/.config", False),
        }
        assert all(api.storage.root in (api.storage.root / m.source).parents for m in spec.mounts)
    assert len(api.agent.created) == 2
    assert (await call(api, "GET", "/data")).json()["last_used"] is not None
    for name in ("data", ".config"):
        busy = await call(api, "DELETE", f"/{name}")
        assert (busy.status, reply.json()["name"] in busy.json()["msg"]) == (409, True)
    await api.user.request("DELETE", f"/session/{reply.json()['sessionId']}")
    assert (await call(api, "DELETE", "/data")).status == 204
    assert (await create(api, mounts=["data"])).status == 400


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"mounts": ["nowhere"]}, "nowhere"),
        ({"mounts": ["data/gone"]}, "data"),
        ({"mounts": ["data/../more"]}, "data"),
        ({"mounts": ["data", "data"]}, "data"),
        ({"mounts": ["data"], "mount_map": {"other": "/x"}}, "other"),
        ({"mounts": ["data"], "mount_map": {"data": "/etc/x"}}, "data"),
        ({"mounts": ["data"], "mount_map": {"data": "/home/work"}}, "data"),
        ({"mounts": ["data"], "mount_map": {"data": "../../../etc"}}, "data"),
        ({"mounts": ["data"], "mount_map": {"data": "//etc//x"}}, "data"),
        ({"mounts": ["data"], "mount_map": {"data": "/opt"}}, "data"),
        ({"mounts": ["data", "more:data/inner"]}, "more"),
        ({"mounts": ["team"], "mount_options": {"team": {"permission": "rw"}}}, "team"),
        ({"mounts": ["theirs"]}, "theirs"),
    ],
)
async def test_a_mount_that_cannot_be_honoured_fails_the_creation_with_its_name(
    api: Api, config: dict[str, Any], named: str
) -> None:
    for name in ("data", "more"):
        await make(api, name)
    await make(api, "theirs", by=api.other)
    await make(api, "team", by=api.admin, group="default", permission="ro")
    reply = await create(api, **config)
    assert (reply.status, list(reply.json()["data"])) == (400, ["config.mounts"])
    assert named in reply.json()["msg"]
    assert "cannot be mounted" in reply.json()["msg"]
    assert api.agent.created == []


async def test_a_path_in_a_folder_is_told_apart_from_the_folder(api: Api) -> None:
    await make(api, "data")
    await call(api, "POST", "/data/mkdir", {"path": "sub/dir"})
    mounts = ["data/sub/dir", "data/sub:/workspace"]
    options = {"data/sub/dir": {"permission": "ro"}}
    assert (await create(api, mounts=mounts, mount_options=options)).status == 201
    root = str(next(api.storage.root.glob("*/*/*")))
    seen = [(m.source, m.target, m.read_only) for m in api.agent.created[0].mounts]
    assert seen == [(f"{root}/./sub/dir", "/home/work/data", True), (f"{root}/./sub", "/workspace", False)]
    assert (await call(api, "DELETE", "/data")).status == 409


async def test_a_silent_proxy_fails_the_creation_with_the_folders_name(api: Api) -> None:
    """Also for a folder that nobody named: a session without its files is not what its owner wants."""
    await make(api, ".config")
    api.storage.down = True
    reply = await create(api)
    assert (reply.status, reply.json()["data"]) == (503, {"config.mounts": ".config: unavailable"})
    assert "'.config' cannot be mounted" in reply.json()["msg"]


async def test_a_silent_proxy_is_no_unknown_host(api: Api) -> None:
    api.storage.down = True
    refused = await call(api, "POST", "", {"name": "data"})
    assert (refused.status, refused.problem) == (503, "unavailable")
    api.storage.down = False
    assert (await call(api, "POST", "", {"name": "data", "host": "local:none"})).status in (403, 404)
    assert (await call(api, "POST", "", {"name": "data"})).status == 201


async def test_a_name_is_found_in_any_form_of_unicode(api: Api) -> None:
    await make(api, "e\u0301te\u0301")
    for form in ("\u00e9t\u00e9", "e\u0301te\u0301"):
        assert (await call(api, "GET", f"/{quote(form)}")).json()["name"] == "\u00e9t\u00e9"
        again = await call(api, "POST", "", {"name": form})
        assert again.problem == "vfolder-already-exists"


async def test_an_alias_after_a_colon_is_below_the_home(api: Api) -> None:
    await make(api, "data")
    assert (await create(api, mounts=["data:in/here"])).status == 201
    assert [m.target for m in api.agent.created[0].mounts] == ["/home/work/in/here"]


async def test_mounting_and_deleting_at_the_same_time_never_both_succeed(api: Api) -> None:
    for n in range(6):
        await make(api, f"f{n}")
        session, deletion = await asyncio.gather(create(api, mounts=[f"f{n}"]), call(api, "DELETE", f"/f{n}"))
        assert (session.status, deletion.status) in ((201, 409), (400, 204)), (session.body, deletion.body)


async def test_the_lists_of_the_published_client(api: Api) -> None:
    await make(api, "mine", usage_mode="model")
    await make(api, "gone")
    await call(api, "DELETE", "/gone")
    await make(api, "theirs", by=api.other)
    await make(api, "team", by=api.admin, group="default")
    await call(api, "POST", "/theirs/invite", {"perm": "ro", "emails": ["user@local"]}, by=api.other)
    [invitation] = (await call(api, "GET", "/invitations/list")).json()["invitations"]
    await call(api, "POST", "/invitations/accept", {"inv_id": invitation["id"]})

    async def listed(root: str, by: RawClient | None = None, **arguments: Any) -> list[str]:
        told = "".join(f", {name}: {json.dumps(value)}" for name, value in arguments.items())
        query = f"{{ {root}(limit: 10, offset: 0{told}) {{ items {{ name status permission }} total_count }} }}"
        page = (await api.gql(query, by))["data"][root]
        assert page["total_count"] == len(page["items"])
        return sorted(item["name"] for item in page["items"])

    assert await listed("vfolder_list") == ["mine", "team", "theirs"]
    assert await listed("vfolder_own_list") == ["mine"]
    assert await listed("vfolder_invited_list") == ["theirs"]
    assert await listed("vfolder_project_list") == ["team"]
    assert await listed("vfolder_list", filter='(usage_mode == "MODEL")') == ["mine"]
    assert await listed("vfolder_list", filter='status == "delete-pending"') == ["gone"]
    assert await listed("vfolder_list", api.admin) == ["mine", "team", "theirs"]
    told = await api.gql("{ vfolder_host_permissions { vfolder_host_permission_list } }")
    assert len(told["data"]["vfolder_host_permissions"]["vfolder_host_permission_list"]) == 8


SPECIFIED = (
    # Method, path, body and status of spec 03-08 "Virtual Folders", in its order, with its own names of parameters.
    ("GET", "", {"all": False}, 200),
    ("GET", "/_/hosts", None, 200),
    ("POST", "", {"name": "made", "host": "local:volume1", "usage_mode": "data", "permission": "ro", "quota": 0}, 201),
    ("GET", "/data", None, 200),
    ("POST", "/made/rename", {"new_name": "newer"}, 201),
    ("DELETE", "/newer", None, 204),
    ("GET", "/data/files", {"path": ""}, 200),
    ("POST", "/data/request-upload", {"path": "file", "size": 0}, 200),
    ("POST", "/data/mkdir", {"path": "d/e", "parents": True, "exist_ok": False}, 201),
    ("POST", "/data/request-download", {"path": "file", "archive": False}, 200),
    ("DELETE", "/data/delete-files", {"files": ["d"], "recursive": True}, 200),
    ("POST", "/data/rename-file", {"target_path": "file", "new_name": "other", "is_dir": False}, 200),
    ("GET", "/invitations/list", None, 200),
    ("POST", "/data/invite", {"perm": "ro", "emails": ["other@local"]}, 200),
    ("POST", "/invitations/accept", {"inv_id": "{theirs}"}, 200),
    ("DELETE", "/invitations/delete", {"inv_id": "{declined}"}, 200),
    ("GET", "/invitations/list-sent", None, 200),
    ("POST", "/invitations/update/{sent}", {"perm": "rw"}, 200),
    ("POST", "/theirs/leave", None, 200),
    ("GET", "/_/shared", {"vfolder_id": "{data}"}, 200),
    ("POST", "/_/shared", {"vfolder": "{shared}", "user": "{other}", "perm": "rw"}, 200),
    ("POST", "/team/share", {"permission": "rw", "emails": ["user@local"]}, 201),
    ("DELETE", "/team/unshare", {"emails": ["user@local"]}, 200),
    ("POST", "/data/clone", {"cloneable": True, "target_name": "c", "target_host": "local:volume1"}, 200),
)


async def test_every_call_of_the_specification_is_taken_as_written(api: Api) -> None:
    known = {"data": (await make(api, "data", cloneable=True))["id"], "shared": (await make(api, "shared"))["id"]}
    await make(api, "team", by=api.admin, group="default")

    async def offer(name: str, by: RawClient, to: RawClient, email: str) -> str:
        await call(api, "POST", f"/{name}/invite", {"perm": "ro", "emails": [email]}, by=by)
        received = (await call(api, "GET", "/invitations/list", by=to)).json()["invitations"]
        return str(next(i["id"] for i in received if i["vfolder_name"] == name))

    for name in ("theirs", "declined"):
        await make(api, name, by=api.other)
        known[name] = await offer(name, api.other, api.user, "user@local")
    shared = await offer("shared", api.user, api.other, "other@local")
    await call(api, "POST", "/invitations/accept", {"inv_id": shared}, by=api.other)
    known["other"] = (await api.gql("{ user { uuid } }", api.other))["data"]["user"]["uuid"]
    await make(api, "offered")
    known["sent"] = await offer("offered", api.user, api.other, "other@local")

    def filled(text: str) -> str:
        for name, value in known.items():
            text = text.replace("{" + name + "}", value)
        return text

    for method, path, body, status in SPECIFIED:
        by = api.admin if path.startswith("/team") else api.user
        reply = await call(api, method, filled(path), json.loads(filled(json.dumps(body))), by=by)
        assert reply.status == status, (method, path, reply.body)
