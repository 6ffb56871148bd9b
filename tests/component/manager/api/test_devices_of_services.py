"""Every replica of a model service is made with the variants and device requests of its revision."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.session import AsyncSession
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.shell import Shell
from tests.component.manager.api.test_claims_named import make, prepare_services, service
from tests.component.manager.test_variants import GpuAgent

VARIANT, REQUEST = "nvidia::compute_capability::8.0", 'model == "H100"'
RESOURCES: dict[str, str | int | float] = {"cpu": 1, "mem": "64m", "cuda.device": 1}


@pytest.fixture
async def gpus(api: Api) -> GpuAgent:
    agent = GpuAgent(agent_id="i-02", gpus=[("8.0", "A100"), ("9.0", "H100"), ("9.0", "H100")])
    await api.cluster.join(agent)
    await prepare_services(api)
    return agent


async def until_created(agent: GpuAgent, count: int) -> None:
    async with asyncio.timeout(30):
        while len(agent.created) < count:  # noqa: ASYNC110  # the agent of the bench keeps what it is asked in a list
            await asyncio.sleep(0.02)  # a plain list has no event


async def test_each_replica_gets_devices_that_the_service_asks_for(api: Api, gpus: GpuAgent) -> None:
    config = {"resources": RESOURCES, "variant_requirements": [VARIANT], "device_requests": [REQUEST]}
    reply = await api.user.request("POST", "/services", json={**service(**config), "desired_session_count": 2})
    assert reply.status == 201, reply.body
    assert (reply.json()["variant_requirements"], reply.json()["device_requests"]) == ([VARIANT], [REQUEST])
    await until_created(gpus, 2)
    assert sorted(device for spec in gpus.created for device in spec.devices["cuda.device"]) == ["gpu-1", "gpu-2"]
    assert [(spec.variant_requirements, spec.device_requests) for spec in gpus.created] == [([VARIANT], [REQUEST])] * 2
    query = "{ endpoint_list(limit: 5, offset: 0) { items { endpoint_id variant_requirements device_requests } } }"
    (item,) = (await api.gql(query, api.user))["data"]["endpoint_list"]["items"]
    assert (item["variant_requirements"], item["device_requests"]) == ([VARIANT], [REQUEST])


@pytest.mark.parametrize(
    ("config", "field", "message"),
    [
        ({"device_requests": ["memory >="]}, "config.device_requests", "ends too early at column 10"),
        ({"variant_requirements": ["nvidia"]}, "config.variant_requirements", "nvidia"),
        ({"device_requests": ["memory >= 1g"] * 9}, "config.device_requests", ""),
        ({"device_requests": [REQUEST], "resources": {"cpu": 1}}, "config.device_requests", "concern accelerators"),
    ],
)
async def test_a_wrong_request_is_refused_with_its_field(
    api: Api, gpus: GpuAgent, config: dict[str, Any], field: str, message: str
) -> None:
    reply = await api.user.request("POST", "/services", json=service(**{"resources": RESOURCES, **config}))
    assert (reply.status, message in reply.json()["msg"]) == (400, True), reply.body
    assert field.removeprefix("config.") in str(reply.json()["data"])
    assert (await api.user.request("GET", "/services")).json() == []


async def test_a_claim_says_itself_what_its_devices_are(api: Api, gpus: GpuAgent) -> None:
    await make(api)
    config = {"claim": "gpus", "device_requests": ["memory >= 1g"]}
    reply = await api.user.request("POST", "/services", json=service(**config))
    assert (reply.status, "not the session" in reply.json()["msg"]) == (400, True), reply.body


async def test_a_change_is_a_new_revision_and_an_empty_list_is_none(api: Api, gpus: GpuAgent) -> None:
    made = await api.user.request(
        "POST", "/services", json={**service(resources=RESOURCES), "desired_session_count": 0}
    )
    assert (made.json()["variant_requirements"], made.json()["device_requests"]) == ([], [])
    path = "/services/my-service"
    changed = (await api.user.request("PATCH", path, json={"device_requests": [REQUEST]})).json()
    assert (changed["device_requests"], changed["revisions"][0]["number"]) == ([], 2), "as long as 1 is the active one"
    mutation = """mutation($id: UUID!, $requests: [String]) {
      modify_endpoint(endpoint_id: $id, props: { device_requests: $requests }) {
        ok msg endpoint { revisions { number } } } }"""
    for requests, number in (([REQUEST, "memory >= 1g"], 3), ([], 4)):
        reply = await api.gql(mutation, api.user, id=made.json()["endpoint_id"], requests=requests)
        ended = reply["data"]["modify_endpoint"]
        assert (ended["ok"], ended["endpoint"]["revisions"][0]["number"]) == (True, number), reply
    specs = [each.spec for each in (await stored(api)).revisions]
    assert [each.device_requests for each in specs] == [(), (REQUEST, "memory >= 1g"), (REQUEST,), ()]
    for invalid in (["=="], [None]):
        reply = await api.gql(mutation, api.user, id=made.json()["endpoint_id"], requests=invalid)
        assert reply["data"]["modify_endpoint"]["ok"] is False, reply
    assert (await api.user.request("PATCH", path, json={"device_requests": ["=="]})).status == 400


async def test_null_gives_a_field_the_value_of_a_creation_without_it(api: Api, gpus: GpuAgent) -> None:
    body = {**service(resources=RESOURCES, device_requests=[REQUEST]), "tag": "mine", "desired_session_count": 0}
    assert (await api.user.request("POST", "/services", json=body)).status == 201
    reply = await api.user.request("PATCH", "/services/my-service", json={"tag": None, "device_requests": None})
    assert reply.status == 200, reply.body
    spec = (await stored(api)).revisions[0].spec
    assert (spec.tag, spec.device_requests, spec.resources["cuda.device"]) == (None, (), "1")


async def stored(api: Api) -> Any:
    (summary,) = (await api.user.request("GET", "/services")).json()
    serving = api.cluster.manager.services.serving
    assert serving is not None
    return await serving.service.get(api.cluster.user, summary["id"])


async def test_the_commands_and_the_sdk_say_them(api: Api, shell: Shell, gpus: GpuAgent) -> None:
    slots = [word for name, amount in RESOURCES.items() for word in ("-r", f"{name}={amount}")]
    command = ("service", "create", "-t", "my-service", *slots, "--startup-command", "serve")
    devices = ("--variant", VARIANT, "--device-request", REQUEST, "--device-request", "memory >= 1g")
    made = await shell.own(*command, *devices, "python", "data", "0", by=api.user)
    assert (made["variant_requirements"], made["device_requests"]) == ([VARIANT], [REQUEST, "memory >= 1g"])
    shown = await shell.text("service", "info", "my-service", inside=())
    assert VARIANT in shown
    assert f"{REQUEST}; memory >= 1g" in shown
    update = ("service", "update", "my-service")
    await shell.own(*update, "--device-request", "memory >= 2g", "--clear", "variant", by=api.user)
    spec = (await stored(api)).revisions[0].spec
    assert (spec.variant_requirements, spec.device_requests) == ((), ("memory >= 2g",))
    await shell.own(
        *update, "--device-request", "a == 1", "--clear", "device-request", by=api.user, fails="give either"
    )
    await shell.own("service", "rm", "my-service", by=api.user)
    config = APIConfig(
        endpoint=f"http://127.0.0.1:{api.port}", access_key=api.user.access_key, secret_key=api.user.secret_key
    )
    async with AsyncSession(config=config) as sdk:
        handle = await sdk.Service.create(
            *("python", "data", 1), service_name="of-sdk", resources=RESOURCES, startup_command="serve",
            variant_requirements=(VARIANT,), device_requests=[REQUEST],
        )  # fmt: skip
        info = await handle.info()
    assert (info["variant_requirements"], info["device_requests"]) == ([VARIANT], [REQUEST])
    await until_created(gpus, 1)
    assert gpus.created[0].device_requests == [REQUEST]
