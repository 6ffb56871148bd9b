"""The whole way of a browser: coordinator and worker, with their restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from ai.backend.appproxy.coordinator.composition import Coordinator
from ai.backend.appproxy.coordinator.config.settings import CoordinatorSettings
from ai.backend.appproxy.worker.composition import Worker
from ai.backend.appproxy.worker.config.settings import WorkerSettings
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane
from ai.backend.common.wire.appproxy import TOKEN_HEADER
from tests.support.proxy_apps import SECRET, FakeApp, free_ports, running_app, until

HEADERS = {TOKEN_HEADER: SECRET}


@asynccontextmanager
async def running_coordinator(place: Path, port: int) -> AsyncIterator[Coordinator]:
    settings = CoordinatorSettings.model_validate(
        {
            "proxy_coordinator": {"bind_addr": {"host": "127.0.0.1", "port": port}, "data_dir": str(place)},
            "secrets": {"api_secret": SECRET},
        }
    )
    coordinator = Coordinator(settings)
    try:
        await coordinator.start()
        yield coordinator
    finally:
        await coordinator.stop()


@asynccontextmanager
async def running_worker(place: Path, coordinator_port: int, ports: list[int], **process: Any) -> AsyncIterator[Worker]:
    settings = WorkerSettings.model_validate(
        {
            "proxy_worker": {
                "coordinator_endpoint": f"http://127.0.0.1:{coordinator_port}",
                "api_bind_addr": {"host": "127.0.0.1", "port": ports[0]},
                "port_proxy": {"bind_port_range": [ports[1], ports[1] + 3]},
                "data_dir": str(place),
                "drain_timeout": 0.5,
                **process,
            },
            "secrets": {"api_secret": SECRET},
        }
    )
    worker = Worker(settings)
    try:
        await worker.start()
        yield worker
    finally:
        await worker.stop()


@pytest.fixture
def ports() -> list[int]:
    return free_ports(3)


@pytest.fixture
async def app() -> AsyncIterator[FakeApp]:
    async with running_app() as app:
        yield app


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


async def open_app(browser: aiohttp.ClientSession, coordinator: Coordinator, app: FakeApp, **query: str) -> str:
    """Opens an app as a browser does, and returns where it is then."""
    session_id = str(uuid4())
    body = {
        "login_session_token": None,
        "kernel_host": "127.0.0.1",
        "kernel_port": app.port,
        "session": {"id": session_id, "user_uuid": str(uuid4()), "group_id": str(uuid4()), "domain_name": "default"},
    }
    async with browser.post(f"{coordinator.url}/v2/conf", json=body, headers=HEADERS) as response:
        assert response.status == 200, await response.text()
        token = (await response.json())["token"]
    url = f"{coordinator.url}/v2/proxy/{token}/{session_id}/add"
    async with browser.get(url, params={"app": "app", **query}, headers={"Accept": "text/html"}) as response:
        assert (response.status, await response.text()) == (200, "app"), await response.text()
        return str(response.url)


async def test_a_browser_opens_an_app_and_is_cut_when_its_circuit_ends(
    tmp_path: Path, ports: list[int], app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    async with running_coordinator(tmp_path, ports[2]) as coordinator, running_worker(tmp_path, ports[2], ports) as w:
        await asyncio.wait_for(w.link.synchronized.wait(), 10)
        url = await open_app(browser, coordinator, app, redirect="/lab?x=1")
        assert url.endswith("/lab?x=1")
        assert app.requests[-1].headers.get("Cookie") is None
        origin = url.removesuffix("/lab?x=1")
        socket = await browser.ws_connect(f"{origin}/ws")
        await socket.send_str("hello")
        assert await socket.receive_str() == "app: hello"
        (circuit_id,) = w.plane.observe()
        async with browser.delete(f"{coordinator.url}/api/circuit/{circuit_id}", headers=HEADERS) as response:
            assert response.status == 200
        assert (await asyncio.wait_for(socket.receive(), 5)).type is not aiohttp.WSMsgType.TEXT
        async with browser.get(origin) as response:
            assert response.status == 404


async def test_use_reaches_the_coordinator(
    tmp_path: Path, ports: list[int], app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    async with running_coordinator(tmp_path, ports[2]) as coordinator, running_worker(tmp_path, ports[2], ports) as w:
        await asyncio.wait_for(w.link.synchronized.wait(), 10)
        await open_app(browser, coordinator, app)
        (circuit_id,) = w.plane.observe()
        url = f"{coordinator.url}/api/circuit/{circuit_id}/statistics"
        async with asyncio.timeout(15):
            while True:
                async with browser.get(url, headers=HEADERS) as response:
                    statistics = await response.json()
                if statistics["requests"] == 1:
                    break
                await asyncio.sleep(0.1)


async def test_the_worker_serves_without_a_coordinator_and_after_its_own_restart(
    tmp_path: Path, ports: list[int], app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    async with running_worker(tmp_path, ports[2], ports) as worker:
        async with running_coordinator(tmp_path, ports[2]) as coordinator:
            await asyncio.wait_for(worker.link.synchronized.wait(), 10)
            url = await open_app(browser, coordinator, app)
            removed_url = await open_app(browser, coordinator, app)
        async with browser.get(url) as response:
            assert response.status == 200
    async with running_worker(tmp_path, ports[2], ports) as worker:
        async with browser.get(url) as response:
            assert (response.status, await response.text()) == (200, "app")
        assert not worker.link.is_linked
        port = int(removed_url.rstrip("/").rpartition(":")[2])
        assert isinstance(worker.plane, EmbeddedPlane)
        removed = next(s.circuit.id for s in worker.plane._shared.table if s.circuit.port == port)
        async with running_coordinator(tmp_path, ports[2]) as coordinator:
            await until(lambda: worker.link.is_linked, timeout_s=20)
            async with browser.delete(f"{coordinator.url}/api/circuit/{removed}", headers=HEADERS):
                pass
            await until(lambda: removed not in worker.plane.observe())
            async with browser.get(url) as response:
                assert response.status == 200
            async with browser.get(removed_url) as response:
                assert response.status == 404


async def test_metrics_name_no_address_and_no_circuit(
    tmp_path: Path, ports: list[int], app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    async with running_coordinator(tmp_path, ports[2]) as coordinator, running_worker(tmp_path, ports[2], ports) as w:
        await asyncio.wait_for(w.link.synchronized.wait(), 10)
        await open_app(browser, coordinator, app)
        async with browser.get(f"http://127.0.0.1:{ports[0]}/metrics") as response:
            text = await response.text()
    lines = [line for line in text.splitlines() if line.startswith("backendai_appproxy_")]
    assert 'backendai_appproxy_requests_total{code="200",mode="interactive"} 1.0' in lines
    assert "backendai_appproxy_linked 1.0" in lines
    assert not any("127.0.0.1" in line or str(app.port) in line for line in lines)
