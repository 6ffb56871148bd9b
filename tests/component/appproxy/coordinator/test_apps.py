"""A browser gets from a manager's token to its app, and nobody else does (spec 03-14; serving anchors 11)."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest

from ai.backend.appproxy.coordinator.composition import Coordinator
from ai.backend.common.wire.appproxy import SETUP_PATH, CircuitUsage
from tests.support.coordinator import SECRET, Caller, FakeWorker, code_of, linked_worker

USER, SESSION = uuid4(), uuid4()


async def test_a_browser_is_led_to_the_worker_once_that_serves_the_circuit(call: Caller, worker: FakeWorker) -> None:
    gateway = {"name": "r-1.gw", "certificate": "PEM"}
    token = await call.conf(SESSION, USER, gateway=gateway)
    answer = await call.browse(token, SESSION, "app=jupyterlab&protocol=http&redirect=/lab/tree?a=1%2526b")
    assert answer.status == 302, answer.body
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    url = answer.headers["Location"]
    (circuit,) = worker.circuits.values()
    assert urlsplit(url).netloc == f"apps.example.com:{circuit.port}"
    assert urlsplit(url).path == SETUP_PATH
    assert token not in url
    claims = code_of(url)
    assert claims["circuit"] == str(circuit.id)
    assert claims["sub"] == str(USER)
    assert claims["redirect"] == "/lab/tree?a=1%26b"
    assert claims["exp"] <= time.time() + 61
    (route,) = circuit.route_info
    assert (route.kernel_host, route.kernel_port, route.session_id) == ("127.0.0.1", 6100, SESSION)
    assert route.gateway is not None
    assert route.gateway.name == "r-1.gw"


async def test_a_program_gets_a_url_and_then_the_worker_s(call: Caller, worker: FakeWorker) -> None:
    token = await call.conf(SESSION, USER)
    added = await call("GET", f"/v2/proxy/{token}/{SESSION}/add?app=web&redirect=/x%26y", headers={})
    assert added.status == 200
    assert added.headers["Access-Control-Allow-Origin"] == "*"
    assert added.body["code"] == 200
    path = added.body["url"].removeprefix(call.url)
    answer = await call("GET", path, headers={"Accept": "application/json"})
    assert answer.status == 200, answer.body
    assert answer.body["reuse"] is False
    assert code_of(answer.body["redirect_url"])["redirect"] == "/x&y"
    assert len(worker.circuits) == 1


async def test_a_body_of_a_get_request_is_read_as_well(call: Caller, worker: FakeWorker) -> None:
    token = await call.conf(SESSION, USER)
    body = {"app": "web", "protocol": "http", "envs": {"A": "1"}, "token": token, "session_id": str(SESSION)}
    answer = await call("GET", "/v2/proxy/auth", body, headers={"Accept": "application/json"})
    assert answer.status == 200, answer.body
    assert [each.envs for each in worker.circuits.values()] == [{"A": "1"}]


async def test_the_next_visit_uses_the_same_circuit_unless_told_otherwise(call: Caller, worker: FakeWorker) -> None:
    first = await call.browse(await call.conf(SESSION, USER), SESSION)
    second = await call.browse(await call.conf(SESSION, USER, kernel_port=6200), SESSION)
    assert code_of(first.headers["Location"])["circuit"] == code_of(second.headers["Location"])["circuit"]
    (circuit,) = worker.circuits.values()
    assert circuit.route_info[0].kernel_port == 6200, "the worker learned of the new route before the browser"
    await call.browse(await call.conf(SESSION, USER), SESSION, "app=jupyterlab&no_reuse=true")
    assert len(worker.circuits) == 2
    other = await call.browse(await call.conf(SESSION, uuid4()), SESSION)
    assert code_of(other.headers["Location"])["circuit"] not in map(str, list(worker.circuits)[:2])


@pytest.mark.parametrize("change", ["used", "forged", "session", "app", "expired", "removed"])
async def test_a_token_serves_one_visit_of_its_session(
    call: Caller, worker: FakeWorker, coordinator: Coordinator, change: str
) -> None:
    token, session, query = await call.conf(SESSION, USER, app="web"), SESSION, "app=web"
    if change == "used":
        assert (await call.browse(token, SESSION, query)).status == 302
    elif change == "forged":
        token = token[:-2] + "AA"
    elif change == "session":
        session = uuid4()
    elif change == "app":
        query = "app=sshd"
    elif change == "expired":
        await coordinator.circuits.store.purge(coordinator.circuits.clock.now().replace(year=2100))
    else:
        await call("DELETE", "/api/session/_/bulk", {"session_ids": [str(SESSION)]})
    before = len(worker.circuits)
    for accept in ("text/html", "application/json"):
        answer = await call("GET", f"/v2/proxy/{token}/{session}/add?{query}", headers={"Accept": accept})
        assert answer.status == 401, answer.body
    assert len(worker.circuits) == before


async def test_of_two_visits_at_once_one_is_served(call: Caller, worker: FakeWorker) -> None:
    token = await call.conf(SESSION, USER)
    answers = await asyncio.gather(*(call.browse(token, SESSION, "app=web&no_reuse=true") for _ in range(5)))
    assert sorted(each.status for each in answers) == [302, 401, 401, 401, 401]
    assert len(worker.circuits) == 1


@pytest.mark.parametrize(
    "redirect",
    ["//evil.example", "/%5Cevil.example", "https://evil.example", "", "/a%0d%0aLocation:%20x", "/%09/evil", "evil"],
)
async def test_a_redirect_stays_at_the_app(call: Caller, worker: FakeWorker, redirect: str) -> None:
    answer = await call.browse(await call.conf(SESSION, USER), SESSION, f"app=web&redirect={redirect}")
    if redirect:
        assert answer.status == 400, answer.headers.get("Location")
        assert not worker.circuits
    else:
        assert code_of(answer.headers["Location"])["redirect"] == "/"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("protocol=grpc", "E20002: Protocol not available as interactive app"),
        ("protocol=h2", "E20002: Protocol not available as interactive app"),
        ("protocol=ftp", "protocol"),
        ("allowed_client_ips=nonsense", "allowed_client_ips"),
        ("subdomain=-x", "subdomain"),
        ("port=70000", "port"),
        ("envs=[1]", "envs"),
        ("redirect=/" + "x" * 3000, "redirect"),
    ],
)
async def test_wrong_parameters_are_refused_by_name(call: Caller, worker: FakeWorker, query: str, text: str) -> None:
    answer = await call.browse(await call.conf(SESSION, USER), SESSION, f"app=web&{query}")
    assert answer.status == 400
    assert text in answer.text


async def test_who_lacks_the_secret_gets_nothing(call: Caller, worker: FakeWorker) -> None:
    paths = [
        ("POST", "/v2/conf"), ("GET", "/api/worker"), ("PUT", "/api/worker"), ("GET", f"/api/worker/{worker.id}"),
        ("PATCH", f"/api/worker/{worker.id}"), ("DELETE", f"/api/worker/{worker.id}"), ("GET", "/api/slots"),
        ("GET", f"/api/worker/{worker.id}/circuits"), ("GET", f"/api/worker/{worker.id}/link"), ("GET", "/api/session"),
        ("DELETE", "/api/session/_/bulk"), ("DELETE", "/api/circuit/_/bulk"), ("GET", f"/api/circuit/{uuid4()}"),
        ("POST", f"/v2/endpoints/{uuid4()}"), ("POST", f"/v2/endpoints/{uuid4()}/token"), ("GET", "/health/status"),
        ("GET", "/api/gateway-authority"),
    ]  # fmt: skip
    for method, path in paths:
        for secret in ("", SECRET[:-1], SECRET + "x", "ü"):
            answer = await call(method, path, headers={"X-BackendAI-Token": secret} if secret else {})
            assert answer.status == 403, (method, path, answer.status)
    assert (await call("GET", "/health", headers={})).status == 200


async def test_a_tcp_app_serves_the_address_that_asked_for_it(call: Caller) -> None:
    async with linked_worker(call, authority="tcp", protocol="tcp") as worker:
        answer = await call(
            "GET",
            f"/v2/proxy/auth?app=sshd&protocol=tcp&token={await call.conf(SESSION, USER)}&session_id={SESSION}",
            headers={"Accept": "application/json"},
        )
        (circuit,) = worker.circuits.values()
        assert answer.body["redirect_url"] == f"tcp://apps.example.com:{circuit.port}"
        assert circuit.allowed_client_ips == "127.0.0.1/32"


async def test_a_session_that_ends_takes_its_circuits_along(call: Caller, worker: FakeWorker) -> None:
    other = uuid4()
    for session in (SESSION, other):
        await call.browse(await call.conf(session, USER), session)
    unused = await call.conf(SESSION, USER)
    assert set((await call("GET", "/api/session")).body["session_ids"]) == {str(SESSION), str(other)}
    assert (await call("DELETE", "/api/session/_/bulk", {"session_ids": [str(SESSION)]})).body == {"success": True}
    await worker.until(lambda: len(worker.circuits) == 1)
    assert [each.session_ids for each in worker.circuits.values()] == [[other]]
    assert (await call.browse(unused, SESSION)).status == 401


async def test_circuits_are_counted_listed_and_removed(call: Caller, worker: FakeWorker) -> None:
    for app in ("a", "b", "c"):
        await call.browse(await call.conf(SESSION, USER), SESSION, f"app={app}")
    first, second, third = worker.circuits
    now = time.time()
    await worker.report(
        1, now, CircuitUsage(id=first, requests=3, last_used=now - 5), CircuitUsage(id=uuid4(), last_used=0)
    )
    await worker.report(1, now, CircuitUsage(id=first, requests=3, last_used=now - 5))
    await worker.report(2, now, CircuitUsage(id=first, requests=1, last_used=now, open=1))
    statistics = (await call("GET", f"/api/circuit/{first}/statistics")).body
    assert statistics["requests"] == 4
    assert abs(statistics["last_access"] - now) < 5
    assert 43_100 < statistics["ttl"] <= 43_200
    shown = (await call("GET", f"/api/circuit/{first}")).body
    assert shown["port"] == worker.circuits[first].port
    assert shown["session_ids"] == [str(SESSION)]
    assert len((await call("GET", f"/api/worker/{worker.id}/circuits")).body["circuits"]) == 3
    assert (await call("DELETE", f"/api/circuit/{first}")).body == {"success": True}
    gone = await call("DELETE", f"/api/circuit/{first}")
    assert (gone.status, gone.text) == (404, "E00002: No such coordinator:circuit")
    answer = await call("DELETE", "/api/circuit/_/bulk", {"circuit_ids": [str(second), str(third), str(uuid4())]})
    assert answer.body == {"success": True}
    await worker.until(lambda: not worker.circuits)


@pytest.mark.parametrize("ahead_s", [-86_400.0, 86_400.0, 1e12])
async def test_a_worker_whose_clock_is_wrong_reports_times_by_ours(
    call: Caller, worker: FakeWorker, ahead_s: float
) -> None:
    await call.browse(await call.conf(SESSION, USER), SESSION)
    (circuit_id,) = worker.circuits
    theirs = time.time() + ahead_s
    await worker.report(1, theirs, CircuitUsage(id=circuit_id, requests=1, last_used=theirs - 5))
    statistics = (await call("GET", f"/api/circuit/{circuit_id}/statistics")).body
    assert -1 <= time.time() - statistics["last_access"] < 15
    await worker.report(2, theirs, CircuitUsage(id=circuit_id, requests=1, last_used=theirs + 3_600))
    assert (await call("GET", f"/api/circuit/{circuit_id}/statistics")).body["last_access"] <= time.time() + 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_database_that_takes_no_writes_for_a_while_loses_no_slot(
    call: Caller, worker: FakeWorker, tmp_path: Path
) -> None:
    tokens = [await call.conf(SESSION, USER) for _ in range(3)]
    with closing(sqlite3.connect(tmp_path / "coordinator.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        visits = [asyncio.create_task(call.browse(token, SESSION, f"app=a{i}")) for i, token in enumerate(tokens)]
        await asyncio.sleep(1.0)
        assert (await call("GET", "/api/worker")).status == 200
        assert not worker.circuits
        other.execute("ROLLBACK")
    replies = await asyncio.wait_for(asyncio.gather(*visits), 30)
    print(f"{sum(reply.status < 400 for reply in replies)} of {len(replies)} visits waited for the database")
    assert all(reply.status < 400 or reply.status == 503 for reply in replies)
    await call.browse(await call.conf(SESSION, USER), SESSION, "app=later")
    assert "later" in {circuit.app for circuit in worker.circuits.values()}
    assert len({circuit.port for circuit in worker.circuits.values()}) == len(worker.circuits)


async def test_a_circuit_without_use_is_removed(call: Caller, worker: FakeWorker, coordinator: Coordinator) -> None:
    for app in ("idle", "used"):
        await call.browse(await call.conf(SESSION, USER), SESSION, f"app={app}")
    idle, used = worker.circuits
    now = time.time()
    await worker.report(1, now, CircuitUsage(id=used, last_used=now - 86_400, open=1))
    limits = coordinator.circuits.limits
    coordinator.circuits.limits = type(limits)(setup_s=60, circuit_s=0.2, rest_s=60)
    await asyncio.sleep(0.3)
    await worker.report(2, time.time(), CircuitUsage(id=used, last_used=now, open=1))
    await coordinator.circuits.remove_unneeded()
    await worker.until(lambda: idle not in worker.circuits)
    assert used in worker.circuits


async def test_the_document_describes_every_path_of_the_specification(call: Caller) -> None:
    document = (await call("GET", "/openapi.json", headers={})).body
    published = {
        ("delete", "/api/circuit/_/bulk"), ("get", "/api/circuit/{circuit_id}"),
        ("delete", "/api/circuit/{circuit_id}"), ("get", "/api/circuit/{circuit_id}/statistics"),
        ("post", "/v2/conf"), ("post", "/v2/endpoints/{endpoint_id}"),
        ("delete", "/v2/endpoints/{endpoint_id}"), ("post", "/v2/endpoints/{endpoint_id}/token"), ("get", "/health"),
        ("get", "/health/status"), ("get", "/v2/proxy/{token}/{session_id}/add"), ("get", "/v2/proxy/auth"),
        ("get", "/api/slots"), ("get", "/api/worker"), ("put", "/api/worker"), ("get", "/api/worker/{worker_id}"),
        ("patch", "/api/worker/{worker_id}"), ("delete", "/api/worker/{worker_id}"),
        ("get", "/api/worker/{worker_id}/circuits"),
    }  # fmt: skip
    described = {(method, path) for path, operations in document["paths"].items() for method in operations}
    assert published <= described
    assert document["paths"]["/v2/conf"]["post"]["security"] == [{"X-BackendAI-Token": []}]


async def test_an_id_that_is_none_is_not_there(call: Caller) -> None:
    for path in ("/api/circuit/x", "/api/circuit/x/statistics", "/api/worker/x", f"/api/worker/{UUID(int=1)}"):
        answer = await call("GET", path)
        assert answer.status == 404
        assert answer.text.startswith("E00002: No such coordinator:")
