"""Who may use an artifact (spec 03-17 "Storage and Access"), and which users may import (03-18 "Model Store")."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from ai.backend.common.errors import BackendError
from ai.backend.common.ids import TaskId
from ai.backend.common.states import UserRole
from ai.backend.common.structs import replace
from ai.backend.manager.tasks.model import Task, TaskStatus
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_artifacts_api import HUB, available, task_of
from tests.support.fake_artifacts import CONTENT, FakeDepot, model
from tests.support.signed_http import RawClient

GATED = quote("acme/gated", safe="")
OPEN = quote("acme/open", safe="")
READS = [
    ("GET", "/artifacts/{}"),
    ("GET", "/artifacts/revisions/{}"),
    ("GET", "/artifacts/revisions/{}/files"),
    ("POST", "/artifacts/revisions/{}/presign"),
    ("POST", "/artifacts/revisions/{}/ticket"),
]


@pytest.fixture
async def stocked(api: Api, depot: FakeDepot) -> Api:
    """A hub that shows ``acme/gated`` to the account of its token only; both models are available."""
    depot.models = [model("acme/gated", restricted=True), model("acme/open")]
    body = {**HUB, "credentials": {"token": "hf_secret"}}
    assert (await api.admin.request("POST", "/artifact-registries", json=body)).status == 201
    await task_of(api, (await api.admin.request("POST", "/artifact-registries/hub/scan", json={})).json())
    imported = await api.admin.request("POST", "/artifacts/import", json={"revisions": ["acme/gated", "acme/open"]})
    assert imported.status == 202, imported.body
    for name in (GATED, OPEN):
        await available(api, name)
    return api


async def _statuses(client: RawClient, ref: str) -> set[int]:
    bodies: dict[str, Any] = {"POST": {}}
    return {(await client.request(m, path.format(ref), json=bodies.get(m))).status for m, path in READS}


async def _names(client: RawClient) -> tuple[list[str], int]:
    page = (await client.request("GET", "/artifacts")).json()
    return [item["name"] for item in page["items"]], page["total_count"]


async def _share(api: Api, name: str, viewers: list[str] | None) -> Any:
    reply = await api.admin.request("PATCH", f"/artifacts/{name}", json={"viewers": viewers})
    assert reply.status == 200, reply.body
    return reply.json()


async def test_a_gated_model_is_not_for_every_key(stocked: Api) -> None:
    by_id = (await stocked.admin.request("GET", f"/artifacts/revisions/{GATED}")).json()["id"]
    assert await _names(stocked.user) == (["acme/open"], 1)
    assert await _statuses(stocked.user, GATED) == {404}
    for method, path in READS[1:]:
        body: Any = {} if method == "POST" else None
        assert (await stocked.user.request(method, path.format(by_id), json=body)).status == 404
    mount = {"image": "python", "config": {"mounts": ["artifact:acme/gated"], "resources": {}}}
    refused = await stocked.user.request("POST", "/session", json=mount)
    assert (refused.status, refused.problem) == (400, "invalid-api-params"), refused.body
    assert "acme/gated" in str(refused.json())
    assert await _statuses(stocked.admin, GATED) == {200}
    assert (await stocked.admin.request("GET", f"/artifacts/{GATED}")).json()["restricted"] is True


async def test_an_artifact_is_shared_with_those_who_are_named(stocked: Api) -> None:
    people = stocked.cluster.manager.services.users
    other, pair = await people.create_user(
        stocked.cluster.admin, "viewer@local", "a long password", {"role": UserRole.USER}
    )
    client = RawClient(port=stocked.port, access_key=pair.access_key, secret_key=pair.secret_key)
    assert (await _share(stocked, GATED, ["user:viewer@local"]))["viewers"] == [f"user:{other.uuid}"]
    assert await _names(client) == (["acme/gated", "acme/open"], 2)
    assert await _statuses(client, GATED) == {200}
    assert await _statuses(stocked.user, GATED) == {404}
    assert (await client.request("GET", f"/artifacts/{GATED}")).json()["viewers"] is None, "nobody learns of others"
    await _share(stocked, GATED, ["domain:DEFAULT"])
    assert await _statuses(client, GATED) == {404}, "names of domains have a case"
    await _share(stocked, GATED, ["group:default"])
    assert await _statuses(client, GATED) == {200}, "a member of the group default"
    await _share(stocked, GATED, ["domain:default"])
    assert await _statuses(client, GATED) == {200}
    await _share(stocked, GATED, None)
    assert await _statuses(client, GATED) == {404}
    await _share(stocked, OPEN, [])
    assert await _names(client) == ([], 0)


async def test_a_registry_names_viewers_of_what_is_not_restricted(stocked: Api) -> None:
    changed = await stocked.admin.request("PATCH", "/artifact-registries/hub", json={"viewers": []})
    assert changed.json()["viewers"] == []
    assert await _names(stocked.user) == ([], 0)
    await _share(stocked, OPEN, ["everyone"])
    assert await _names(stocked.user) == (["acme/open"], 1)
    for viewers in (["nobody"], ["group:"], ["user:none@local"], ["group:none"]):
        for path in ("/artifact-registries/hub", f"/artifacts/{OPEN}"):
            refused = await stocked.admin.request("PATCH", path, json={"viewers": viewers})
            assert refused.status in (400, 404), (viewers, refused.body)
            assert any(field.startswith("viewers") for field in refused.json()["data"])


async def test_a_model_that_becomes_gated_is_closed_until_somebody_opens_it(stocked: Api, depot: FakeDepot) -> None:
    depot.models = [replace(one, restricted=True) for one in depot.models]
    await task_of(stocked, (await stocked.admin.request("POST", "/artifact-registries/hub/scan", json={})).json())
    assert await _names(stocked.user) == ([], 0)


async def _fetch(api: Api, client: RawClient, **body: Any) -> Task:
    """Imports as a user and returns the task at its end."""
    reply = await client.request("POST", "/artifacts/fetch", json={"registry": "hub", **body})
    assert reply.status == 202, reply.body
    tasks = api.cluster.manager.services.tasks
    task_id = TaskId(UUID(reply.json()["bgtask_id"]))
    async with asyncio.timeout(20):
        [*_, last] = [task async for task in tasks.subscribe(api.cluster.admin, task_id)]
    return last


async def test_users_import_where_they_may(stocked: Api, depot: FakeDepot) -> None:
    depot.models += [model("acme/new"), model("acme/unknown-size"), model("acme/secret", restricted=True)]
    depot.models[3] = replace(
        depot.models[3], revisions=[replace(revision, size=None) for revision in depot.models[3].revisions]
    )
    closed = await stocked.user.request("POST", "/artifacts/fetch", json={"registry": "hub", "name": "acme/new"})
    assert (closed.status, closed.problem) == (404, "not-found"), closed.body

    async def allow(**values: Any) -> None:
        reply = await stocked.admin.request("PATCH", "/artifact-registries/hub", json=values)
        assert reply.status == 200, reply.body

    await allow(user_import_bytes=len(CONTENT) - 1)
    too_large = await _fetch(stocked, stocked.user, name="acme/new")
    assert (too_large.status, "up to" in (too_large.message or "")) == (TaskStatus.FAILED, True), too_large
    await allow(user_import_bytes=len(CONTENT))
    for name, reason in [("acme/unknown-size", "unknown size"), ("acme/secret", "not public"), ("no/ne", "has no")]:
        refused = await _fetch(stocked, stocked.user, name=name)
        assert (refused.status, reason in (refused.message or "")) == (TaskStatus.FAILED, True), refused
    done = await _fetch(stocked, stocked.user, name="acme/new", version="main")
    assert (done.status, done.message) == (TaskStatus.DONE, "acme/new@main is AVAILABLE")
    assert "acme/new" in (await _names(stocked.user))[0]
    await allow(viewers=["domain:elsewhere"])
    assert (
        await stocked.user.request("POST", "/artifacts/fetch", json={"registry": "hub", "name": "acme/new"})
    ).status == 404
    assert (await _fetch(stocked, stocked.admin, name="acme/unknown-size")).status is TaskStatus.DONE


async def test_a_user_has_one_import_at_a_time(stocked: Api, depot: FakeDepot) -> None:
    depot.models += [model("acme/new")]
    depot.failure = BackendError("kept waiting")
    await stocked.admin.request("PATCH", "/artifact-registries/hub", json={"user_import_bytes": 1 << 30})
    body = {"registry": "hub", "name": "acme/new"}
    replies = await asyncio.gather(*(stocked.user.request("POST", "/artifacts/fetch", json=body) for _ in range(3)))
    assert sorted(reply.status for reply in replies) == [202, 409, 409]
