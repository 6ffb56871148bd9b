from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.access.tokens import Tokens
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane, Frontend
from ai.backend.appproxy.worker.planes.plane import DataPlane
from ai.backend.appproxy.worker.upstreams import RouteDialer
from tests.support.proxy_apps import PERMIT_SECRET, SECRET, FakeApp, free_ports, running_app

PLANES = ("embedded",)


@pytest.fixture
def ports() -> list[int]:
    """The slots of the plane under test."""
    return free_ports(4)


@pytest.fixture(params=PLANES)
async def plane(request: pytest.FixtureRequest, ports: list[int]) -> AsyncIterator[DataPlane]:
    """A plane with a port frontend."""
    gate = Gate(Tokens(shared_secret=SECRET, permit_secret=PERMIT_SECRET, started_at=0.0), is_secure=False)
    frontend = Frontend(host="127.0.0.1", ports={port: port for port in ports})
    plane = EmbeddedPlane(frontend, gate, RouteDialer(), limits=Limits(head_s=1.0))
    await plane.start()
    yield plane
    await plane.stop()


@pytest.fixture
async def app() -> AsyncIterator[FakeApp]:
    async with running_app() as app:
        yield app
