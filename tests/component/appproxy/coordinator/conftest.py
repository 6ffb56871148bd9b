"""A real coordinator on a real socket, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from ai.backend.appproxy.coordinator.composition import Coordinator
from ai.backend.appproxy.coordinator.config.settings import CoordinatorSettings
from tests.support.coordinator import Caller, FakeWorker, linked_worker, running, settings_of
from tests.support.postgres import shared_server


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(force_close=True)  # none outlives a coordinator that is started again
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/coordinator.db"
    server = shared_server()
    return server.url(server.create())


@pytest.fixture
def settings(tmp_path: Path) -> CoordinatorSettings:
    return settings_of(tmp_path, **{"delivery-timeout": 2.0})


@pytest.fixture
async def coordinator(settings: CoordinatorSettings, database_url: str) -> AsyncIterator[Coordinator]:
    async with running(settings, database_url) as coordinator:
        yield coordinator


@pytest.fixture
def call(coordinator: Coordinator, http: aiohttp.ClientSession) -> Caller:
    return Caller(http, coordinator.url)


@pytest.fixture
async def worker(call: Caller) -> AsyncIterator[FakeWorker]:
    async with linked_worker(call) as worker:
        yield worker
