"""Device claims over REST, GraphQL, SDK and CLI, and in reports of usage."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from ai.backend.common.ids import AgentId
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.shell import Shell
from tests.support.signed_http import RawClient

LIST = """{ device_claim_list(limit: 10, offset: 0) { total_count items {
  id name status is_deleting agent requested_slots devices sessions { name status } allocated_at } } }"""


async def claim_at(api: Api, status: str, name: str = "gpus") -> dict[str, Any]:
    claim: dict[str, Any] = {}
    for _ in range(500):
        claim = (await api.user.request("GET", f"/claims/{name}")).json()
        if claim["status"] == status:
            return claim
        await asyncio.sleep(0.02)
    raise AssertionError(claim)


async def graphql(api: Api, client: RawClient, query: str) -> dict[str, Any]:
    reply = await api.gql(query, client)
    assert "errors" not in reply, reply
    data: dict[str, Any] = reply["data"]
    return data


async def test_a_claim_from_its_creation_to_its_deletion(api: Api) -> None:
    body = {"name": "gpus", "resources": {"mock.device": "2"}, "idle_timeout": "30m"}
    malformed = await api.user.request("POST", "/claims", json={**body, "idle_timeout": "0"})
    assert (malformed.status, list(malformed.json()["data"])) == (400, ["idle_timeout"])
    reply = await api.user.request("POST", "/claims", json=body)
    assert reply.status == 201
    claim = reply.json()
    assert (claim["status"], claim["idle_timeout"], claim["requested_slots"]) == (
        "UNALLOCATED",
        1800,
        {"mock.device": "2"},
    )
    assert (await api.user.request("POST", "/claims", json=body)).status == 409
    session = {"image": "python", "name": "first", "config": {"claim": "gpus"}}
    started = (await api.user.request("POST", "/session", json=session)).json()
    assert started["status"] == "RUNNING"
    used = await claim_at(api, "IN_USE")
    assert [each["name"] for each in used["sessions"]] == ["first"]
    assert used["agent"] is None
    assert len(used["devices"]["mock.device"]) == 2
    assert (await api.user.request("GET", "/session/first")).json()["claim"] == "gpus"
    assert (await api.user.request("POST", "/claims/gpus/release")).status == 409
    listed = (await graphql(api, api.admin, LIST))["device_claim_list"]
    assert (listed["total_count"], listed["items"][0]["agent"]) == (1, api.agent.agent_id)
    own = await graphql(api, api.user, 'query { device_claim(ref: "gpus") { status sessions { name } } }')
    assert own["device_claim"] == {"status": "IN_USE", "sessions": [{"name": "first"}]}
    row = await graphql(api, api.user, f'{{ compute_session(id: "{started["sessionId"]}") {{ claim }} }}')
    assert row["compute_session"] == {"claim": "gpus"}
    deleting = (await api.user.request("DELETE", "/claims/gpus")).json()
    assert (deleting["status"], deleting["is_deleting"]) == ("IN_USE", True)
    assert (await api.user.request("POST", "/session", json={**session, "name": "second"})).status == 404
    await api.user.request("DELETE", "/session/first")
    for _ in range(500):
        if (await api.user.request("GET", "/claims/gpus")).status == 404:
            break
        await asyncio.sleep(0.02)
    assert (await api.user.request("GET", "/claims")).json() == {"items": [], "total_count": 0}
    agent = await api.cluster.manager.stores.agents.agent(AgentId(api.agent.agent_id))
    assert agent is not None
    assert agent.occupied_slots["mock.device"] == 0


async def test_the_claims_of_others_do_not_exist(api: Api) -> None:
    body = {"name": "gpus", "resources": {"mock.device": 1}}
    claim = (await api.admin.request("POST", "/claims", json=body)).json()
    for ref in ("gpus", claim["id"]):
        for method, path in (("GET", ""), ("POST", "/release"), ("DELETE", "")):
            assert (await api.user.request(method, f"/claims/{ref}{path}")).status == 404
    assert (await api.user.request("GET", "/claims")).json()["items"] == []
    session = {"image": "python", "name": "mine", "config": {"claim": "gpus"}}
    assert (await api.user.request("POST", "/session", json=session)).status == 404
    assert (await graphql(api, api.user, LIST))["device_claim_list"]["total_count"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x" * 65, "resources": {"mock.device": 1}},
        {"name": "../gpus", "resources": {"mock.device": 1}},
        {"name": "gpus", "resources": {"mock.device": -1}},
        {"name": "gpus", "resources": {"mock.device": "NaN"}},
        {"name": "gpus", "resources": {"mock.device": "Infinity"}},
        {"name": "gpus", "resources": {"cpu": 1}},
        {"name": "gpus", "resources": {"mock.device": 1}, "idle_timeout": -1},
        {"name": "gpus", "resources": {"mock.device": 1}, "idle_timeout": "never"},
        {"name": "gpus", "resources": {"mock.device": 1}, "device_requests": ["memory >="]},
        {"name": "gpus"},
    ],
)
async def test_what_is_no_claim_is_refused_with_a_reason(api: Api, body: dict[str, Any]) -> None:
    reply = await api.user.request("POST", "/claims", json=body)
    assert reply.status == 400, reply.body
    assert (await api.user.request("GET", "/claims")).json()["total_count"] == 0


async def test_a_claim_by_the_commands(api: Api, shell: Shell) -> None:
    made = await shell.own("claim", "create", "gpus", "-r", "mock.device=1", by=api.user)
    assert made["status"] == "UNALLOCATED"
    await shell.own("start", "-t", "first", "--claim", "gpus", "python", by=api.user)
    await claim_at(api, "IN_USE")
    (listed,) = await shell.own("claim", "list", by=api.user)
    assert [session["name"] for session in listed["sessions"]] == ["first"]
    await shell.own("claim", "release", "gpus", by=api.user, fails="a session holds it")
    await shell.own("rm", "first", by=api.user)
    await claim_at(api, "IDLE")
    assert len((await shell.own("claim", "info", "gpus", by=api.user))["devices"]["mock.device"]) == 1
    assert (await shell.own("claim", "release", "gpus", by=api.user))["status"] == "UNALLOCATED"
    assert (await shell.own("claim", "delete", "gpus", by=api.user))["status"] == "DELETED"
    await shell.own("claim", "info", "gpus", by=api.user, fails="no such device claim")


async def test_usage_counts_what_a_claim_held_for_as_long_as_it_held_it(api: Api) -> None:
    month = {"month": datetime.now(UTC).strftime("%Y%m")}

    async def device_seconds() -> Decimal:
        (used,) = (await api.admin.request("GET", "/resource/usage/month", json=month)).json()
        return Decimal(used["g_slot_seconds"].get("mock.device", "0"))

    body = {"name": "gpus", "resources": {"mock.device": "2"}}
    await api.user.request("POST", "/claims", json=body)
    session = {"image": "python", "name": "first", "config": {"claim": "gpus"}}
    assert (await api.user.request("POST", "/session", json=session)).status == 201
    await api.user.request("DELETE", "/session/first")
    await claim_at(api, "IDLE")
    before = await device_seconds()
    await asyncio.sleep(0.2)
    idle = await device_seconds()
    assert idle >= before + Decimal("0.4")
    await api.user.request("POST", "/claims/gpus/release")
    after = await device_seconds()
    await asyncio.sleep(0.1)
    assert await device_seconds() == after >= idle
