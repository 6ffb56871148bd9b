from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.access.tokens import Tokens
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane, Frontend
from ai.backend.appproxy.worker.planes.haproxy.plane import HaproxyOptions, HaproxyPlane
from ai.backend.appproxy.worker.planes.plane import DataPlane
from ai.backend.appproxy.worker.upstreams import RouteDialer
from ai.backend.common.wire.appproxy import ProxyProtocol
from tests.support.proxy_apps import PERMIT_SECRET, SECRET, FakeApp, free_ports, running_app

PLANES = ("embedded", pytest.param("haproxy", marks=pytest.mark.needs("haproxy")))


@pytest.fixture
def ports() -> list[int]:
    """The slots of the plane under test."""
    return free_ports(4)


def _plane(kind: str, ports: list[int], folder: Path, protocol: ProxyProtocol) -> DataPlane:
    """Returns a plane with a port frontend."""
    gate = Gate(Tokens(shared_secret=SECRET, permit_secret=PERMIT_SECRET, started_at=0.0), is_secure=False)
    frontend = Frontend(host="127.0.0.1", ports={port: port for port in ports})
    limits = Limits(head_s=1.0)
    if kind == "embedded":
        return EmbeddedPlane(frontend, gate, RouteDialer(), limits=limits)
    options = HaproxyOptions(folder=folder, circuits=8, protocol=protocol)
    return HaproxyPlane(frontend, gate, RouteDialer(), options, limits=limits)


@asynccontextmanager
async def _running(plane: DataPlane) -> AsyncIterator[DataPlane]:
    await plane.start()
    try:
        yield plane
    finally:
        await plane.stop()


@pytest.fixture(params=PLANES)
async def plane(request: pytest.FixtureRequest, ports: list[int], tmp_path: Path) -> AsyncIterator[DataPlane]:
    """A plane for HTTP."""
    async with _running(_plane(request.param, ports, tmp_path / "h", ProxyProtocol.HTTP)) as plane:
        yield plane


@pytest.fixture(params=PLANES)
async def tcp_plane(request: pytest.FixtureRequest, ports: list[int], tmp_path: Path) -> AsyncIterator[DataPlane]:
    """A plane for raw TCP."""
    async with _running(_plane(request.param, ports, tmp_path / "h", ProxyProtocol.TCP)) as plane:
        yield plane


@pytest.fixture
async def app() -> AsyncIterator[FakeApp]:
    async with running_app() as app:
        yield app
