"""Sessions over REST, as spec 03-08 and the client wire contract 2.1 have them."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from tests.component.manager.api.conftest import Api

PUBLISHED_BODY: dict[str, Any] = {
    "name": "pysdk-abc1",
    "image": "python",
    "type": "interactive",
    "tag": None,
    "domain": "default",
    "group": "default",
    "architecture": "x86_64",
    "clusterSize": 1,
    "clusterMode": "single-node",
    "enqueueOnly": False,
    "maxWaitSeconds": 0,
    "reuseIfExists": True,
    "startupCommand": None,
    "bootstrap_script": None,
    "starts_at": None,
    "dependencies": None,
    "callback_url": None,
    "owner_access_key": None,
    "config": {
        "mounts": [],
        "mount_map": {},
        "mount_options": {},
        "environ": {"A": "1"},
        "resources": {"cpu": "1", "mem": "256m"},
        "resource_opts": {"shmem": "64m"},
        "scalingGroup": None,
        "preopen_ports": [],
    },
}


async def test_what_the_published_client_sends(api: Api) -> None:
    reply = await api.user.request("POST", "/session", json=PUBLISHED_BODY)
    told = reply.json()
    assert reply.status == 201
    assert str(UUID(told["sessionId"])) == told["sessionId"]
    assert told["sessId"] == told["name"] == "pysdk-abc1"
    assert (told["created"], told["status"]) == (True, "RUNNING")
    assert told["servicePorts"] == [{"name": "sshd", "protocol": "tcp", "ports": []}]
    again = await api.user.request("POST", "/session", json=PUBLISHED_BODY)
    assert (again.status, again.json()["created"]) == (200, False)
    assert again.json()["sessionId"] == told["sessionId"]
    assert api.agent.created[0].environ["A"] == "1"


@pytest.mark.parametrize("path", ["/session/create", "/v4/session", "/v2/kernel/create", "/kernel"])
async def test_other_spellings(api: Api, path: str) -> None:
    body = {
        "lang": "python",
        "clientSessionToken": "by-token",
        "group_name": "default",
        "cluster_size": 1,
        "cluster_mode": "single-node",
        "bootstrap_script": "true",
        "config": {"scaling_group": "default", "instanceCores": 2, "instanceMemory": 128},
    }
    reply = await api.user.request("POST", path, json=body)
    assert (reply.status, reply.json()["sessId"]) == (201, "by-token")
    spec = api.agent.created[0]
    assert spec.bootstrap_script == "true"
    assert spec.slots == {"cpu": "2", "mem": str(128 << 20)}


async def test_queued_only(api: Api) -> None:
    told = await api.create(name="queued", enqueueOnly=True)
    assert (told["status"], told["servicePorts"]) == ("PENDING", [])


async def test_a_wait_that_runs_out(api: Api) -> None:
    api.agent.stall = True
    told = await api.create(name="slow", maxWaitSeconds=1)
    assert told["status"] == "TIMEOUT"


async def test_a_name_that_must_not_be_reused(api: Api) -> None:
    told = await api.create(name="once")
    reply = await api.user.request("POST", "/session", json={"image": "python", "name": "once", "reuseIfExists": False})
    assert (reply.status, reply.problem) == (409, "session-already-exists")
    assert reply.json()["data"]["existingSessionId"] == told["sessionId"]


async def test_the_same_token_at_once_makes_one_session(api: Api) -> None:
    body = {"image": "python"}
    replies = await asyncio.gather(
        *(
            api.user.request("POST", "/session", json=body, headers={"X-BackendAI-Client-Token": "tok-1"})
            for _ in range(4)
        )
    )
    assert {(r.status, r.body) for r in replies} == {(201, replies[0].body)}
    assert len(api.agent.created) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"image": None}, "image"),
        ({"image": 3}, "image"),
        ({"image": "x" * 300}, "image"),
        ({"name": "abc"}, "name"),
        ({"name": "a" * 65}, "name"),
        ({"name": "-bad-"}, "name"),
        ({"type": "system"}, "type"),
        ({"clusterSize": 0}, "clusterSize"),
        ({"clusterSize": "2"}, "clusterSize"),
        ({"clusterSize": 1.5}, "clusterSize"),
        ({"clusterMode": "mesh"}, "clusterMode"),
        ({"enqueueOnly": "yes"}, "enqueueOnly"),
        ({"maxWaitSeconds": -1}, "maxWaitSeconds"),
        ({"reuseIfExists": 1}, "reuseIfExists"),
        ({"dependencies": "a"}, "dependencies"),
        ({"callback_url": "ftp://x"}, "callback_url"),
        ({"unknown_field": 1}, "unknown_field"),
        ({"batchTimeout": "soon"}, "batchTimeout"),
        ({"tag": "x" * 65}, "tag"),
        ({"startupCommand": ["ls"]}, "startupCommand"),
        ({"bootstrap_script": "x" * 300_000}, "bootstrap_script"),
        ({"config": []}, "config"),
        ({"config": {"surprise": 1}}, "config.surprise"),
        ({"config": {"environ": {"A": 1}}}, "config.environ"),
        ({"config": {"environ": []}}, "config.environ"),
        ({"config": {"preopen_ports": [0]}}, "config.preopen_ports"),
        ({"config": {"preopen_ports": ["http"]}}, "config.preopen_ports"),
        ({"config": {"preopen_ports": ["70000"]}}, "config.preopen_ports"),
        ({"config": {"mounts": "data"}}, "config.mounts"),
        ({"config": {"mount_options": {"a": {"permission": "x"}}}}, "config.mount_options"),
        ({"config": {"resources": {"cpu": None}}}, "config.resources"),
        ({"config": {"resources": {"cpu": []}}}, "config.resources"),
        ({"config": {"resources": {"cpu": -1}}}, "resources"),
        ({"config": {"resources": {"mem": "1x"}}}, "resources"),
        ({"config": {"resources": {"warp.device": 1}}}, "resources"),
        ({"lang": "other", "image": "python"}, "lang"),
    ],
)
async def test_bad_requests_name_the_field(api: Api, change: dict[str, Any], field: str) -> None:
    reply = await api.user.request("POST", "/session", json={"image": "python", **change})
    assert 400 <= reply.status < 500, reply.body
    problem = reply.json()
    assert field in json.dumps([problem.get("data", {}), problem["detail"]]), problem
    assert api.agent.created == []


async def test_reading_a_session(api: Api) -> None:
    told = await api.create(name="reading", config={"resources": {"cpu": 1, "mem": "256m"}})
    for ref in (told["sessionId"], told["sessionId"][:13]):
        assert (await api.user.request("GET", f"/session/{ref}")).json()["sessionId"] == told["sessionId"]
    info = (await api.user.request("GET", "/session/reading")).json()
    assert info["lang"]
    assert info["age"] >= 0
    assert info["memoryLimit"] == 256 * 1024
    assert info["numQueriesExecuted"] == 0
    assert info["cpuCreditUsed"] == 0
    assert info["occupyingSlots"] == {"cpu": "1", "mem": str(256 << 20)}
    assert info["status"] == "RUNNING"


_CALLS = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("PATCH", "", None),
    ("POST", "", {"mode": "query", "code": "x"}),
    ("POST", "/interrupt", None),
    ("POST", "/complete", {"code": "x"}),
    ("GET", "/logs", None),
    ("GET", "/files", None),
    ("GET", "/download?files=a", None),
    ("POST", "/rename?name=another", None),
    ("GET", "/status-history", None),
    ("GET", "/dependency-graph", None),
    ("GET", "/abusing-report", None),
    ("POST", "/commit", None),
    ("POST", "/start-service", {"app": "sshd"}),
    ("POST", "/shutdown-service", {"service_name": "sshd"}),
]


@pytest.mark.parametrize(("method", "path", "body"), _CALLS)
async def test_the_sessions_of_others_are_not_found(api: Api, method: str, path: str, body: Any) -> None:
    told = await api.create(name="mine")
    for ref in ("mine", told["sessionId"]):
        reply = await api.other.request(method, f"/session/{ref}{path}", json=body)
        assert reply.status == 404, reply.body
        assert reply.problem in ("session-not-found", "not-found")
    assert (await api.user.request("GET", "/session/mine")).json()["status"] == "RUNNING"


async def test_admins_act_for_others(api: Api) -> None:
    told = await api.create(name="mine")
    key = api.user.access_key
    info = await api.admin.request("GET", f"/session/mine?owner_access_key={key}")
    assert info.json()["sessionId"] == told["sessionId"]
    mine = await api.create(api.admin, name="for-them", owner_access_key=key)
    assert (await api.user.request("GET", "/session/for-them")).json()["sessionId"] == mine["sessionId"]
    refused = await api.other.request("GET", f"/session/mine?owner_access_key={key}")
    assert refused.status in (403, 404)
    both = await api.admin.request(
        "POST", f"/session?owner_access_key={key}", json={"image": "python", "owner_access_key": "OTHER"}
    )
    assert both.status == 400


async def test_match_rename_restart_destroy(api: Api) -> None:
    first = await api.create(name="alpha-one")
    await api.create(name="alpha-two")
    matches = (await api.user.request("GET", "/session/_/match?id=alpha")).json()["matches"]
    assert sorted(m["name"] for m in matches) == ["alpha-one", "alpha-two"]
    assert set(matches[0]) == {"id", "name", "status"}
    assert (await api.user.request("POST", "/session/alpha-one/rename?name=beta")).status == 204
    assert (await api.user.request("GET", "/session/beta")).json()["sessionId"] == first["sessionId"]
    taken = await api.user.request("POST", "/session/beta/rename?name=alpha-two")
    assert (taken.status, taken.problem) == (409, "session-already-exists")
    assert (await api.user.request("POST", "/session/beta/rename", json={"name": "gamma"})).status == 204
    assert (await api.user.request("POST", "/session/gamma/rename", json={"name": "beta"})).status == 204
    unknown = await api.user.request("POST", "/session/beta/rename?name=other", json={"nonsense": 1})
    assert (unknown.status, list(unknown.json()["data"])) == (400, ["nonsense"])
    bad = await api.user.request("POST", "/session/beta/rename?name=x")
    assert (bad.status, list(bad.json()["data"])) == (400, ["name"])
    assert (await api.user.request("PATCH", "/session/beta")).status == 204
    restarted = (await api.user.request("GET", "/session/beta")).json()
    assert (restarted["status"], restarted["statusInfo"]) == ("RUNNING", None)
    reply = await api.user.request("DELETE", "/session/beta?forced=true&recursive=false")
    assert reply.status == 200
    assert reply.json()["stats"]["status"]
    assert reply.json()["stats"]["cpu_used"]["current"] == "12"
    by_override = await api.user.request(
        "POST", "/session/alpha-two", headers={"X-Method-Override": "DELETE"}, json={"forced": True}
    )
    assert by_override.status == 200
    assert (await api.user.request("GET", "/session/nothing-here")).status == 404


async def test_status_history_and_graph(api: Api) -> None:
    await api.create(name="base")
    await api.create(name="de-pen-dent", dependencies=["base"], enqueueOnly=True)
    history = (await api.user.request("GET", "/session/base/status-history")).json()["result"]
    assert history["preparing"]
    assert history["terminated"] is None
    graph = (await api.user.request("GET", "/session/de-pen-dent/dependency-graph")).json()
    assert graph["session_name"] == "de-pen-dent"
    assert graph["status"].startswith("KernelStatus.")
    assert "T" not in graph["status_changed"]
    assert [child["session_name"] for child in graph["depends_on"]] == ["base"]
    told = await api.user.request("GET", "/session/base/abusing-report")
    assert (told.status, told.problem) == (501, "not-supported")
    assert "no abuse" in told.json()["detail"]


async def test_who_did_what_is_written_down(api: Api) -> None:
    await api.create(name="watched")
    await api.other.request("DELETE", "/session/watched")
    await api.user.request("DELETE", "/session/watched")
    services = api.cluster.manager.services
    await services.audit.flush()
    records = await services.audit.recent(api.cluster.admin)
    told = sorted((r.operation, r.object_id, r.outcome) for r in records if r.access_key)
    assert ("create", None, "ok") in told
    assert ("destroy", "watched", "session-not-found") in told
    assert ("destroy", "watched", "ok") in told


async def test_an_inactive_keypair(api: Api) -> None:
    people = api.cluster.manager.services.users
    await people.modify_keypair(api.cluster.admin, api.other.access_key, {"is_active": False})
    reply = await api.other.request("GET", "/resource/presets")
    assert (reply.status, reply.problem) == (401, "auth-failed")
