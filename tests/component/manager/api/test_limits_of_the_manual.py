"""Requests that the manual refuses, and limits on what one user can pile up."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ai.backend.manager.logs.errors import MAX_REPORTS_PER_USER
from tests.component.manager.api.conftest import Api

POLICY = """mutation($s: JSONString!, $d: String!) { modify_keypair_resource_policy(name: "default", props: {
    total_resource_slots: $s, default_for_unspecified: $d }) { ok msg } }"""


async def set_policy(api: Api, slots: dict[str, Any], unspecified: str = "UNLIMITED") -> None:
    reply = await api.gql(POLICY, api.admin, s=json.dumps(slots), d=unspecified)
    assert reply["data"]["modify_keypair_resource_policy"]["ok"], reply


@pytest.mark.parametrize(
    ("slots", "unspecified", "excess"), [({"cpu": "1"}, "UNLIMITED", "cpu"), ({"cpu": "4"}, "LIMITED", "mem")]
)
async def test_a_session_above_the_policy_of_its_keypair_is_refused(
    api: Api, slots: dict[str, Any], unspecified: str, excess: str
) -> None:
    await set_policy(api, slots, unspecified)
    body = {"image": "python", "enqueueOnly": True, "config": {"resources": {"cpu": 2, "mem": "256m"}}}
    refused = await api.user.request("POST", "/session", json=body)
    assert (refused.status, refused.problem) == (406, "limit-exceeded")
    assert refused.json()["data"] == {"config.resources": f"{excess}: more than your policy allows"}
    await set_policy(api, {})
    assert (await api.user.request("POST", "/session", json=body)).status == 201


async def test_kernels_of_a_cluster_count_together(api: Api) -> None:
    await set_policy(api, {"cpu": "1"})
    body = {"image": "python", "clusterSize": 2, "config": {"resources": {"cpu": 1, "mem": "256m"}}}
    assert (await api.user.request("POST", "/session", json=body)).status == 406
    assert (await api.user.request("POST", "/session", json={**body, "clusterSize": 1})).status == 201


async def test_sessions_are_limited_without_a_policy_that_says_so(api: Api) -> None:
    factory = api.cluster.manager.services.sessions.factory
    factory.settings = factory.settings.model_copy(update={"max_live_sessions": 2})
    body = {"image": "python", "enqueueOnly": True, "startsAt": "1h"}
    replies = [await api.user.request("POST", "/session", json=body) for _ in range(3)]
    assert [reply.status for reply in replies] == [201, 201, 406]
    assert (await api.other.request("POST", "/session", json=body)).status == 201


async def test_the_newest_reports_of_a_user_are_kept(api: Api) -> None:
    body = {"severity": "error", "source": "test", "message": "m"}
    await api.other.request("POST", "/logs/error", json=body)
    for start in range(0, MAX_REPORTS_PER_USER + 8, 16):
        calls = (api.user.request("POST", "/logs/error", json={**body, "message": str(start)}) for _ in range(16))
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
    assert (await api.user.request("GET", "/logs/error")).json()["count"] == MAX_REPORTS_PER_USER
    assert (await api.other.request("GET", "/logs/error")).json()["count"] == 1


@pytest.mark.parametrize("body", [{"group": "nobodys"}, {"scaling_group": "nobodys"}])
async def test_presets_are_not_checked_for_what_is_not_there(api: Api, body: dict[str, str]) -> None:
    reply = await api.user.request("POST", "/resource/check-presets", json=body)
    assert (reply.status, reply.json()["data"]) == (404, dict.fromkeys(body, "unknown"))


async def test_a_preset_is_checked_by_the_slots_that_it_shows(api: Api) -> None:
    slots = json.dumps({"cpu": "1", "mem": "256m", "no.such": "1"})
    query = 'mutation($s: JSONString!) { create_resource_preset(name: "odd", props: {resource_slots: $s}) { ok msg } }'
    made = await api.gql(query, api.admin, s=slots)
    assert made["data"]["create_resource_preset"]["ok"], made
    presets = (await api.user.request("POST", "/resource/check-presets", json={})).json()["presets"]
    odd = next(preset for preset in presets if preset["name"] == "odd")
    assert (sorted(odd["resource_slots"]), odd["allocatable"]) == (["cpu", "mem"], True)


async def test_a_terminal_of_an_unknown_service_is_refused(api: Api) -> None:
    await api.create(name="runs")
    for name in ("app", "service"):
        target = f"/stream/session/runs/pty?{name}=zzz"
        reply = await api.user.request("GET", target, content_type=None)
        assert (reply.status, reply.json()["data"]) == (404, {"app": "unknown"})


@pytest.mark.parametrize(("method", "path"), [("GET", "/v2/kernel/create"), ("GET", "/nothing"), ("PUT", "/session")])
async def test_an_unsigned_call_learns_nothing_of_paths(api: Api, method: str, path: str) -> None:
    api.user.access_key = ""
    reply = await api.user.request(method, path)
    assert (reply.status, reply.json()["detail"]) == (401, "The Authorization header is missing.")
