from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ai.backend.manager.identity.model import Group
from tests.component.manager.api.conftest import Api
from tests.component.manager.test_slots import Machine
from tests.component.manager.test_variants import GpuAgent
from tests.support.signed_http import RawClient


async def test_what_the_cluster_offers(api: Api) -> None:
    slots = (await api.user.request("GET", "/config/resource-slots")).json()
    assert slots == {"cpu": "count", "mem": "bytes", "mock.device": "count"}
    details = (await api.user.request("GET", "/config/resource-slots/details")).json()
    assert details["mock.device"] == {
        "slot_name": "mock.device",
        "slot_type": "count",
        "description": "",
        "human_readable_name": "mock.device",
        "display_unit": "",
        "number_format": {"binary": False, "round_length": 0},
        "display_icon": "",
    }
    in_group = (await api.user.request("GET", "/config/resource-slots/details?sgroup=default")).json()
    assert in_group == details
    assert (await api.user.request("GET", "/config/resource-slots/details?sgroup=nowhere")).json() == {}
    assert isinstance((await api.user.request("GET", "/config/vfolder-types")).json(), list)
    assert isinstance((await api.user.request("GET", "/config/docker-registries")).json(), dict)
    assert isinstance((await api.user.request("GET", "/resource/presets")).json()["presets"], list)
    groups = (await api.user.request("GET", "/scaling-groups?group=default")).json()
    assert groups == {"scaling_groups": [{"name": "default"}]}


async def test_a_request_sees_one_set_of_slots(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that appears in the middle of a request belongs to the next one."""
    late = Machine("late", cuda_device="1")
    store = api.cluster.manager.stores.identities
    groups = store.groups

    async def slow(**narrowed: Any) -> Sequence[Group]:
        if late.reports is None:
            await api.cluster.join(late)
        return await groups(**narrowed)

    monkeypatch.setattr(store, "groups", slow)
    body = {"image": "python", "config": {"resources": {"cuda.device": 1}}}
    refused = await api.user.request("POST", "/session", json=body)
    assert (refused.status, late.reports is None) == (400, False)
    assert refused.json()["data"]["available"] == ["cpu", "mem", "mock.device"]
    assert (await api.user.request("POST", "/session", json=body)).status == 201


async def test_watchers_of_agents_are_asked(api: Api) -> None:
    heard: list[tuple[str, str, str]] = []

    async def watch(request: web.Request) -> web.StreamResponse:
        heard.append((request.method, request.path, request.headers["X-BackendAI-Watcher-Token"]))
        if request.path == "/agent/stop":
            return web.json_response({"title": "no", "msg": "The agent could not stop: broken"}, status=503)
        if request.path == "/agent/start":
            return web.Response(text="no JSON")
        if request.method == "POST":
            return web.json_response({"result": "o" * (70_000 if is_verbose else 1)})
        reply = web.StreamResponse()
        await reply.prepare(request)
        for piece in (b'{"agent-status": ', b'"active"}'):
            await reply.write(piece)
            await asyncio.sleep(0.02)  # so that they come one by one
        return reply

    is_verbose = False
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", watch)

    async def ask(action: str = "", client: RawClient = api.admin, agent: str = "agent-1") -> tuple[int, Any]:
        method, path = ("POST", f"/resource/watcher/agent/{action}") if action else ("GET", "/resource/watcher")
        reply = await client.request(method, path, json={"agent_id": agent})
        return reply.status, reply.json()

    async with TestServer(app) as server:
        assert (await ask())[1]["msg"].startswith("The watcher of agent-1 is not known: set nodes/agents/agent-1/ip")
        config = api.cluster.manager.stores.config
        await config.put_many(
            {
                "nodes/agents/agent-1/ip": "127.0.0.1",
                "nodes/agents/agent-1/watcher_port": str(server.port),
                "config/watcher/token": "t0ken",
            }
        )
        assert await ask() == (200, {"agent-status": "active"})
        assert (await ask("restart"))[0] == 200
        is_verbose = True
        assert (await ask("restart"))[0] == 503, "nobody says so much"
        is_verbose = False
        status, refused = await ask("stop")
        assert (status, "broken" in refused["msg"]) == (503, True)
        assert (await ask("start"))[0] == 503, "no sense in its answer"
        assert (await ask("reboot"))[0] == 404
        assert (await ask("restart", client=api.user))[0] == 403
        assert (await ask("restart", agent="nobody"))[0] == 404
        await config.put_many({"nodes/agents/agent-1/ip": "https://127.0.0.1"})
        status, refused = await ask("restart")
        assert (status, "SSL" in refused["msg"]) == (503, True), "the token is not sent to who speaks no TLS"
        await config.put_many({"nodes/agents/agent-1/ip": "ftp://127.0.0.1"})
        assert (await ask("restart"))[0] == 400
        await config.put_many({"nodes/agents/agent-1/ip": "127.0.0.1"})
    assert heard == [
        ("GET", "/", "t0ken"),
        ("POST", "/agent/restart", "t0ken"),
        ("POST", "/agent/restart", "t0ken"),
        ("POST", "/agent/stop", "t0ken"),
        ("POST", "/agent/start", "t0ken"),
    ]
    assert (await ask("restart"))[0] == 503, "it is away"
    await config.put_many({"nodes/agents/agent-1/watcher_port": "x"})
    assert (await ask("restart"))[0] == 400


async def test_variants_over_the_wire(api: Api) -> None:
    gpus = GpuAgent(agent_id="gpus", gpus=[("8.0", "A100"), ("9.0", "H100")], unhealthy={"gpu-0"})
    await api.cluster.join(gpus)
    listed = (await api.user.request("GET", "/resource/variant-properties?scaling_group=default")).json()
    assert listed["variant_properties"][0] == {
        "property": "cuda::model::H100",
        "namespace": "cuda",
        "feature": "model",
        "value": "H100",
        "match_mode": "exact",
        "device_names": ["cuda"],
        "devices": {"default": 1},
    }
    assert (await api.user.request("GET", "/resource/variant-properties?scaling_group=nowhere")).status == 404
    told = await api.gql("{ variant_properties { property match_mode devices } }")
    assert told["data"]["variant_properties"][1] == {
        "property": "nvidia::compute_capability::9.0",
        "match_mode": "minimum",
        "devices": '{"default": 1}',
    }
    resources = {"cuda.device": 1}
    for wrong in (["H100"], ["a::b::c"] * 33, [""], "a::b::c", [1]):
        body = {"image": "python", "config": {"resources": resources, "variant_requirements": wrong}}
        refused = await api.user.request("POST", "/session", json=body)
        assert refused.status == 400, wrong
        assert [name.partition("[")[0] for name in refused.json()["data"]] == ["config.variant_requirements"]
    made = await api.create(
        name="mine", config={"resources": resources, "variantRequirements": ["nvidia::compute_capability::8.5"]}
    )
    info = (await api.user.request("GET", "/session/mine")).json()
    assert info["variantRequirements"] == ["nvidia::compute_capability::8.5"]
    query = "query($id: UUID!) { compute_session(id: $id) { variant_requirements } }"
    session = (await api.gql(query, id=made["sessionId"]))["data"]["compute_session"]
    assert session == {"variant_requirements": ["nvidia::compute_capability::8.5"]}

    agents = "{ agent_list(limit: 20, offset: 0) { items { id compute_plugins devices } } }"
    seen = (await api.gql(agents, api.admin))["data"]["agent_list"]["items"]
    devices = {a["id"]: json.loads(a["devices"]) for a in seen}["gpus"]
    assert [(d["device_id"], d["model_name"], d["health"], d["allocated"]) for d in devices] == [
        ("gpu-0", "A100", "unhealthy", {}),
        ("gpu-1", "H100", "healthy", {"cuda.device": "1"}),
    ]
    assert (await api.gql(agents))["data"]["agent_list"]["items"] == [], "agents are for administrators"


async def test_what_is_left(api: Api) -> None:
    await api.create(name="holder", config={"resources": {"cpu": 2, "mem": "1g"}})
    told = (await api.user.request("POST", "/resource/check-presets")).json()
    assert told["keypair_using"]["cpu"] == "2"
    assert told["keypair_limits"]["cpu"] == "Infinity"
    assert told["scaling_group_remaining"]["cpu"] == "6"
    assert told["scaling_groups"]["default"]["remaining"]["cpu"] == "6"
    by_name = (await api.user.request("POST", "/resource/check-presets", json={"scaling_group": "default"})).json()
    assert by_name["scaling_groups"] == told["scaling_groups"]
    bad = await api.user.request("POST", "/resource/check-presets", json={"scaling_group": 1, "x": 2})
    assert set(bad.json()["data"]) == {"scaling_group", "x"}


async def test_the_manager(api: Api) -> None:
    await api.create(name="holder")
    status = (await api.user.request("GET", "/manager/status", json={"status": "running"})).json()
    assert (status["status"], status["active_sessions"]) == ("running", 1)
    assert (await api.user.request("GET", "/manager/announcement")).json() == {"enabled": False, "message": ""}
    role = (await api.admin.request("GET", "/auth/role?group=default")).json()
    assert role == {"global_role": "superadmin", "domain_role": "admin", "group_role": "admin"}


async def test_probes_and_documents(api: Api) -> None:
    anonymous = api.user.__class__(port=api.port)
    version = (await anonymous.request("GET", "/")).json()
    assert version["version"] == "v7.20230615"
    assert version["manager"]
    document = (await anonymous.request("GET", "/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    assert "CreateSessionBody" in document["components"]["schemas"]
    await api.create(name="holder")
    metrics = (await anonymous.request("GET", "/metrics")).body.decode()
    assert "backendai_manager_sessions_live 1.0" in metrics
    assert 'route="POST /session",status="201"' in metrics
    assert (await anonymous.request("GET", "/readyz")).status == 200
    assert (await anonymous.request("GET", "/resource/presets")).status == 401


async def test_superadmins_operate_devices(api: Api) -> None:
    path = "/resource/agents/agent-1/devices/mock/operations"
    told = (await api.admin.request("GET", path)).json()
    assert (told["actions"], told["devices"]) == (["cordon", "drain", "reset"], ["mock-0"])
    body = {"action": "partition", "device_id": "GPU:0/1", "argument": "1g.10gb"}
    assert (await api.admin.request("POST", path, json=body)).json() == {"device_id": "GPU:0/1:partition:1g.10gb"}
    cordon = {"action": "cordon", "device_id": "mock-0", "argument": "a loud fan", "expires_after_s": 60}
    assert (await api.admin.request("POST", path, json=cordon)).status == 200
    refusals = [
        (api.user, path, body, 403),
        (api.user, path, cordon, 403),
        (api.admin, path, {**cordon, "expires_after_s": 0}, 400),
        (api.admin, path.replace("agent-1", "nobody"), body, 404),
        (api.admin, path, {**body, "device_id": "busy"}, 409),
        (api.admin, path, {**body, "device_id": ""}, 400),
        (api.admin, path, {**body, "surprise": 1}, 400),
    ]
    for who, where, what, status in refusals:
        assert (await who.request("POST", where, json=what)).status == status
    assert (await api.user.request("GET", path)).status == 403
