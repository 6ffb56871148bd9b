"""The way to an app through a service gateway: TLS with the name of the route, pinned certificates on both sides."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_address

import aiohttp
import pytest
from aiohttp import web

from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane
from ai.backend.appproxy.worker.upstreams import resolve
from ai.backend.common.errors import AddressRefused
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import Circuit, GatewayRoute
from ai.backend.core.proxy.changes import Changes
from ai.backend.infra.tls.certificates import (
    TlsIdentity,
    create_authority,
    create_request,
    create_server_identity,
    issue_client_certificate,
)
from ai.backend.infra.tls.contexts import server_context
from tests.component.appproxy.worker.conftest import PlaneFactory
from tests.support.proxy_apps import FakeApp, circuit_to, route_to

ROUTE = "r0123456789abcdef"


def client_of(authority: TlsIdentity) -> TlsIdentity:
    key, request = create_request("worker")
    return TlsIdentity(key, issue_client_certificate(authority, request, "worker"))


@dataclass
class Gateway:
    """A TLS server in front of an app, and the names that its clients asked for."""

    app: FakeApp
    identity: TlsIdentity = field(default_factory=create_server_identity)
    authority: TlsIdentity = field(default_factory=create_authority)
    names: list[str | None] = field(default_factory=list)
    port: int = 0


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway(FakeApp())
    context = server_context(gateway.identity, [gateway.authority.certificate])

    def record(_socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        gateway.names.append(name)

    context.sni_callback = record
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", gateway.app.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    gateway.port = runner.addresses[0][1]
    yield gateway
    await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def serve(plane: EmbeddedPlane, gateway: Gateway, port: int, certificate: str) -> Circuit:
    route = replace(route_to(gateway.port), gateway=GatewayRoute(name=ROUTE, certificate=certificate))
    circuit = circuit_to(route, port=port)
    await plane.apply(Changes(version=1, circuits=(circuit,)))
    return circuit


async def test_requests_and_sockets_reach_the_route(
    start_plane: PlaneFactory, gateway: Gateway, ports: list[int], http: aiohttp.ClientSession
) -> None:
    plane = await start_plane(identity=client_of(gateway.authority))
    await serve(plane, gateway, ports[0], gateway.identity.certificate)
    for _ in range(3):
        async with http.get(f"http://127.0.0.1:{ports[0]}/") as response:
            assert (response.status, await response.text()) == (200, "app")
    async with http.ws_connect(f"http://127.0.0.1:{ports[0]}/ws") as socket:
        await socket.send_str("hello")
        assert await socket.receive_str() == "app: hello"
    assert gateway.names == [ROUTE, ROUTE]


@pytest.mark.parametrize("fault", ["other server", "other authority", "no certificate yet"])
async def test_nobody_else_is_taken_for_the_gateway_or_the_worker(
    start_plane: PlaneFactory, gateway: Gateway, ports: list[int], http: aiohttp.ClientSession, fault: str
) -> None:
    authority = create_authority() if fault == "other authority" else gateway.authority
    pinned = create_server_identity() if fault == "other server" else gateway.identity
    plane = await start_plane(identity=None if fault == "no certificate yet" else client_of(authority))
    await serve(plane, gateway, ports[0], pinned.certificate)
    async with http.get(f"http://127.0.0.1:{ports[0]}/") as response:
        assert response.status == 502
    assert not gateway.app.requests


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "::ffff:169.254.169.254", "2002:a9fe:a9fe::1", "64:ff9b::a9fe:a9fe", "fe80::1"),
        *("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "::ffff:0.0.0.0", "::ffff:224.0.0.1", "ff02::1"),
    ],
)
async def test_no_spelling_of_a_metadata_service_is_an_app(host: str) -> None:
    with pytest.raises(AddressRefused):
        await resolve(asyncio.get_running_loop(), host)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "fd00::1", "::1", "::ffff:a00:1"])
async def test_private_addresses_are_those_of_apps(host: str) -> None:
    assert ip_address(await resolve(asyncio.get_running_loop(), host)) == ip_address(host)
