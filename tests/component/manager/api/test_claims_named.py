"""Templates and commands name device claims, lists show them, and presets refuse them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.component.manager.api.conftest import Api
from tests.component.manager.api.shell import Shell
from tests.component.manager.api.test_app_proxy_api import use_proxy
from tests.component.manager.api.test_session_defaults_api import keep

TEMPLATE = """
api_version: v1
kind: taskTemplate
metadata: {name: kept}
spec:
  kernel: {image: python}
  claim: gpus
"""


async def make(api: Api, name: str = "gpus", count: int = 1) -> None:
    body = {"name": name, "resources": {"mock.device": count}}
    assert (await api.user.request("POST", "/claims", json=body)).status == 201


async def from_template(api: Api, template_id: str, name: str, **config: Any) -> Any:
    body = {"template_id": template_id, "name": name, "maxWaitSeconds": 10, "config": config}
    return await api.user.request("POST", "/session/_/create-from-template", json=body)


def cluster(*nodes: dict[str, Any]) -> str:
    document = {"api_version": "v1", "kind": "clusterTemplate", "metadata": {"name": "c"}, "spec": {"nodes": nodes}}
    return json.dumps(document)


async def test_a_session_of_a_template_has_the_claim_that_the_template_names(api: Api) -> None:
    kept = await keep(api.user, TEMPLATE)
    assert (await from_template(api, kept, "early")).status == 404, "the claim is looked up when a session is made"
    await make(api)
    reply = await from_template(api, kept, "first")
    assert (reply.status, reply.json()["status"]) == (201, "RUNNING"), reply.body
    assert (await api.user.request("GET", "/session/first")).json()["claim"] == "gpus"
    assert api.agent.created[-1].environ["BACKENDAI_DEVICE_CLAIM"] == "gpus"


async def test_a_request_overrides_the_claim_of_its_template(api: Api) -> None:
    kept = await keep(api.user, TEMPLATE)
    for name in ("gpus", "other"):
        await make(api, name)
    assert (await from_template(api, kept, "first", claim="other")).status == 201
    assert (await api.user.request("GET", "/session/first")).json()["claim"] == "other"
    assert (await from_template(api, kept, "second", claim="", resources={"mock.device": 1})).status == 201
    assert (await api.user.request("GET", "/session/second")).json()["claim"] is None
    reply = await from_template(api, kept, "third", resources={"mock.device": 1})
    assert reply.status == 400
    assert "leave out mock.device" in reply.json()["msg"]


async def test_a_template_of_accelerators_runs_with_a_claim_that_replaces_them(api: Api) -> None:
    kept = await keep(api.user, TEMPLATE.replace("claim: gpus", "resources: {mock.device: 1}"))
    await make(api)
    assert (await from_template(api, kept, "first", claim="gpus")).status == 400
    reply = await from_template(api, kept, "first", claim="gpus", resources={"mock.device": 0})
    assert reply.status == 201, reply.body


async def test_a_template_with_a_name_that_no_claim_can_have_is_refused(api: Api) -> None:
    for name in ("../gpus", "a b", "x" * 65, "-a", "gpus\\n"):
        payload = TEMPLATE.replace("claim: gpus", f'claim: "{name}"')
        reply = await api.user.request("POST", "/template/session", json={"payload": payload})
        assert (reply.status, "spec.claim" in reply.json()["data"]["payload"]) == (400, True), reply.body


@pytest.mark.parametrize("field", ["claim: other", "device_requests: ['memory >= 1g']"])
async def test_a_role_says_nothing_else_of_devices_than_main(api: Api, field: str) -> None:
    main = await keep(api.user, TEMPLATE)
    sub = await keep(api.user, TEMPLATE.replace("claim: gpus", field))
    nodes = [{"role": "main", "session_template": main}, {"role": "sub", "session_template": sub}]
    kept = await keep(api.user, cluster(*nodes), "cluster")
    await make(api)
    body = {"template_id": kept, "name": "clustered"}
    reply = await api.user.request("POST", "/session/_/create-cluster", json=body)
    assert reply.status == 400, reply.body
    assert f"sub: {field.partition(':')[0]} differs" in reply.json()["data"]["template_id"]
    assert api.agent.created == []


async def test_a_cluster_of_a_claim_that_is_used_in_turn_is_refused(api: Api) -> None:
    main = await keep(api.user, TEMPLATE)
    nodes = [{"role": role, "session_template": main} for role in ("main", "sub")]
    kept = await keep(api.user, cluster(*nodes), "cluster")
    await make(api)
    reply = await api.user.request("POST", "/session/_/create-cluster", json={"template_id": kept, "name": "cluster"})
    assert (reply.status, "let them share" in reply.json()["msg"]) == (400, True), reply.body


@pytest.mark.parametrize("verb", ["create", "modify"])
async def test_a_preset_refuses_a_claim_by_name(api: Api, verb: str) -> None:
    reply = await api.gql(
        f'mutation {{ {verb}_resource_preset(name: "small", props: {{ claim: "gpus" }}) {{ ok msg }} }}', api.admin
    )
    (error,) = reply["errors"]
    assert "unknown field 'claim'" in error["message"]


async def test_the_commands_name_and_show_the_claim(api: Api, shell: Shell) -> None:
    await make(api)
    kept = await keep(api.user, TEMPLATE)
    await shell.own("start", "-t", "plain", "-r", "cpu=1", "python", by=api.user)
    assert "Claim" not in await shell.text("ps", inside=())
    await shell.own("start-template", kept, "-t", "first", by=api.user)
    listed = (await shell.own("ps", by=api.user))["items"]
    assert {item["name"]: item["claim"] for item in listed} == {"plain": None, "first": "gpus"}
    table = await shell.text("ps", inside=())
    assert "Claim" in table.splitlines()[0]
    assert "gpus" in table
    assert "gpus" in await shell.text("ps", "--detail", inside=())
    assert "gpus" in await shell.text("ps", "--format", "name,claim", inside=())
    assert (await shell.own("info", "first", by=api.user))["claim"] == "gpus"
    await shell.own("start-template", kept, "-t", "second", "--claim", "", "-r", "mock.device=1", by=api.user)
    assert (await shell.own("info", "second", by=api.user))["claim"] is None


SERVICE = {"name": "my-service", "image": "python", "startup_command": "serve", "config": {"model": "data"}}


async def prepare_services(api: Api) -> None:
    await use_proxy(api, "http://127.0.0.1:9")
    assert (await api.user.request("POST", "/folders", json={"name": "data"})).status == 201


def service(**config: Any) -> dict[str, Any]:
    return {**SERVICE, "config": {"model": "data", **config}}


async def test_the_replica_of_a_service_has_its_claim(api: Api) -> None:
    await prepare_services(api)
    await make(api)
    reply = await api.user.request("POST", "/services", json=service(claim="gpus"))
    assert (reply.status, reply.json()["claim"]) == (201, "gpus"), reply.body
    async with asyncio.timeout(20):
        while not api.agent.created:  # noqa: ASYNC110  # the agent of the bench keeps what it is asked in a list
            await asyncio.sleep(0.02)
    (spec,) = api.agent.created
    assert (spec.environ["BACKENDAI_DEVICE_CLAIM"], len(spec.devices["mock.device"])) == ("gpus", 1)
    seen = await api.gql("{ endpoint_list(limit: 5, offset: 0) { items { endpoint_id claim } } }", api.user)
    (item,) = seen["data"]["endpoint_list"]["items"]
    assert item["claim"] == "gpus"
    for path, body in (("/scale", {"to": 2}), ("/scaling", {"max_replicas": 2})):
        refused = await api.user.request(
            "POST" if path == "/scale" else "PATCH", f"/services/my-service{path}", json=body
        )
        assert (refused.status, "one replica at most" in refused.json()["msg"]) == (400, True), refused.body
    changed = await api.user.request("PATCH", "/services/my-service", json={"claim": "unknown"})
    assert changed.status == 404
    mutation = """mutation($id: UUID!) { modify_endpoint(endpoint_id: $id, props: { claim: "" }) {
        ok msg endpoint { revisions { number } } } }"""
    ended = (await api.gql(mutation, api.user, id=item["endpoint_id"]))["data"]["modify_endpoint"]
    assert (ended["ok"], len(ended["endpoint"]["revisions"])) == (True, 2), ended


@pytest.mark.parametrize(
    ("changes", "config", "status", "message"),
    [
        ({}, {"claim": "unknown"}, 404, "no device claim 'unknown'"),
        ({}, {"claim": "of-admin"}, 404, "no device claim 'of-admin'"),
        ({}, {"claim": "../gpus"}, 404, "no device claim"),
        ({}, {"claim": "gpus", "resources": {"mock.device": 1}}, 400, r"leave out mock.device"),
        ({"desired_session_count": 2}, {"claim": "gpus"}, 400, "has one replica at most"),
        ({"cluster_size": 2}, {"claim": "gpus"}, 400, "let them share"),
        ({"cluster_size": 2, "cluster_mode": "multi-node"}, {"claim": "gpus"}, 400, "on one node"),
    ],
)
async def test_a_service_that_cannot_use_a_claim_is_refused(
    api: Api, changes: dict[str, Any], config: dict[str, Any], status: int, message: str
) -> None:
    await prepare_services(api)
    await make(api)
    body = {"name": "of-admin", "resources": {"mock.device": 1}}
    assert (await api.admin.request("POST", "/claims", json=body)).status == 201
    reply = await api.user.request("POST", "/services", json={**service(**config), **changes})
    assert (reply.status, message in reply.json()["msg"]) == (status, True), reply.body
    assert (await api.user.request("GET", "/services")).json() == []


async def test_the_commands_of_services_name_a_claim(api: Api, shell: Shell) -> None:
    await prepare_services(api)
    await make(api)
    command = ("service", "create", "-t", "my-service", "--claim", "gpus", "--startup-command", "serve", "python")
    assert (await shell.own(*command, "data", by=api.user))["claim"] == "gpus"
    assert "claim" in await shell.text("service", "info", "my-service", inside=())
    await shell.own("service", "scale", "my-service", "2", by=api.user, fails="one replica at most")
    await shell.own("service", "update", "my-service", "--claim", "", by=api.user)
