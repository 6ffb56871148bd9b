"""Images through GraphQL and REST: a Harbor is configured, scanned, aliased, spread, and used for sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ai.backend.common.errors import StorageFull
from ai.backend.common.ids import TaskId
from ai.backend.common.wire.agent import ImageJobState
from ai.backend.common.wire.reports import ImageReport
from ai.backend.manager.tasks.model import Task
from tests.component.manager.api.conftest import Api
from tests.component.manager.fakes import FakeAgent
from tests.support.fake_harbor import FakeHarbor, artifact, serving
from tests.support.signed_http import RawClient

NAME = "cr.test"
IMAGE = f"{NAME}/stable/python:3.11"
LABELS = {"ai.backend.kernelspec": "1", "ai.backend.resource.min.cpu": "2", "ai.backend.resource.min.mem": "64m"}
WITHIN_S = 30
CREATE = """mutation($p: CreateContainerRegistryInput!) {
  create_container_registry(hostname: "cr.test", props: $p) {
    ok msg container_registry { hostname config { url password project } } } }"""
MODIFY = """mutation($p: ModifyContainerRegistryInput!) {
  modify_container_registry(hostname: "cr.test", props: $p) { ok msg } }"""
RESCAN = "mutation($registry: String) { rescan_images(registry: $registry) { ok msg task_id } }"
IMAGES = "query($i: Boolean, $g: String) { images(is_installed: $i, scaling_group: $g) { id aliases installed } }"


@pytest.fixture
async def harbor() -> AsyncIterator[tuple[FakeHarbor, str]]:
    """With two usable images, and one whose labels make no sense."""
    harbor = FakeHarbor(
        {
            "stable": {
                "python": [
                    artifact(1, "3.11", labels=LABELS),
                    artifact(2, "2.7", labels={"ai.backend.kernelspec": "9"}),
                ],
                "plain": [artifact(3, "latest")],
            }
        }
    )
    async with serving(harbor.handle) as url:
        yield harbor, url


async def ended(api: Api, task_id: str) -> Task:
    async with asyncio.timeout(WITHIN_S):
        tasks = api.cluster.manager.services.tasks.subscribe(api.cluster.admin, TaskId(UUID(task_id)))
        return [task async for task in tasks][-1]


async def change(api: Api, query: str, **variables: Any) -> dict[str, Any]:
    """What the only mutation says, for an administrator."""
    told = await api.gql(query, api.admin, **variables)
    assert not told.get("errors"), told
    (answer,) = told["data"].values()
    return dict(answer)


async def filled(api: Api, harbor: tuple[FakeHarbor, str]) -> str:
    """Configure the registry and scan it; the last message of the scan."""
    server, url = harbor
    props = {"url": url, "type": "harbor2", "project": ["stable"], "username": server.user, "password": server.password}
    assert (await change(api, CREATE, p=props))["ok"]
    begun = await change(api, RESCAN, registry=NAME)
    return (await ended(api, begun["task_id"])).message or ""


async def ids(api: Api, client: Any = None, **variables: Any) -> set[str]:
    return {one["id"] for one in (await api.gql(IMAGES, client or api.admin, **variables))["data"]["images"]}


async def test_the_answer_for_an_unknown_image_names_no_hidden_ones(api: Api, harbor: tuple[FakeHarbor, str]) -> None:
    await filled(api, harbor)
    theirs = FakeAgent(agent_id="more")
    hidden = {"ai.backend.customized-image.owner": f"user:{api.cluster.admin.user_id}"}
    reports = [ImageReport(name="host/mine-only:1", architecture="x86_64", aliases=["secret-name"], labels=hidden)]
    theirs.images = [*theirs.images, *reports]
    await api.cluster.join(theirs)
    body = {"image": "nothing"}

    async def available(client: RawClient) -> list[str]:
        reply = await client.request("POST", "/session", json=body)
        assert reply.status == 404, reply.body
        assert client is api.admin or b"mine-only" not in reply.body
        return list(reply.json()["data"]["available"])

    assert {"host/mine-only:1", "secret-name", IMAGE} <= {*await available(api.admin)}
    assert IMAGE in await available(api.user)
    assert not {"host/mine-only:1", "secret-name"} & {*await available(api.user)}
    none = 'mutation { modify_domain(name: "default", props: {allowed_docker_registries: []}) { ok msg } }'
    assert (await change(api, none))["ok"]
    assert not [name for name in await available(api.user) if name.startswith(NAME)]


async def test_registries_are_configured_without_showing_passwords(api: Api, harbor: tuple[FakeHarbor, str]) -> None:
    props = {"url": harbor[1], "type": "harbor2", "project": ["a", "b"], "username": "u", "password": "p"}
    refused = (await api.gql(CREATE, api.user, p=props))["data"]["create_container_registry"]
    assert (refused["ok"], "superadmins" in refused["msg"]) == (False, True)
    made = await change(api, CREATE, p=props)
    config = {"url": harbor[1], "password": "*****", "project": ["a", "b"]}
    assert made["container_registry"] == {"hostname": NAME, "config": config}
    assert "already" in (await change(api, CREATE, p=props))["msg"]
    for bad in ({**props, "url": "ftp://x"}, {**props, "type": "tape"}):
        assert not (await change(api, CREATE.replace("cr.test", "b.test"), p=bad))["ok"]
    stored = await api.cluster.manager.services.config.get(api.cluster.admin, f"config/docker/registry/{NAME}/password")
    assert stored == "p"
    assert (await change(api, MODIFY, p={"project": ["c"], "password": "*****"}))["ok"]
    found = (await api.gql("{ container_registries { hostname config { project username } } }", api.admin))["data"]
    assert found["container_registries"] == [{"hostname": NAME, "config": {"project": ["c"], "username": "u"}}]
    assert (await api.gql("{ container_registries { hostname } }"))["errors"][0]["extensions"]["code"] == "forbidden"
    assert (await api.user.request("GET", "/config/docker-registries")).json() == {NAME: harbor[1]}
    delete = 'mutation { delete_container_registry(hostname: "cr.test") { ok msg } }'
    assert (await change(api, delete))["ok"]
    assert not (await change(api, delete))["ok"]


async def test_images_are_scanned_aliased_and_forgotten(api: Api, harbor: tuple[FakeHarbor, str]) -> None:
    assert "no registry" in (await change(api, RESCAN, registry=NAME))["msg"].lower()
    message = await filled(api, harbor)
    assert "2 images" in message
    assert "kernelspec" in message
    assert await ids(api) == {IMAGE, f"{NAME}/stable/plain:latest", "host/python:3.11"}
    assert await ids(api, i=True) == {"host/python:3.11"}
    assert await ids(api, g="default") == {"host/python:3.11"}
    alias = "mutation($a: String!, $t: String!) { alias_image(alias: $a, target: $t) { ok msg } }"
    assert (await change(api, alias, a="py", t=IMAGE))["ok"]
    assert (await change(api, alias, a="py", t=IMAGE, architecture="x86_64"))["ok"] is False
    for name, target in (("py", "host/python:3.11"), ("b c", IMAGE), ("x", "nothing"), (IMAGE, IMAGE)):
        assert not (await change(api, alias, a=name, t=target))["ok"], name
    one = (await api.gql('{ image(reference: "py") { id aliases } }'))["data"]["image"]
    assert one == {"id": IMAGE, "aliases": ["py"]}
    del harbor[0].projects["stable"]["plain"]
    again = await change(api, RESCAN)
    assert "1 are gone" in str((await ended(api, again["task_id"])).message)
    dealias = 'mutation { dealias_image(alias: "py") { ok msg } }'
    assert (await change(api, dealias))["ok"]
    assert not (await change(api, dealias))["ok"]
    forget = f'mutation {{ forget_image(reference: "{IMAGE}") {{ ok msg }} }}'
    assert not (await api.gql(forget))["data"]["forget_image"]["ok"]
    assert (await change(api, forget))["ok"]
    assert not (await change(api, forget))["ok"]
    assert (await change(api, f'mutation {{ clear_images(registry: "{NAME}") {{ ok msg }} }}'))["ok"]
    harbor[0].projects["stable"].clear()
    nothing = await change(api, RESCAN, registry=NAME)
    assert "0 images" in str((await ended(api, nothing["task_id"])).message)


async def test_a_registry_that_is_down_fails_the_task_and_forgets_nothing(
    api: Api, harbor: tuple[FakeHarbor, str]
) -> None:
    await filled(api, harbor)
    harbor[0].password = "changed"
    begun = await change(api, RESCAN, registry=NAME)
    task = await ended(api, begun["task_id"])
    assert (task.status.value, "does not take" in str(task.message)) == ("bgtask_failed", True)
    assert IMAGE in await ids(api)


async def test_sessions_are_made_of_what_agents_can_fetch(api: Api, harbor: tuple[FakeHarbor, str]) -> None:
    await filled(api, harbor)
    body = {"image": IMAGE, "name": "fetched", "config": {"resources": {"cpu": "2", "mem": "128m"}}}
    reply = await api.user.request("POST", "/session", json=body)
    assert (reply.status, "can fetch it" in reply.json()["detail"]) == (404, True)
    agent = FakeAgent("docker-1", runtime="docker", images=[])
    await api.cluster.join(agent)
    few = {**body, "config": {"resources": {"cpu": "1", "mem": "128m"}}}
    assert "at least 2" in (await api.user.request("POST", "/session", json=few)).json()["detail"]
    assert (await api.user.request("POST", "/session", json=body)).status == 201
    (asked,) = agent.asked
    (spec,) = asked.kernels
    assert (spec.auto_pull, spec.image_digest) == ("digest", f"sha256:{1:064x}")
    (access,) = asked.registries
    assert (access.registry, access.password) == (NAME, harbor[0].password)
    assert f'"{harbor[0].password}"'.encode() not in msgspec.json.encode(spec)
    assert harbor[0].password not in repr(asked)
    modify = 'mutation($p: ModifyDomainInput!) { modify_domain(name: "default", props: $p) { ok msg } }'
    assert (await change(api, modify, p={"allowed_docker_registries": ["another.test"]}))["ok"]
    refused = await api.user.request("POST", "/session", json={**body, "name": "again"})
    assert (refused.status, "may not use" in refused.json()["detail"]) == (403, True)
    assert IMAGE not in await ids(api, api.user)
    assert (await api.user.request("GET", "/config/docker-registries")).json() == {}
    await agent.close()


async def test_images_are_brought_to_agents_and_taken_away(api: Api, harbor: tuple[FakeHarbor, str]) -> None:
    await filled(api, harbor)
    preload = (
        "mutation($r: String!, $t: String!) { preload_image(reference: $r, target_agents: $t) { ok msg task_id } }"
    )
    assert "fetches images" in (await change(api, preload, r=IMAGE, t="*"))["msg"]
    good = FakeAgent("docker-1", runtime="docker", images=[])
    full = FakeAgent("docker-2", runtime="docker", images=[])
    full.image_answers = [ImageJobState(state="failed", code=StorageFull.code, message="the disk is full")]
    good.image_answers = [ImageJobState(state="running", current=1, total=2), ImageJobState(state="done")]
    for agent in (good, full):
        await api.cluster.join(agent)
    assert "no agent" in (await change(api, preload, r=IMAGE, t="docker-9"))["msg"]
    told = await ended(api, (await change(api, preload, r=IMAGE, t="group:default,!agent-*"))["task_id"])
    assert (told.status.value, told.total_progress) == ("bgtask_done", 2)
    assert "1 of 2 agents; docker-2: the disk is full" in str(told.message)
    assert [job.action for job in good.image_jobs] == ["pull", "pull"]
    assert len({job.job_id for job in good.image_jobs}) == 1
    only = await ended(api, (await change(api, preload, r=IMAGE, t="docker-2"))["task_id"])
    assert (only.status.value, only.message) == ("bgtask_failed", "the disk is full")
    unload = preload.replace("preload", "unload")
    assert "has" in (await change(api, unload, r=IMAGE, t="*"))["msg"]
    gone = await change(api, unload, r="host/python:3.11", t="agent-1")
    assert (await ended(api, gone["task_id"])).status.value == "bgtask_done"
    assert (api.agent.image_jobs[-1].action, api.agent.image_jobs[-1].image) == ("remove", "host/python:3.11")
    for agent in (good, full):
        await agent.close()


async def test_sessions_become_images(api: Api, harbor: tuple[FakeHarbor, str]) -> None:
    await api.create(name="mine")
    busy = ImageJobState(state="running")
    done = ImageJobState(state="done", result={"place": "/x/a.tar.gz", "size_bytes": 3})
    api.agent.image_answers = [busy, busy, done]
    begun = await api.user.request("POST", "/session/mine/commit")
    told = begun.json()
    assert begun.status == 201, told
    assert told["path"].startswith("user@")
    task = await ended(api, told["bgtask_id"])
    assert (task.status.value, "/x/a.tar.gz" in str(task.message)) == ("bgtask_done", True)
    assert (await api.user.request("GET", "/session/mine/commit")).json()["status"] == "ready"
    assert api.agent.image_jobs[0].labels == {}
    unsupported = ImageJobState(state="failed", code="not-supported", message="no layers")
    api.agent.image_answers = [unsupported]
    reply = await api.user.request("POST", "/session/mine/commit")
    assert (reply.status, reply.problem) == (501, "not-supported")
    assert (await api.user.request("POST", "/session/mine/imagify", json={"image_name": "a"})).status == 501
    await filled(api, harbor)
    config = api.cluster.manager.services.config
    await config.set(api.cluster.admin, "config/docker/image/customized", f"{NAME}/users")
    result = {"place": "p", "size_bytes": 1, "digest": "sha256:" + "1" * 64}
    labels = {"ai.backend.customized-image.owner": f"user:{api.cluster.user.user_id}"}
    api.agent.image_answers = [ImageJobState(state="done", result={**result, "labels": labels})]
    pushed = (await api.user.request("POST", "/session/mine/imagify", json={"image_name": "tuned"})).json()
    await ended(api, pushed["bgtask_id"])
    assert pushed["path"].startswith(f"{NAME}/users/python:3.11-tuned-")
    assert pushed["path"] in await ids(api, api.user)
    assert pushed["path"] not in await ids(api, api.other)
    refused = await api.other.request("POST", "/session", json={"image": pushed["path"]})
    assert refused.status == 404
    assert (await api.user.request("POST", "/session/mine/imagify", json={"image_name": "A b"})).status == 400
    await config.set(api.cluster.admin, "config/docker/image/commit", "false")
    assert (await api.user.request("POST", "/session/mine/commit")).status == 403


async def test_an_image_of_a_node_whose_minimum_is_no_amount_hides_no_other(api: Api) -> None:
    odd = ImageReport(name="host/odd:1", architecture="x86_64", labels={"ai.backend.resource.min.cpu": "abc"})
    assert api.cluster.manager.reports is not None
    await api.cluster.manager.reports.heartbeat(api.agent.report(images=[*api.agent.images, odd], number=0))
    reply = await api.gql("{ images { name resource_limits { key } } }")
    limits = {image["name"]: [limit["key"] for limit in image["resource_limits"]] for image in reply["data"]["images"]}
    assert limits == {"host/odd": [], "host/python": ["cpu", "mem"]}
    refused = await api.user.request("POST", "/session", json={"image": "host/odd:1"})
    assert (refused.status, refused.json()["data"]) == (400, {"image": "bad labels"})
