"""Explanations, queues, shares, the fleet and histories over the wire: their shapes, and who may have them."""

from __future__ import annotations

import json
from typing import Any

from ai.backend.common.structs import replace
from tests.component.manager.api.conftest import Api

EXPLAIN = "/session/_/explain"


def body(**resources: Any) -> dict[str, Any]:
    return {"image": "python", "config": {"resources": {"mem": "64m", **resources}}}


async def test_a_request_is_explained_and_nothing_is_created(api: Api) -> None:
    told = await api.user.request("POST", EXPLAIN, json=body(cpu=1))
    assert told.status == 200, told.body
    assert (told.json()["verdict"], told.json()["agents"]["names"]) == ("now", [])
    assert (await api.admin.request("POST", EXPLAIN, json=body(cpu=1))).json()["agents"]["startable"] == 1
    never = (await api.user.request("POST", f"{EXPLAIN}?count=2", json=body(cpu=1000))).json()
    assert (never["verdict"], never["reason"], never["is_refused"]) == ("never", "insufficient-resource", True)
    assert (await api.user.request("POST", EXPLAIN, json={"image": 7})).status == 400
    assert (await api.user.request("POST", f"{EXPLAIN}?count=0", json=body(cpu=1))).status == 400
    assert not await api.cluster.manager.stores.sessions.by_status(["PENDING", "RUNNING"])  # type: ignore[list-item]  # words


async def test_a_waiting_session_and_its_queue(api: Api) -> None:
    agent = (await api.cluster.manager.stores.agents.agents())[0]
    cores = int(agent.available_slots["cpu"])
    await api.create(name="filler", config={"resources": {"cpu": cores, "mem": "64m"}})
    await api.create(name="waiting", enqueueOnly=True, config={"resources": {"cpu": 1, "mem": "64m"}})
    told = (await api.user.request("GET", "/session/waiting/explain")).json()
    assert (told["verdict"], told["reason"], told["position"], told["waiting"]) == (
        "waits",
        "insufficient-resource",
        1,
        1,
    )
    assert [each["name"] for each in told["holders"]["visible"]] == ["filler"]
    view = (await api.user.request("GET", "/scheduling/queue?scaling_group=default")).json()
    assert (view["waiting"], [entry["name"] for entry in view["items"]]) == (1, ["waiting"])
    assert (await api.user.request("GET", "/scheduling/queue?scaling_group=nowhere")).status == 404
    shares = (await api.user.request("GET", "/scheduling/shares?scaling_group=default")).json()
    assert [item["level"] for item in shares["items"]] == ["domain", "project", "user"]
    assert (await api.user.request("GET", "/session/filler/explain")).json()["verdict"] == "started"
    assert (await api.user.request("GET", "/session/missing/explain")).status == 404
    query = 'query { compute_session_list(limit: 1, offset: 0, status: "RUNNING") { total_count status_counts } }'
    listed = (await api.user.request("POST", "/admin/gql", json={"query": query})).json()
    counts = (listed.get("data") or listed)["compute_session_list"]
    assert (counts["total_count"], json.loads(counts["status_counts"])) == (1, {"PENDING": 1, "RUNNING": 1})


async def test_a_withheld_device_is_named_with_its_reason(api: Api) -> None:
    whole = api.agent.report()
    reason = "cordoned: fan replaced on Friday"
    devices = [
        {**d, "health": "unhealthy", "health_reason": reason} if d["device_id"] == "mock.device-0" else d
        for d in whole.devices
    ]
    free = [replace(s, amount="3") if s.slot_name == "mock.device" else s for s in whole.slots]
    assert api.agent.reports is not None
    await api.agent.reports.heartbeat(api.agent.report(generation=2, devices=devices, slots=free))
    resources = {"cpu": 1, "mem": "64m", "mock.device": 2}
    await api.create(name="filler", config={"resources": resources})
    for client, agent in ((api.user, ""), (api.admin, "agent-1")):
        told = (await client.request("POST", EXPLAIN, json=body(**resources))).json()
        assert (told["verdict"], told["reason"]) == ("waits", "insufficient-resource")
        device = {"device_name": "mock", "device_id": "mock.device-0", "reason": reason}
        assert told["withheld"] == [{"agent": agent, **device}]
    await api.create(name="waiting", enqueueOnly=True, config={"resources": resources})
    told = (await api.user.request("GET", "/session/waiting/explain")).json()
    assert [each["reason"] for each in told["withheld"]] == [reason]
    assert (await api.user.request("POST", EXPLAIN, json=body(cpu=1))).json()["withheld"] == []


async def test_the_fleet_is_sent_once_and_only_to_those_who_see_agents(api: Api) -> None:
    assert (await api.user.request("GET", "/resource/fleet")).status == 403
    first = await api.admin.request("GET", "/resource/fleet")
    assert first.status == 200
    rows = first.json()
    assert (rows["columns"][0], len(rows["agents"])) == ("id", 1)
    tag = {name.lower(): value for name, value in first.headers.items()}["etag"]
    again = await api.admin.request("GET", "/resource/fleet", headers={"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")


async def test_what_was_used_is_kept(api: Api) -> None:
    told = await api.create(name="busy-one", config={"resources": {"cpu": 1, "mem": "64m"}})
    history = (await api.user.request("GET", "/session/busy-one/metrics/history")).json()
    assert list(history["kernels"]) == [told["sessionId"]]
    assert history["kernels"][told["sessionId"]]["step_s"] == 5
    assert (await api.user.request("GET", "/session/busy-one/metrics/history?span=week")).status == 400
    agent = (await api.cluster.manager.stores.agents.agents())[0]
    path = f"/resource/agents/{agent.id}/metrics/history?span=day"
    assert (await api.admin.request("GET", path)).json()["step_s"] == 60
    assert (await api.user.request("GET", path)).status == 404
