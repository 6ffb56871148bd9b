"""Planes of the app proxy on asyncio's loop and on uvloop's, which workers take where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.access.tokens import Tokens
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane, Frontend
from ai.backend.appproxy.worker.planes.haproxy.plane import HaproxyOptions, HaproxyPlane
from ai.backend.appproxy.worker.planes.plane import DataPlane
from ai.backend.appproxy.worker.upstreams import RouteDialer
from ai.backend.common.wire.appproxy import INFERENCE_KEY, ProxyProtocol, purpose_key
from ai.backend.infra.http.addresses import parse_network
from ai.backend.infra.tls.certificates import TlsIdentity
from tests.support.event_loops import both_loops
from tests.support.proxy_apps import PERMIT_SECRET, SECRET, FakeApp, free_ports, running_app

KEY = purpose_key(SECRET, INFERENCE_KEY)
PlaneFactory = Callable[..., Awaitable[Any]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories = both_loops()
    if item.path.stem in ("test_exploits", "test_flow", "test_smuggling", "test_streams", "test_upstreams"):
        return factories
    return {"asyncio": factories["asyncio"]}  # their bytes are those of another program, or slow


@pytest.fixture
async def app() -> AsyncIterator[FakeApp]:
    async with running_app() as app:
        yield app


@pytest.fixture
def ports() -> list[int]:
    """Free ports; the first two are slots of planes with a port frontend."""
    return free_ports(3)


@pytest.fixture
def plane_kind() -> str:
    """The plane under test; modules that are for all planes have parameters."""
    return "embedded"


@pytest.fixture
async def start_plane(ports: list[int], plane_kind: str, tmp_path: Path) -> AsyncIterator[PlaneFactory]:
    """Starts planes: with ``domain`` those of a wildcard frontend at the third port."""
    planes: list[DataPlane] = []

    async def start(
        *,
        domain: str | None = None,
        is_secure: bool = False,
        proxies: tuple[str, ...] = (),
        limits: Limits | None = None,
        identity: TlsIdentity | None = None,
        protocol: ProxyProtocol = ProxyProtocol.HTTP,
        certificate: tuple[Path, Path] | None = None,
        **other: Any,
    ) -> DataPlane:
        tokens = Tokens(shared_secret=SECRET, permit_secret=PERMIT_SECRET, started_at=0.0)
        gate = Gate(tokens, is_secure=is_secure, trusted_proxies=[parse_network(text) for text in proxies])
        if domain:
            frontend = Frontend(host="127.0.0.1", port=ports[2], domain=domain, is_secure=is_secure)
        else:
            slots = {port: port for port in ports[:2]}
            frontend = Frontend(host="127.0.0.1", ports=slots, is_secure=is_secure)
        dialer = RouteDialer()
        dialer.identity = identity
        plane: DataPlane
        if plane_kind == "haproxy":
            options = HaproxyOptions(
                folder=tmp_path / f"h{len(planes)}",
                circuits=8,
                protocol=protocol,
                token_key=KEY,
                certificate=certificate,
            )
            plane = HaproxyPlane(frontend, gate, dialer, options, limits=limits, **other)
        else:
            plane = EmbeddedPlane(frontend, gate, dialer, limits=limits, **other)
        await plane.start()
        planes.append(plane)
        return plane

    yield start
    for plane in planes:
        await plane.stop()
