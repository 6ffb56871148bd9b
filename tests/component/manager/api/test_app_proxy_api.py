"""Browsers reach services by the app proxy of the resource group, until the session ends (spec 03-08, 03-14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from ai.backend.appproxy.coordinator.composition import Coordinator
from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.execution import OpenRoute, RouteOpened, ServiceState, StartService
from ai.backend.infra.tls.certificates import load_authority
from tests.component.manager.api.conftest import Api
from tests.support.coordinator import SECRET, Caller, FakeWorker, linked_worker, running, settings_of


@dataclass
class Services:
    """An agent's services on ports of its own, and its gateway."""

    opened: list[OpenRoute] = field(default_factory=list)
    fails: bool = False

    async def start_service(self, req: StartService) -> ServiceState:
        return ServiceState(name=req.name, protocol="http", ports=[7001, 7002], status="running")

    async def open_route(self, req: OpenRoute) -> RouteOpened:
        if self.fails:
            raise Unavailable("the gateway cannot listen")
        self.opened.append(req)
        return RouteOpened(name="r-1.gateway", host="10.9.8.7", port=6100, certificate="PEM")


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with running(settings_of(tmp_path)) as coordinator:
        yield coordinator


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


@pytest.fixture
async def services(api: Api) -> Services:
    made = Services()
    api.agent.start_service = made.start_service  # type: ignore[method-assign]  # this test's services
    api.agent.open_route = made.open_route  # type: ignore[method-assign]  # as above
    await api.create(name="apps")
    return made


async def use_proxy(api: Api, address: str, token: str = SECRET) -> None:
    mutation = """mutation($props: ModifyScalingGroupInput!) {
        modify_scaling_group(name: "default", props: $props) { ok msg } }"""
    props = {"wsproxy_addr": address, "wsproxy_api_token": token}
    reply = await api.gql(mutation, api.admin, props=props)
    assert reply["data"]["modify_scaling_group"]["ok"], reply


async def start(api: Api, **body: Any) -> dict[str, Any]:
    reply = await api.user.request("POST", "/session/apps/start-service", json={"app": "web", **body})
    assert reply.status == 200, reply.body
    document: dict[str, Any] = reply.json()
    return document


async def browse(call: Caller, started: dict[str, Any], session: str) -> int:
    assert started["wsproxy_addr"] == call.url
    return (await call.browse(started["token"], UUID(session), "app=web")).status


async def session_id(api: Api) -> str:
    reply = await api.user.request("GET", "/session/apps")
    document = reply.json()
    return str(document.get("id") or document["sessionId"])


async def test_a_browser_reaches_a_service_by_the_proxy_of_its_group(
    api: Api, services: Services, coordinator: Coordinator, http: aiohttp.ClientSession
) -> None:
    call = Caller(http, coordinator.url)
    assert "token" not in await start(api), "without a proxy there is none"
    await use_proxy(api, coordinator.url + "/")
    async with linked_worker(call) as worker:
        started = await start(api, login_session_token="dummy")
        assert await browse(call, started, await session_id(api)) == 302
        (circuit,) = worker.circuits.values()
        (route,) = circuit.route_info
        assert (route.kernel_host, route.kernel_port) == ("10.9.8.7", 6100)
        assert route.gateway is not None
        assert (route.gateway.name, route.gateway.certificate) == ("r-1.gateway", "PEM")
    (opened,) = services.opened
    assert opened.port == 7001
    load_authority(opened.authority)


async def test_a_proxy_that_fails_is_a_reason_and_no_error(
    api: Api, services: Services, coordinator: Coordinator
) -> None:
    await use_proxy(api, coordinator.url, "x" * 40)
    assert "X-BackendAI-Token is missing or wrong" in (await start(api))["wsproxy_error"]
    await use_proxy(api, "http://127.0.0.1:9")
    assert "does not answer" in (await start(api))["wsproxy_error"]
    await use_proxy(api, coordinator.url)
    services.fails = True
    started = await start(api)
    assert started["wsproxy_error"] == "the gateway cannot listen"
    assert "token" not in started
    services.fails = False
    assert (await start(api))["token"]


async def test_an_ended_session_is_cut_off_also_after_the_coordinator_was_down(
    api: Api, services: Services, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    settings = settings_of(tmp_path / "other")
    (tmp_path / "other").mkdir()
    async with running(settings) as first:
        call = Caller(http, first.url)
        await use_proxy(api, first.url)
        async with linked_worker(call) as worker:
            assert await browse(call, await start(api), await session_id(api)) == 302
            foreign = await call.conf(UUID(int=5), UUID(int=6))
            assert (await call.browse(foreign, UUID(int=5))).status == 302
            assert len(worker.circuits) == 2
    reply = await api.user.request("DELETE", "/session/apps")
    assert reply.status == 200
    loop = api.cluster.manager.services.ended_apps
    with pytest.raises(Unavailable):
        await _sweep_until_ended(api, loop)
    async with running(settings) as second:
        call = Caller(http, second.url)
        await use_proxy(api, second.url)
        await loop.once()
        again = FakeWorker(call, worker.document)
        await again.register()
        await again.link()
        await again.until(lambda: again.version >= 0)
        assert [each.session_ids for each in again.circuits.values()] == [[UUID(int=5)]], "a stranger's circuit stays"
        await again.unlink()


async def _sweep_until_ended(api: Api, loop: Any) -> None:
    for _ in range(50):
        await loop.once()
        await asyncio.sleep(0.1)


async def test_an_address_that_is_none_is_refused(api: Api) -> None:
    mutation = """mutation($props: ModifyScalingGroupInput!) {
        modify_scaling_group(name: "default", props: $props) { ok msg } }"""
    for address in ("proxy:10200", "ftp://proxy", "http://a b", "http://proxy/path", "http://u:p@proxy"):
        reply = await api.gql(mutation, api.admin, props={"wsproxy_addr": address})
        outcome = (reply.get("data") or {}).get("modify_scaling_group")
        assert not (outcome and outcome["ok"]), address


async def test_operators_see_workers_and_circuits_and_remove_one(
    api: Api, services: Services, coordinator: Coordinator, http: aiohttp.ClientSession
) -> None:
    call, path = Caller(http, coordinator.url), "/resource/app-proxies"
    assert (await api.admin.request("GET", path)).json() == {"items": []}
    await use_proxy(api, coordinator.url)
    async with linked_worker(call):
        assert await browse(call, await start(api), await session_id(api)) == 302
        (proxy,) = (await api.admin.request("GET", path)).json()["items"]
        assert (proxy["url"], proxy["resource_groups"], proxy["problem"]) == (coordinator.url, ["default"], "")
        (shown,) = proxy["workers"]
        assert shown["occupied_slots"] == 1
        listing = f"{path}/circuits?scaling_group=default&worker={shown['id']}"
        (circuit,) = (await api.admin.request("GET", listing)).json()["items"]
        assert (circuit["app"], circuit["session_ids"]) == ("web", [await session_id(api)])
        removal = f"{path}/circuits/{circuit['id']}?scaling_group=default"
        assert (await api.user.request("DELETE", removal)).status == 403
        assert (await api.admin.request("DELETE", removal)).status == 200
        assert (await api.admin.request("DELETE", removal)).status == 404
        assert (await api.admin.request("GET", listing)).json() == {"items": []}
        for elsewhere in ("..%2F..%2Fapi%2Fworker", "nothing"):
            odd = f"{path}/circuits?scaling_group=default&worker={elsewhere}"
            assert (await api.admin.request("GET", odd)).status in (400, 404, 502), elsewhere
    await use_proxy(api, coordinator.url, "x" * 40)
    (proxy,) = (await api.admin.request("GET", path)).json()["items"]
    assert "X-BackendAI-Token is missing or wrong" in proxy["problem"]
