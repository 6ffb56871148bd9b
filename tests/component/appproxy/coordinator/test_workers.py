"""Workers register, are chosen, are lost and return; slots are given to one circuit and rest (spec 03-14)."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from ai.backend.appproxy.coordinator.composition import Coordinator
from ai.backend.appproxy.coordinator.config.settings import CoordinatorSettings
from ai.backend.infra.tls.certificates import create_request, is_issued_by, load_authority
from tests.support.coordinator import (
    Answer,
    Caller,
    FakeWorker,
    code_of,
    linked_worker,
    registration,
    running,
)

USER, SESSION = uuid4(), uuid4()


async def visit(call: Caller, query: str = "app=web", **who: Any) -> Answer:
    session, user = who.get("session", SESSION), who.get("user", USER)
    return await call.browse(await call.conf(session, user), session, query)


async def test_a_worker_is_described_as_it_registered(call: Caller) -> None:
    worker = FakeWorker(call, registration())
    info = await worker.register()
    assert (await worker.register())["id"] == info["id"], "one worker for an authority"
    expected = {key: value for key, value in registration().items() if key != "app_filters"}
    assert {key: info[key] for key in expected} == expected
    assert (info["available_slots"], info["occupied_slots"], info["nodes"], info["slots"]) == (10, 0, 1, [])
    shown = (await call("GET", f"/api/worker/{info['id']}")).body
    assert shown == (await call("GET", "/api/worker")).body["workers"][0]
    assert shown == (await call("PATCH", f"/api/worker/{info['id']}", {"node": worker.node})).body
    assert (await call("PATCH", f"/api/worker/{info['id']}")).body["nodes"] == 2, "a node without a name is another one"
    status = (await call("GET", "/health/status")).body
    assert status["workers"] == [
        {"authority": "worker-1", "available_slots": 10, "occupied_slots": 0, "ha_setup": True}
    ]
    assert (await call("DELETE", f"/api/worker/{info['id']}")).body == {"success": True}
    gone = await call("PATCH", f"/api/worker/{info['id']}")
    assert (gone.status, gone.text) == (404, "E00002: No such coordinator:worker")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hostname": "a/b"}, "hostname"),
        ({"hostname": "a@evil"}, "hostname"),
        ({"port_range": None}, "port_range"),
        ({"port_range": [5, 4]}, "port_range"),
        ({"port_range": [0, 4]}, "port_range"),
        ({"frontend_mode": "wildcard"}, "wildcard_domain"),
        ({"frontend_mode": "wildcard", "wildcard_domain": "apps.example.com"}, "wildcard_domain"),
        ({"frontend_mode": "wildcard", "wildcard_domain": ".a b"}, "wildcard_domain"),
        ({"authority": None}, "authority"),
        ({"certificate_request": "nonsense"}, ""),
    ],
)
async def test_a_wrong_registration_is_refused_by_name(call: Caller, change: dict[str, Any], field: str) -> None:
    answer = await call("PUT", "/api/worker", registration(**change))
    assert answer.status == 400
    assert field in answer.text


async def test_a_worker_gets_a_certificate_of_the_one_authority(call: Caller) -> None:
    _, request = create_request("anything")
    info = (await call("PUT", "/api/worker", registration(certificate_request=request))).body
    authority = (await call("GET", "/api/gateway-authority")).body["certificate"]
    assert info["authority_certificate"] == authority
    certificate = x509.load_pem_x509_certificate(info["certificate"].encode())
    der = certificate.public_bytes(serialization.Encoding.DER)
    assert is_issued_by(der, load_authority(authority))


async def test_a_subdomain_is_random_or_the_owner_s(call: Caller) -> None:
    domain = {"frontend_mode": "wildcard", "wildcard_domain": ".apps.example.com", "port_range": None, "use_tls": True}
    async with linked_worker(call, **domain, wildcard_port=8443) as worker:
        url = (await visit(call)).headers["Location"]
        assert re.match(r"https://a[0-9a-f]{20}\.apps\.example\.com:8443/", url)
        info = (await call("GET", f"/api/worker/{worker.id}")).body
        assert (info["available_slots"], info["occupied_slots"]) == (-1, 1)
        url = (await visit(call, "app=b&subdomain=mine")).headers["Location"]
        assert url.startswith("https://mine.apps.example.com:8443/")
        taken = await visit(call, "app=b&subdomain=mine", user=uuid4(), session=uuid4())
        assert taken.status == 409
        await call("DELETE", "/api/session/_/bulk", {"session_ids": [str(SESSION)]})
        taken = await visit(call, "app=b&subdomain=mine", user=uuid4(), session=uuid4())
        assert taken.status == 409, "a name that was given up stays reserved to its owner"
        assert (await visit(call, "app=b&subdomain=mine")).status == 302


async def test_a_port_rests_before_another_user_gets_it(call: Caller) -> None:
    async with linked_worker(call, port_range=[7000, 7001]) as worker:
        assert (await visit(call, "app=a&port=7000")).status == 302
        taken = await visit(call, "app=b&port=7000", session=uuid4())
        assert taken.status == 409
        await call("DELETE", "/api/session/_/bulk", {"session_ids": [str(SESSION)]})
        other = {"user": uuid4(), "session": uuid4()}
        assert (await visit(call, "app=a&port=7000", **other)).status == 409
        assert (await visit(call, "app=a", **other)).status == 302
        assert [each.port for each in worker.circuits.values()] == [7001]
        full = await visit(call, "app=c", user=uuid4(), session=uuid4())
        assert full.status in (409, 503)
        assert (await visit(call, "app=a&port=7000")).status == 302, "its user gets it back"
        slots = (await call("GET", "/api/slots?wsproxy_host=worker-1&in_use=false")).body["slots"]
        assert [(slot["port"], slot["in_use"]) for slot in slots] == [(7000, True), (7001, True)]
        assert (await call("GET", "/api/slots?wsproxy_host=other")).status == 404
        assert (await visit(call, "app=z&port=9", session=uuid4())).status == 503


async def test_each_slot_is_given_to_one_circuit_by_all_coordinators(
    settings: CoordinatorSettings, database_url: str, http: aiohttp.ClientSession
) -> None:
    async with running(settings, database_url) as first, running(settings, database_url) as second:
        calls = [Caller(http, first.url), Caller(http, second.url)]
        async with linked_worker(calls[0], port_range=[7000, 7019]) as worker:
            visits = [visit(calls[n % 2], "app=web", session=uuid4(), user=uuid4()) for n in range(20)]
            answers = await asyncio.gather(*visits)
            assert [each.status for each in answers] == [302] * 20, [each.body for each in answers]
            assert {each.port for each in worker.circuits.values()} == set(range(7000, 7020))
            assert (await visit(calls[1], session=uuid4())).status == 503


async def test_a_port_that_the_worker_cannot_open_is_replaced(call: Caller) -> None:
    async with linked_worker(call, port_range=[7000, 7001]) as worker:
        worker.broken = {7000}
        assert (await visit(call)).status == 302
        await worker.until(lambda: [each.port for each in worker.circuits.values()] == [7001])
        refused = await visit(call, "app=b&port=7000")
        assert refused.status == 504
        assert refused.text.startswith("E20003: Timed out while waiting for proxy frontend to set up")
        await worker.until(lambda: len(worker.circuits) == 1)


async def test_without_a_worker_that_answers_there_is_an_error_and_the_token_stays(
    call: Caller, coordinator: Coordinator
) -> None:
    token = await call.conf(SESSION, USER)
    silent = await call.browse(token, SESSION)
    assert (silent.status, silent.text) == (503, "E10001: Proxy worker not responding")
    worker = FakeWorker(call, registration())
    await worker.register()
    undelivered = await call.browse(token, SESSION)
    assert (undelivered.status, undelivered.text) == (503, "E20001: Route event not delivered to worker")
    assert (await call("GET", "/api/slots")).body["slots"] == [], "the slot is free again"
    await worker.link()
    assert (await call.browse(token, SESSION)).status == 302
    await worker.unlink()


async def test_a_lost_worker_gets_nothing_new_and_returns_with_its_circuits(
    call: Caller, coordinator: Coordinator
) -> None:
    async with linked_worker(call, authority="a") as first, linked_worker(call, authority="b") as second:
        assert (await visit(call)).status == 302
        holder, other = (first, second) if first.circuits else (second, first)
        (lost_circuit,) = holder.circuits
        await holder.unlink()
        coordinator.workers.timeout_s = 1.5
        await asyncio.sleep(1.6)
        await call("PATCH", f"/api/worker/{other.id}", {"node": other.node})
        moved = await visit(call)
        assert moved.status == 302, moved.body
        assert list(map(str, other.circuits)) == [code_of(moved.headers["Location"])["circuit"]]
        assert (await call("GET", f"/api/worker/{holder.id}")).body["nodes"] == 0
        assert len((await call("GET", "/health/status")).body["workers"]) <= 1
        coordinator.workers.timeout_s = 30
        again = FakeWorker(call, {**holder.document})
        assert (await again.register())["id"] == str(holder.id)
        await again.link()
        await again.until(lambda: list(again.circuits) == [lost_circuit])
        await again.unlink()


async def test_both_nodes_of_a_worker_serve_before_the_browser_comes(call: Caller, worker: FakeWorker) -> None:
    twin = FakeWorker(call, registration())
    assert (await twin.register())["nodes"] == 2
    await twin.link()
    assert (await visit(call)).status == 302
    assert worker.circuits.keys() == twin.circuits.keys() != set()
    await twin.unlink()
    assert (await visit(call, "app=b")).status == 302, "a node that went holds nobody up"


async def test_filters_traffics_and_load_choose_the_worker(call: Caller) -> None:
    team = [{"key": "session.group_id", "value": "g"}]
    async with AsyncExitStack() as stack:

        async def add(authority: str, **changes: Any) -> FakeWorker:
            return await stack.enter_async_context(linked_worker(call, authority=authority, **changes))

        foreign = await add("a", filtered_apps_only=True, app_filters=[{"key": "session.group_id", "value": "h"}])
        models = await add("b", accepted_traffics=["inference"])
        plain = await add("c", port_range=[7000, 7001])
        large = await add("d", port_range=[7000, 7009])
        for app in ("a", "b", "c"):
            assert (await visit(call, f"app={app}")).status == 302
        assert not foreign.circuits
        assert not models.circuits
        assert len(plain.circuits) + len(large.circuits) == 3
        assert plain.circuits, "the first of equals"
        assert len(large.circuits) == 2, "then the one with the larger share of free slots"
        own = await add("e", filtered_apps_only=True, app_filters=team)
        assert (await visit(call, "app=d")).status == 302
        assert len(own.circuits) == 1, "a worker with a matching filter goes first"


async def test_circuits_of_ports_that_a_worker_gave_up_are_removed(call: Caller, coordinator: Coordinator) -> None:
    async with linked_worker(call, port_range=[7000, 7000]) as worker:
        await visit(call)
        worker.document["port_range"] = [8000, 8000]
        await worker.register()
        await coordinator.circuits.remove_unneeded()
        await worker.until(lambda: not worker.circuits)
        assert (await visit(call)).status == 302
        assert [each.port for each in worker.circuits.values()] == [8000]


async def test_a_link_that_talks_nonsense_is_closed(call: Caller, worker: FakeWorker) -> None:
    for text in (
        "nonsense",
        '{"frame": "state"}',
        '{"frame": "ack", "version": "x"}',
        '{"frame":"usage","sequence":-1}',
    ):
        other = FakeWorker(call, registration("worker-2"))
        await other.register()
        await other.link()
        assert other._socket is not None
        await other._socket.send_str(text)
        assert other._task is not None
        await asyncio.wait_for(other._task, 5)
        assert other._socket.close_code == 1011
    assert (await visit(call)).status == 302, "the others are served"


async def test_everything_is_there_after_a_restart(
    settings: CoordinatorSettings, database_url: str, http: aiohttp.ClientSession
) -> None:
    async with running(settings, database_url) as before:
        call = Caller(http, before.url)
        async with linked_worker(call) as worker:
            assert (await visit(call)).status == 302
            circuits = worker.circuits
            token = await call.conf(SESSION, USER)
            authority = (await call("GET", "/api/gateway-authority")).body
    async with running(settings, database_url) as after:
        call = Caller(http, after.url)
        assert (await call("GET", "/api/gateway-authority")).body == authority
        again = FakeWorker(call, registration())
        await again.register()
        await again.link()
        visited = await call.browse(token, SESSION, "app=web")
        assert visited.status == 302
        assert again.circuits.keys() == circuits.keys(), "the same circuit is used again"
        await again.unlink()
        metrics = (await call("GET", "/metrics", headers={})).body
        assert b"backendai_appproxy_coordinator_circuits 1.0" in metrics
        assert b"backendai_appproxy_coordinator_workers_alive 1.0" in metrics
