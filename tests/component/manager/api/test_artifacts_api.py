"""Artifacts over REST: who may do what, what is shown, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError, BackendClientError
from ai.backend.client.session import Session
from ai.backend.common.errors import ArtifactIncomplete
from ai.backend.common.ids import TaskId
from ai.backend.common.states import UserRole
from ai.backend.manager.composition.api_reference import document
from tests.component.manager.api.conftest import Api
from tests.support.fake_artifacts import CONTENT, FakeDepot, model
from tests.support.signed_http import RawClient

HUB = {"name": "hub", "type": "huggingface", "url": "http://hub.example/"}
UPLOAD = {"name": "tools", "version": "1.0", "artifact_type": "PACKAGE", "files": [{"path": "a", "size": 1}]}
SMALL = quote("acme/small", safe="")
LARGE = quote("acme/large", safe="")
WITHIN_S = 20


async def task_of(api: Api, answer: dict[str, Any]) -> None:
    """Until the background task of a scan is over."""
    tasks = api.cluster.manager.services.tasks
    async with asyncio.timeout(WITHIN_S):
        async for _ in tasks.subscribe(api.cluster.admin, TaskId(UUID(answer["bgtask_id"]))):
            pass


async def available(api: Api, ref: str) -> dict[str, Any]:
    """A revision, once it is imported."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            found: dict[str, Any] = (await api.admin.request("GET", f"/artifacts/revisions/{ref}")).json()
            if found["status"] == "AVAILABLE":
                return found
            await asyncio.sleep(0.02)


@pytest.fixture
async def stocked(api: Api, depot: FakeDepot) -> Api:
    """A hub with two models, of which ``acme/small`` is available."""
    depot.models = [model("acme/large", "main", "v1"), model("acme/small")]
    assert (await api.admin.request("POST", "/artifact-registries", json=HUB)).status == 201
    scan = await api.admin.request("POST", "/artifact-registries/hub/scan", json={})
    await task_of(api, scan.json())
    reply = await api.admin.request("POST", "/artifacts/import", json={"revisions": ["acme/small"]})
    assert reply.status == 202, reply.body
    await available(api, SMALL)
    return api


# What each role may do; every operation of the API is in the table. Statuses are those of who may.
EVERYBODY = frozenset(UserRole)
LOOKERS = frozenset({UserRole.SUPERADMIN, UserRole.MONITOR})
SUPERADMINS = frozenset({UserRole.SUPERADMIN})
OPERATIONS: list[tuple[str, str, Any, frozenset[UserRole], int]] = [
    ("GET", "/artifacts", None, EVERYBODY, 200),
    ("GET", f"/artifacts/{SMALL}", None, EVERYBODY, 200),
    ("GET", f"/artifacts/revisions/{SMALL}", None, EVERYBODY, 200),
    ("GET", f"/artifacts/revisions/{SMALL}/files", None, EVERYBODY, 200),
    ("POST", f"/artifacts/revisions/{SMALL}/presign", {}, EVERYBODY, 200),
    ("POST", f"/artifacts/revisions/{SMALL}/ticket", {}, EVERYBODY, 200),
    ("GET", "/artifact-registries", None, LOOKERS, 200),
    ("GET", "/artifact-registries/hub", None, LOOKERS, 200),
    ("GET", "/artifact-storages", None, LOOKERS, 200),
    ("POST", "/artifact-registries", {**HUB, "name": "second"}, SUPERADMINS, 201),
    ("POST", "/artifacts/fetch", {"registry": "none", "name": "x"}, EVERYBODY, 404),
    ("PATCH", f"/artifacts/{SMALL}", {"viewers": None}, SUPERADMINS, 200),
    ("PATCH", "/artifact-registries/hub", {"credentials": {"token": "hf_x"}}, SUPERADMINS, 200),
    ("POST", "/artifact-registries/hub/scan", {}, SUPERADMINS, 200),
    ("POST", "/artifact-registries/hub/delegate-scan", {"remote_registry": "x"}, SUPERADMINS, 400),
    ("POST", "/artifacts/import", {"revisions": ["acme/small"]}, SUPERADMINS, 202),
    ("POST", "/artifacts/upload", {**UPLOAD, "registry": "hub"}, SUPERADMINS, 400),
    ("POST", "/artifacts/cancel", {"revisions": ["acme/small"]}, SUPERADMINS, 409),
    ("DELETE", "/artifact-registries/hub", None, SUPERADMINS, 409),
    ("POST", "/artifacts/cleanup", {"revisions": ["acme/small"]}, SUPERADMINS, 200),
    ("POST", f"/artifacts/revisions/{LARGE}/install", {}, SUPERADMINS, 409),
    ("DELETE", f"/artifacts/{LARGE}", None, SUPERADMINS, 204),
]


def test_the_table_has_every_operation() -> None:
    declared = {
        (method.upper(), path)
        for path, methods in document()["paths"].items()
        for method in methods
        if path.startswith("/artifact")
    }
    named = {(method, path.replace(SMALL, "{}").replace(LARGE, "{}")) for method, path, *_ in OPERATIONS}
    plain = {
        (method, path.replace("{r}", "hub").replace("{a}", "{}").replace("{v}", "{}")) for method, path in declared
    }
    assert plain == named


@pytest.fixture
def member(stocked: Api) -> Callable[[UserRole], Awaitable[RawClient]]:
    """Makes a user of a role."""
    people = stocked.cluster.manager.services.users

    async def make(role: UserRole) -> RawClient:
        _, pair = await people.create_user(
            stocked.cluster.admin, f"some-{role.value}@local", "a long password", {"role": role}
        )
        return RawClient(port=stocked.port, access_key=pair.access_key, secret_key=pair.secret_key)

    return make


@pytest.mark.parametrize("role", list(UserRole))
async def test_each_role_may_do_what_the_table_says(
    stocked: Api, member: Callable[[UserRole], Awaitable[RawClient]], role: UserRole
) -> None:
    client = await member(role)
    for method, path, body, roles, status in OPERATIONS:
        reply = await client.request(method, path, json=body)
        assert reply.status == (status if role in roles else 403), (method, path, reply.body)
    unsigned = await RawClient(port=stocked.port).request("GET", "/artifacts")
    assert unsigned.status == 401


async def test_most_see_what_is_available_only(stocked: Api) -> None:
    mine = (await stocked.user.request("GET", "/artifacts")).json()
    assert (mine["total_count"], [item["name"] for item in mine["items"]]) == (1, ["acme/small"])
    all_ = (await stocked.admin.request("GET", "/artifacts?limit=1&offset=0")).json()
    assert (all_["total_count"], [item["name"] for item in all_["items"]]) == (2, ["acme/large"])
    assert [r["version"] for r in all_["items"][0]["revisions"]] == ["main", "v1"]
    for path in (f"/artifacts/{LARGE}", f"/artifacts/revisions/{LARGE}%40v1", f"/artifacts/revisions/{LARGE}/files"):
        hidden = await stocked.user.request("GET", path)
        assert (hidden.status, hidden.problem) == (404, "not-found"), path
    by_id = (await stocked.admin.request("GET", f"/artifacts/revisions/{LARGE}%40v1")).json()["id"]
    assert (await stocked.user.request("GET", f"/artifacts/revisions/{by_id}")).status == 404
    not_yet = await stocked.admin.request("GET", f"/artifacts/revisions/{by_id}/files")
    assert (not_yet.status, not_yet.problem) == (409, "conflict")


async def test_what_is_told_of_artifacts(stocked: Api) -> None:
    info = (await stocked.user.request("GET", f"/artifacts/{SMALL}")).json()
    assert info["readme"] == "# acme/small\n"
    assert (info["registry"], info["registry_type"], info["extra"]) == ("hub", "huggingface", {"author": "acme"})
    [revision] = info["revisions"]
    assert (revision["size"], revision["file_count"], revision["is_outdated"]) == (len(CONTENT), 1, False)
    assert revision["storage"] == "local:volume1"
    files = (
        await stocked.user.request("POST", f"/artifacts/revisions/{SMALL}/presign", json={"paths": ["weights"]})
    ).json()
    assert files["files"][0]["url"].startswith("http://local.example/")
    assert files["revision"]["artifact"] == "acme/small"
    nowhere = await stocked.user.request("POST", f"/artifacts/revisions/{SMALL}/presign", json={"paths": ["../x"]})
    assert (nowhere.status, nowhere.problem) == (404, "file-not-found")


async def test_credentials_are_never_shown(api: Api) -> None:
    keys = {"access_key": "AKIAEXAMPLE", "secret_key": "very-secret"}
    body = {"name": "far", "type": "reservoir", "url": "https://far.example", "credentials": keys}
    replies = [
        await api.admin.request("POST", "/artifact-registries", json=body),
        await api.admin.request("GET", "/artifact-registries"),
        await api.admin.request("PATCH", "/artifact-registries/far", json={"credentials": keys}),
        await api.admin.request("PATCH", "/artifact-registries/far", json={"credentials": {**keys, "very": "secret2"}}),
        await api.admin.request("GET", "/artifact-registries/far"),
    ]
    assert [reply.status for reply in replies] == [201, 200, 200, 400, 200]
    for reply in replies:
        assert b"very-secret" not in reply.body
        assert b"secret2" not in reply.body
        assert b"AKIAEXAMPLE" not in reply.body
    assert replies[-1].json()["credentials"] == ["access_key", "secret_key"]


REFUSED_REGISTRIES: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name"),
    ({"name": "a/b"}, "name"),
    ({"name": "x" * 65}, "name"),
    ({"type": "docker"}, "type"),
    ({"type": "local"}, "url"),
    ({"type": "local", "url": "", "credentials": {"token": "x"}}, "credentials.token"),
    ({"url": "ftp://hub.example"}, "url"),
    ({"url": "http://me:secret@hub.example"}, "url"),
    ({"url": "http://hub.example/?x=1"}, "url"),
    ({"url": "http://"}, "url"),
    ({"url": "http://hub.example:99999"}, "url"),
    ({"credentials": {"password": "x"}}, "credentials.password"),
    ({"credentials": {"token": "a\r\nX-Evil: 1"}}, "credentials.token"),
    ({"type": "reservoir"}, "credentials.access_key"),
    ({"storages": {"polish": "local:volume1"}}, "storages"),
    ({"storages": {"archive": "volume1"}}, "host"),
    ({"storages": {"archive": "local:bucket", "download": "far:away"}}, "storages"),
]


async def test_a_registry_that_cannot_be_is_refused(api: Api) -> None:
    for change, field in REFUSED_REGISTRIES:
        reply = await api.admin.request("POST", "/artifact-registries", json={**HUB, **change})
        assert reply.status == 400, (change, reply.body)
        assert field in reply.json()["data"], (change, reply.body)
    assert (await api.admin.request("GET", "/artifact-registries")).json() == []


async def test_names_are_taken_once_and_forgotten(api: Api) -> None:
    first = await api.admin.request("POST", "/artifact-registries", json=HUB)
    assert first.json()["url"] == "http://hub.example"
    again = await api.admin.request("POST", "/artifact-registries", json=HUB)
    assert (again.status, again.problem) == (409, "conflict")
    assert (await api.admin.request("DELETE", f"/artifact-registries/{first.json()['id']}")).status == 204
    assert (await api.admin.request("GET", "/artifact-registries/hub")).status == 404
    assert (await api.admin.request("POST", "/artifact-registries/hub/scan", json={})).status == 404


BAD_REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/artifacts/import", {"revisions": []}),
    ("POST", "/artifacts/import", {"revisions": ["x"] * 1001}),
    ("POST", "/artifacts/import", {"revisions": ["\0"]}),
    ("POST", "/artifacts/import", {"revisions": ["acme/small@" + "v" * 600]}),
    ("POST", "/artifacts/import", {"revisions": [7]}),
    ("POST", "/artifacts/import", {"revision": "acme/small"}),
    ("POST", "/artifacts/cleanup", {}),
    ("GET", "/artifacts?limit=0", None),
    ("GET", "/artifacts?artifact_type=DATASET", None),
    ("GET", "/artifacts?registry=none", None),
    ("GET", "/artifacts/%00", None),
    ("GET", "/artifacts/" + "%41" * 700, None),
    ("GET", "/artifacts/revisions/%40%40%40", None),
    ("GET", "/artifacts/revisions/..%2F..%2Fetc%2Fpasswd", None),
    ("POST", "/artifact-registries/hub/scan", {"limit": 100_000}),
    ("POST", "/artifact-registries/hub/scan", {"names": ["x"] * 2_000}),
]


async def test_bad_requests_get_one_clear_problem(stocked: Api) -> None:
    for method, target, body in BAD_REQUESTS:
        reply = await stocked.admin.request(method, target, json=body)
        assert reply.status in (400, 404), (target, body, reply.status, reply.body)
        assert reply.problem


async def test_uploads_are_announced_and_wait_for_their_files(api: Api, depot: FakeDepot) -> None:
    depot.failure = ArtifactIncomplete("1 files were not uploaded.")
    made = await api.admin.request("POST", "/artifact-registries", json={"name": "mine", "type": "local"})
    assert made.status == 201, made.body
    body = {**UPLOAD, "registry": "mine"}
    changes: list[dict[str, Any]] = [{"name": "a@b"}, {"name": str(UUID(int=7))}, {"version": ""}, {"files": []}]
    outside: list[dict[str, Any]] = [{"name": "../x"}, {"files": [{"path": "../../y", "size": 1}]}]
    for change in (*changes, *outside, {"files": [{"path": "a", "size": -1}]}):
        refused = await api.admin.request("POST", "/artifacts/upload", json={**body, **change})
        assert refused.status == 400, (change, refused.body)
    assert (await api.admin.request("GET", "/artifacts")).json()["items"] == [], "nothing of them was kept"
    scan = await api.admin.request("POST", "/artifact-registries/mine/scan", json={})
    assert (scan.status, scan.problem) == (400, "invalid-api-params")
    first = (await api.admin.request("POST", "/artifacts/upload", json=body)).json()
    assert first["revision"]["status"] == "PULLING"
    assert [file["path"] for file in first["files"]] == ["a"]
    again = (await api.admin.request("POST", "/artifacts/upload", json=body)).json()
    assert again["revision"]["id"] == first["revision"]["id"]
    assert len(set(depot.begun)) <= 1, "one attempt"
    depot.failure = None
    api.cluster.manager.services.artifacts.loop.wake()  # type: ignore[union-attr]  # there is one
    found = await available(api, first["revision"]["id"])
    assert (found["type"], found["version"], found["is_outdated"]) == ("PACKAGE", "1.0", False)
    taken = await api.admin.request("POST", "/artifacts/upload", json=body)
    assert (taken.status, taken.problem) == (409, "conflict")


async def test_several_are_imported_together_or_not_at_all(stocked: Api) -> None:
    refused = await stocked.admin.request("POST", "/artifacts/import", json={"revisions": ["acme/large", "acme/none"]})
    assert refused.status == 404
    assert (await stocked.admin.request("GET", f"/artifacts/revisions/{LARGE}")).json()["status"] == "SCANNED"
    told = await stocked.admin.request(
        "POST", "/artifacts/import", json={"revisions": ["acme/large@v1", "acme/large@main", "acme/large"]}
    )
    assert [r["version"] for r in told.json()["revisions"]] == ["v1", "main"]
    for version in ("v1", "main"):
        await available(stocked, f"{LARGE}%40{version}")


async def test_the_blocking_client_sees_the_same(stocked: Api) -> None:
    def work() -> None:
        with Session(config=config) as session:
            artifacts = session.Artifact
            assert [one["name"] for one in artifacts.iterate()] == ["acme/large", "acme/small"]
            assert artifacts.list(search="LARGE", limit=1)["total_count"] == 1
            assert artifacts.info("acme/small")["readme"] == "# acme/small\n"
            [begun] = artifacts.import_revisions(["acme/large@v1"])
            seen: list[str] = []
            [done] = artifacts.wait([begun["id"]], progress=lambda revision: seen.append(revision["status"]))
            assert (done["status"], seen[-1]) == ("AVAILABLE", "AVAILABLE")
            assert [file["path"] for file in artifacts.files("acme/large@v1")] == ["weights"]
            assert artifacts.presign("acme/small")[0]["url"].startswith("http://local.example/")
            assert artifacts.cleanup(["acme/large@v1"])[0]["status"] == "SCANNED"
            with pytest.raises(BackendClientError, match="acme/large@v1: SCANNED"):
                artifacts.wait([begun["id"]])
            artifacts.add_registry("mine", "local")
            assert artifacts.change_registry("mine", storages={"archive": "local:volume2"})["storages"]
            artifacts.remove_registry("mine")
            assert [one["name"] for one in artifacts.registries()] == ["hub"]
            assert "local:volume1" in {one["host"] for one in artifacts.storages()}
            with pytest.raises(BackendAPIError, match="409 conflict"):
                artifacts.cancel(["acme/small"])

    config = APIConfig(
        endpoint=f"http://127.0.0.1:{stocked.port}",
        access_key=stocked.admin.access_key,
        secret_key=stocked.admin.secret_key,
    )
    await asyncio.to_thread(work)
