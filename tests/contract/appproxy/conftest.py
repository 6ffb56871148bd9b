from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.access.tokens import Tokens
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane, Frontend
from ai.backend.appproxy.worker.planes.haproxy.plane import HaproxyOptions, HaproxyPlane
from ai.backend.appproxy.worker.planes.plane import DataPlane
from ai.backend.appproxy.worker.planes.traefik.control import TraefikControl
from ai.backend.appproxy.worker.planes.traefik.plane import TraefikOptions, TraefikPlane
from ai.backend.appproxy.worker.upstreams import RouteDialer
from ai.backend.common.wire.appproxy import ProxyProtocol
from ai.backend.infra.config_store.etcd import EtcdConfigStore
from tests.support.etcd_server import EtcdServer
from tests.support.proxy_apps import PERMIT_SECRET, SECRET, FakeApp, free_ports, running_app
from tests.support.traefik import running_traefik, static_configuration

PLANES = (
    "embedded",
    pytest.param("haproxy", marks=pytest.mark.needs("haproxy")),
    pytest.param("traefik", marks=pytest.mark.needs("traefik", "etcd")),
)
_authorities = count()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def traefik(etcd: EtcdServer, ports: list[int], tmp_path: Path) -> Iterator[TraefikControl]:
    """The control of a Traefik with entry points for the slots."""
    authority, (api_port,) = f"test{next(_authorities)}", free_ports(1)
    text = static_configuration(api_port=api_port, etcd=f"127.0.0.1:{etcd.port}", authority=authority, ports=ports)
    with running_traefik(tmp_path / "traefik", text, api_port=api_port):
        yield TraefikControl(EtcdConfigStore([etcd.url]), authority, f"http://127.0.0.1:{api_port}")


@pytest.fixture
def ports() -> list[int]:
    """The slots of the plane under test."""
    return free_ports(4)


def _plane(request: pytest.FixtureRequest, ports: list[int], folder: Path, protocol: ProxyProtocol) -> DataPlane:
    """Returns the plane of the parameter, with a port frontend."""
    kind = request.param
    gate = Gate(Tokens(shared_secret=SECRET, permit_secret=PERMIT_SECRET, started_at=0.0), is_secure=False)
    frontend = Frontend(host="127.0.0.1", ports={port: port for port in ports})
    limits = Limits(head_s=1.0)
    if kind == "embedded":
        return EmbeddedPlane(frontend, gate, RouteDialer(), limits=limits)
    if kind == "traefik":
        control: TraefikControl = request.getfixturevalue("traefik")
        api_port = int(control.api.rpartition(":")[2])
        traefik_options = TraefikOptions(control=control, api_port=api_port, protocol=protocol)
        return TraefikPlane(frontend, gate, RouteDialer(), traefik_options, limits=limits)
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
    async with _running(_plane(request, ports, tmp_path / "h", ProxyProtocol.HTTP)) as plane:
        yield plane


@pytest.fixture(params=PLANES)
async def tcp_plane(request: pytest.FixtureRequest, ports: list[int], tmp_path: Path) -> AsyncIterator[DataPlane]:
    """A plane for raw TCP."""
    async with _running(_plane(request, ports, tmp_path / "h", ProxyProtocol.TCP)) as plane:
        yield plane


@pytest.fixture
async def app() -> AsyncIterator[FakeApp]:
    async with running_app() as app:
        yield app
