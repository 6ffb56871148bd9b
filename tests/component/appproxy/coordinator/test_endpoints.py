"""Endpoints of model services: one circuit each, which keeps its URL, and tokens of their own key."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import jwt
import pytest

from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import (
    INFERENCE_KEY,
    SETUP_KEY,
    AppMode,
    CircuitUsage,
    InferenceUsage,
    purpose_key,
)
from tests.support.coordinator import SECRET, Caller, FakeWorker, linked_worker

USER, ENDPOINT = uuid4(), uuid4()


def body_of(endpoint: UUID = ENDPOINT, replicas: int = 1, **changes: Any) -> dict[str, Any]:
    session = {"id": None, "user_uuid": str(USER), "group_id": "g", "access_key": None, "domain_name": "default"}
    routes = [
        {"session_id": str(UUID(int=n)), "kernel_host": "10.0.0.2", "kernel_port": 6100 + n, "traffic_ratio": n + 0.5}
        for n in range(replicas)
    ]
    return {
        "service_name": "llm",
        "tags": {"session": session, "endpoint": {"id": str(endpoint), "existing_url": None}},
        "apps": {"api": routes},
        "open_to_public": False,
        "port": None,
        "subdomain": None,
        **changes,
    }


async def test_an_endpoint_keeps_its_url_while_its_replicas_change(call: Caller, worker: FakeWorker) -> None:
    created = await call("POST", f"/v2/endpoints/{ENDPOINT}", body_of(port=10207))
    assert created.body == {"endpoint": "http://apps.example.com:10207"}
    (circuit,) = worker.circuits.values()
    assert (circuit.app, circuit.app_mode, circuit.endpoint_id) == ("", AppMode.INFERENCE, ENDPOINT)
    changed = await call("POST", f"/v2/endpoints/{ENDPOINT}", body_of(replicas=3, open_to_public=True))
    assert changed.body == created.body
    (circuit,) = worker.circuits.values()
    assert [each.traffic_ratio for each in circuit.route_info] == [0.5, 1.5, 2.5]
    assert circuit.open_to_public
    assert (await call("GET", f"/api/circuit/{circuit.id}/statistics")).body["ttl"] is None
    await call("POST", f"/v2/endpoints/{ENDPOINT}", body_of(replicas=0))
    assert not next(iter(worker.circuits.values())).route_info, "an endpoint without replicas keeps its URL"
    assert (await call("DELETE", "/api/session/_/bulk", {"session_ids": [str(UUID(int=0))]})).status == 200
    assert (await call("DELETE", f"/v2/endpoints/{ENDPOINT}")).body == {"success": True}
    await worker.until(lambda: not worker.circuits)
    gone = await call("DELETE", f"/v2/endpoints/{ENDPOINT}")
    assert (gone.status, gone.text) == (404, "E00002: No such coordinator:endpoint")


async def test_the_end_of_a_replica_s_session_leaves_its_endpoint(call: Caller, worker: FakeWorker) -> None:
    await call("POST", f"/v2/endpoints/{ENDPOINT}", body_of())
    assert (await call("GET", "/api/session")).body["session_ids"] == []
    await call("DELETE", "/api/session/_/bulk", {"session_ids": [str(UUID(int=0))]})
    assert len(worker.circuits) == 1


async def test_a_lost_endpoint_gets_its_port_back(call: Caller, worker: FakeWorker) -> None:
    body = body_of()
    body["tags"]["endpoint"]["existing_url"] = "http://apps.example.com:10209/"
    answer = await call("POST", f"/v2/endpoints/{ENDPOINT}", body)
    assert answer.body == {"endpoint": "http://apps.example.com:10209"}


@pytest.mark.parametrize("form", ["iso", "unix"])
async def test_a_token_names_its_endpoint_user_and_end(call: Caller, worker: FakeWorker, form: str) -> None:
    await call("POST", f"/v2/endpoints/{ENDPOINT}", body_of())
    expires_at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    exp = expires_at.isoformat() if form == "iso" else str(int(expires_at.timestamp()))
    answer = await call("POST", f"/v2/endpoints/{ENDPOINT}/token", {"user_uuid": str(USER), "exp": exp})
    token = answer.body["token"]
    claims = jwt.decode(token, purpose_key(SECRET, INFERENCE_KEY), algorithms=["HS256"], audience=str(ENDPOINT))
    assert (claims["typ"], claims["sub"], claims["exp"]) == ("inference", str(USER), int(expires_at.timestamp()))
    assert claims["jti"]
    assert jwt.get_unverified_header(token)["kid"]
    with pytest.raises(jwt.InvalidSignatureError):
        jwt.decode(token, purpose_key(SECRET, SETUP_KEY), algorithms=["HS256"], audience=str(ENDPOINT))


async def test_a_token_of_a_wrong_time_or_endpoint_is_refused(call: Caller, worker: FakeWorker) -> None:
    await call("POST", f"/v2/endpoints/{ENDPOINT}", body_of())
    for exp in ("yesterday", str(int(time.time()) - 5), "9" * 30, "", "2999-01-01T00:00:00Z"):
        answer = await call("POST", f"/v2/endpoints/{ENDPOINT}/token", {"user_uuid": str(USER), "exp": exp})
        assert answer.status == 400, exp
        assert "exp" in answer.text
    other = await call("POST", f"/v2/endpoints/{uuid4()}/token", {"user_uuid": str(USER), "exp": "2030-01-01"})
    assert (other.status, other.text) == (404, "E00002: No such coordinator:endpoint")


async def test_a_wrong_endpoint_is_refused(call: Caller, worker: FakeWorker) -> None:
    session = uuid4()
    await call.browse(await call.conf(session, USER), session)
    (interactive,) = worker.circuits
    answer = await call("POST", f"/v2/endpoints/{interactive}", body_of(interactive))
    assert (answer.status, answer.text) == (400, "E20012: Not supported for interactive apps")
    two_apps: dict[str, list[Any]] = {"a": [], "b": []}
    for changes, field in (({"apps": two_apps}, "apps"), ({"port": 0}, "port"), ({"subdomain": "a.b"}, "subdomain")):
        answer = await call("POST", f"/v2/endpoints/{ENDPOINT}", body_of(**changes))
        assert answer.status == 400
        assert field in answer.text
    answer = await call("POST", f"/v2/endpoints/{uuid4()}", body_of())
    assert answer.status == 400
    mixed = body_of(replicas=2)
    mixed["apps"]["api"][0]["protocol"] = "tcp"
    assert (await call("POST", f"/v2/endpoints/{ENDPOINT}", mixed)).status == 400


async def test_loads_and_usage_come_from_workers_to_managers(call: Caller, worker: FakeWorker) -> None:
    revision, serving = {"id": str(uuid4()), "weight": 3.0}, {"name": "llm", "models": ["m"], "routing": "prefix"}
    body = body_of(serving=serving)
    body["apps"]["api"][0]["revision"] = revision
    await call("POST", f"/v2/endpoints/{ENDPOINT}", body)
    (circuit,) = worker.circuits.values()
    assert circuit.serving is not None
    assert (circuit.serving.models, circuit.route_info[0].revision.weight) == (["m"], 3.0)  # type: ignore[union-attr]
    idle = (await call("GET", "/v2/endpoints/loads")).body
    assert [(each["queued"], each["in_flight"]) for each in idle["loads"]] == [(0, {})]
    waiting = asyncio.create_task(call("GET", f"/v2/endpoints/loads?since={idle['version']}&wait=20"))
    session = UUID(int=0)
    load = CircuitUsage(
        id=circuit.id, requests=2, last_used=time.time(), open=3, queued=1, waits=1, in_flight={session: 2}
    )
    row = InferenceUsage(minute=9, token="t", circuit=circuit.id, endpoint=ENDPOINT, requests=2, output_tokens=70)
    row = replace(row, prompt_tokens=5, cached_tokens=3)
    for _ in range(2):  # a report that comes twice counts once
        await worker.report(1, time.time(), load, inference=[row, replace(row, endpoint=None)])
    told = (await asyncio.wait_for(waiting, 5)).body
    assert told["version"] != idle["version"]
    assert (told["loads"][0]["queued"], told["loads"][0]["in_flight"]) == (1, {str(session): 2})
    assert (told["loads"][0]["requests"], told["loads"][0]["tokens"]) == (2, 150)
    rows = (await call("GET", "/v2/endpoints/usage")).body["rows"]
    assert [(each["usage"]["output_tokens"], each["usage"]["endpoint"]) for each in rows] == [
        (70, str(ENDPOINT)),
        (70, str(ENDPOINT)),
    ]
    assert (await call("GET", f"/v2/endpoints/usage?after={rows[-1]['id']}")).body == {"rows": []}
    over = CircuitUsage(id=circuit.id, last_used=time.time())
    await worker.report(2, time.time(), over)
    assert (await call("GET", "/v2/endpoints/loads")).body["loads"][0]["queued"] == 0


async def test_a_worker_reports_on_its_own_circuits_alone(call: Caller, worker: FakeWorker) -> None:
    """Reports are charged to the owner of an endpoint, and end up in the autoscaling of its replicas."""
    await call("POST", f"/v2/endpoints/{ENDPOINT}", body_of())
    (circuit,) = worker.circuits.values()
    row = InferenceUsage(minute=9, token="t", circuit=circuit.id, endpoint=ENDPOINT, requests=2, output_tokens=70)
    load = CircuitUsage(id=circuit.id, requests=9, last_used=time.time(), open=3, queued=9, waits=1)
    strangers = [row, replace(row, circuit=uuid4()), replace(row, endpoint=None)]
    async with linked_worker(call, authority="w2") as other:
        await other.report(1, time.time(), load, inference=strangers)
    # A worker has circuits of its own, and says that they are of another endpoint.
    await worker.report(1, time.time(), inference=[replace(row, endpoint=uuid4())])
    assert (await call("GET", "/v2/endpoints/usage")).body == {"rows": []}
    (own,) = (await call("GET", "/v2/endpoints/loads")).body["loads"]
    assert (own["requests"], own["tokens"], own["queued"]) == (0, 0, 0)


async def test_the_last_report_of_an_endpoint_is_counted(call: Caller, worker: FakeWorker) -> None:
    await call("POST", f"/v2/endpoints/{ENDPOINT}", body_of())
    (circuit,) = worker.circuits.values()
    await call("DELETE", f"/v2/endpoints/{ENDPOINT}")
    await worker.until(lambda: not worker.circuits)
    row = InferenceUsage(minute=9, token="t", circuit=circuit.id, endpoint=ENDPOINT, requests=2, output_tokens=70)
    async with linked_worker(call, authority="w2") as other:
        await other.report(1, time.time(), inference=[row])
    assert (await call("GET", "/v2/endpoints/usage")).body == {"rows": []}
    await worker.report(1, time.time(), inference=[row])
    rows = (await call("GET", "/v2/endpoints/usage")).body["rows"]
    assert [each["usage"]["endpoint"] for each in rows] == [str(ENDPOINT)]


async def test_a_token_may_be_for_several_endpoints_and_limited(call: Caller, worker: FakeWorker) -> None:
    other = uuid4()
    for endpoint in (ENDPOINT, other):
        await call("POST", f"/v2/endpoints/{endpoint}", body_of(endpoint))
    limits = {"requests": [{"amount": 5, "seconds": 60}], "concurrent": 2}
    wanted = {"user_uuid": str(USER), "exp": "2035-01-01", "endpoints": [str(other)], "limits": limits}
    token = (await call("POST", f"/v2/endpoints/{ENDPOINT}/token", wanted)).body["token"]
    claims = jwt.decode(token, purpose_key(SECRET, INFERENCE_KEY), algorithms=["HS256"], audience=str(other))
    assert claims["aud"] == [str(ENDPOINT), str(other)]
    assert claims["limits"]["concurrent"] == 2
    for wrong in ({"endpoints": [str(uuid4())]}, {"limits": {"requests": [{"amount": -1}]}}, {"limits": {"rpm": 3}}):
        assert (await call("POST", f"/v2/endpoints/{ENDPOINT}/token", {**wanted, **wrong})).status in (400, 404)
