"""The data plane on Traefik: what an app gets, host names, what the worker serves itself, and sudden ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import aiohttp
import msgspec
import pytest
from yarl import URL

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.access.tokens import Tokens
from ai.backend.appproxy.worker.planes.embedded.plane import Frontend
from ai.backend.appproxy.worker.planes.traefik import plane as traefik_plane
from ai.backend.appproxy.worker.planes.traefik.control import LEASE_S, TraefikControl
from ai.backend.appproxy.worker.planes.traefik.plane import TraefikOptions, TraefikPlane
from ai.backend.appproxy.worker.planes.traefik.tree import tcp_tree
from ai.backend.appproxy.worker.upstreams import RouteDialer
from ai.backend.common.errors import InvalidInput
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import AppMode, Circuit, ProxyProtocol, ServingOptions
from ai.backend.core.proxy.changes import Changes
from ai.backend.core.proxy.cookies import permit_name
from ai.backend.core.proxy.routing import key_of
from ai.backend.infra.config_store.etcd import EtcdConfigStore
from tests.component.appproxy.worker.raw import exchange
from tests.component.appproxy.worker.test_exploits import cookie_of
from tests.component.appproxy.worker.test_smuggling import REFUSED
from tests.support.cluster import wait_until
from tests.support.etcd_server import EtcdServer
from tests.support.proxy_apps import (
    PERMIT_SECRET,
    SECRET,
    FakeApp,
    circuit_to,
    free_ports,
    inference_token,
    route_to,
    running_app,
)
from tests.support.traefik import running_traefik, static_configuration

pytestmark = [pytest.mark.slow, pytest.mark.needs("traefik", "etcd"), pytest.mark.timeout(120)]
DOMAIN = ".apps.example.net"
_authorities = count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


class Means(NamedTuple):
    """The addresses and names by which workers are started, also in another process."""

    etcd: str
    authority: str
    api_port: int
    gate_port: int
    ports: list[int]
    protocol: ProxyProtocol = ProxyProtocol.HTTP
    relay_port: int = 0

    def worker(self, *, domain: str | None = None, ports: list[int] | None = None) -> TraefikPlane:
        tokens = Tokens(shared_secret=SECRET, permit_secret=PERMIT_SECRET, started_at=0.0)
        control = TraefikControl(EtcdConfigStore([self.etcd]), self.authority, f"http://127.0.0.1:{self.api_port}")
        options = TraefikOptions(
            control=control,
            api_port=self.api_port,
            gate=("127.0.0.1", self.gate_port),
            relay=("127.0.0.1", self.relay_port),
            protocol=self.protocol,
        )
        slots = {} if domain else {port: port for port in ports or self.ports}
        frontend = Frontend(host="127.0.0.1", ports=slots, domain=domain)
        return TraefikPlane(frontend, Gate(tokens, is_secure=False), RouteDialer(), options)


class Scene:
    """An etcd, a Traefik with two slots and the domain, and the means to start workers beside it."""

    def __init__(self, etcd: EtcdServer, folder: Path) -> None:
        self.ports = free_ports(2)
        self.domain_port, self.api_port, self.gate_port = free_ports(3)
        self.authority, self._etcd, self._folder = f"component{next(_authorities)}", etcd, folder
        self._stack: ExitStack | None = None
        self.text = static_configuration(
            api_port=self.api_port,
            etcd=f"127.0.0.1:{etcd.port}",
            authority=self.authority,
            ports=self.ports,
            domain_port=self.domain_port,
        )

    def start_traefik(self) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(running_traefik(self._folder, self.text, api_port=self.api_port))

    def kill_traefik(self) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = None

    def means(self, *, protocol: ProxyProtocol = ProxyProtocol.HTTP) -> Means:
        return Means(self._etcd.url, self.authority, self.api_port, self.gate_port, self.ports, protocol)

    def worker(self, *, domain: str | None = None, ports: list[int] | None = None) -> TraefikPlane:
        return self.means().worker(domain=domain, ports=ports)


@pytest.fixture
def scene(etcd: EtcdServer, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(etcd, tmp_path / "traefik")
    scene.start_traefik()
    yield scene
    scene.kill_traefik()


@pytest.fixture
async def plane(scene: Scene) -> AsyncIterator[TraefikPlane]:
    plane = scene.worker()
    await plane.start()
    yield plane
    await plane.stop()


@pytest.fixture
async def app() -> AsyncIterator[FakeApp]:
    async with running_app() as app:
        yield app


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """Yields the port of a server that sends back what it gets."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Waits until a condition holds."""
    await asyncio.to_thread(wait_until, condition, timeout_s=timeout_s)


async def serve(plane: TraefikPlane, *circuits: Circuit, version: int = 1) -> None:
    assert not (await plane.apply(Changes(version=version, circuits=circuits))).failed


def url_of(circuit: Circuit, path: str = "/") -> str:
    return f"http://127.0.0.1:{circuit.port}{path}"


async def test_an_app_gets_neither_permit_nor_token_nor_fields_that_only_the_proxy_sets(
    plane: TraefikPlane, scene: Scene, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    circuit = circuit_to(route_to(app.port), port=scene.ports[0], public=False)
    await serve(plane, circuit)
    headers = {
        "Cookie": f"mine=1; {cookie_of(circuit)}",
        "Authorization": "Basic of-the-app",
        "X-BackendAI-Token": "x",
        "X-Forwarded-For": "10.9.9.9",
        "Forwarded": "for=10.9.9.9",
        "X_Forwarded_For": "10.9.9.9",
    }
    async with browser.get(url_of(circuit, "/a?b=c"), headers=headers) as response:
        assert response.status == 200
    (request,) = app.requests
    assert request.path_qs == "/a?b=c"
    assert request.headers["Cookie"] == "mine=1"
    assert request.headers["Authorization"] == "Basic of-the-app"
    assert "10.9.9.9" not in str(dict(request.headers))
    assert "X-BackendAI-Token" not in request.headers
    async with browser.get(URL(url_of(circuit, "/a%2Fb"), encoded=True), headers=headers) as response:
        assert (response.status, app.requests[-1].raw_path) == (200, "/a%2Fb")
    foreign = {"Cookie": cookie_of(circuit), "Origin": "http://evil.example"}
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await browser.ws_connect(url_of(circuit, "/ws"), headers=foreign)


async def test_permits_that_an_app_sets_are_worth_nothing(
    plane: TraefikPlane, scene: Scene, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    """Traefik passes them on: no middleware of it drops cookies by a pattern. Such a name has 122 random bits, which no
    app learns, not even its own; a value that the app makes up admits nobody and hides no permit."""
    circuit, other = (circuit_to(route_to(app.port), port=port, public=False) for port in scene.ports)
    await serve(plane, circuit, other)
    names = [permit_name(each.id, is_secure=False) for each in (circuit, other)]
    both = {"Cookie": f"a=1; {cookie_of(other)}; {cookie_of(circuit)}"}
    wishes = [f"{names[0]}=forged; Path=/", f"={names[0]}=forged", f"{names[1]}=forged; Path=/lab", "b=2; Path=/"]
    async with browser.get(url_of(circuit, "/cookies"), params={"set": wishes}, headers=both) as response:
        assert response.headers.getall("Set-Cookie") == wishes
    app.requests.clear()
    async with browser.get(url_of(circuit), headers=both) as response:
        assert response.status == 200
    (request,) = app.requests
    told = f"{request.raw_path} {dict(request.headers)}".lower()
    assert not any(text in told for each in (circuit, other) for text in (each.id.hex, str(each.id)))
    async with browser.get(url_of(other), headers={"Cookie": f"{names[1]}=forged"}) as response:
        assert response.status == 401
    async with browser.get(url_of(other), headers={"Cookie": f"{names[1]}=forged; {cookie_of(other)}"}) as response:
        assert response.status == 200


async def test_an_address_is_that_of_the_connection_whatever_fields_say(
    plane: TraefikPlane, scene: Scene, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    far, near = (
        circuit_to(route_to(app.port), port=port, networks=each)
        for port, each in zip(scene.ports, ("10.0.0.0/8", "127.0.0.0/8"), strict=True)
    )
    await serve(plane, far, near)
    attempts: list[dict[str, str]] = [
        {},
        {"X-Forwarded-For": "10.1.1.1"},
        {"X-Real-Ip": "10.1.1.1", "Forwarded": "for=10.1.1.1"},
        {"X-Forwarded-For": "10.1.1.1", "Connection": "X-Forwarded-For"},
        {"X_Forwarded_For": "10.1.1.1", "Connection": "keep-alive, X-Forwarded-For"},
        {"X-Forwarded-Uri": "/x", "X-Forwarded-Method": "GET", "X-Forwarded-Host": "10.1.1.1"},
    ]
    for headers in attempts:
        async with browser.get(url_of(far), headers=headers) as response:
            assert response.status == 403, headers
        async with browser.get(url_of(near), headers=headers) as response:
            assert response.status == 200, headers
    assert all(request.host == f"127.0.0.1:{near.port}" for request in app.requests)
    assert "10.1.1.1" not in str([dict(request.headers) for request in app.requests])


async def test_a_host_is_an_exact_label(scene: Scene, app: FakeApp, browser: aiohttp.ClientSession) -> None:
    plane = scene.worker(domain=DOMAIN)
    await plane.start()
    circuit = circuit_to(route_to(app.port), subdomain="notebook")
    await serve(plane, circuit)

    async def status(host: str) -> int:
        url = f"http://127.0.0.1:{scene.domain_port}/"
        async with browser.get(url, headers={"Host": host}) as response:
            return response.status

    assert await status(f"notebook{DOMAIN}") == 200
    for host in (f"x.notebook{DOMAIN}", f"notebook{DOMAIN}.evil", "notebook", f"xnotebook{DOMAIN}", "127.0.0.1"):
        assert await status(host) == 404, host
    relayed = replace(circuit, id=uuid4(), subdomain="model", serving=ServingOptions(name="m"))
    refused = await plane.apply(Changes(version=2, circuits=(relayed,)))
    assert "neither models" in refused.failed[relayed.id]
    await plane.apply(Changes(version=3, removed=(circuit.id,)))
    assert await status(f"notebook{DOMAIN}") == 404
    await plane.stop()


async def test_models_are_served_by_the_worker_and_their_use_is_counted(
    plane: TraefikPlane, scene: Scene, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    circuit = circuit_to(route_to(app.port), port=scene.ports[0], mode=AppMode.INFERENCE, public=False)
    circuit = replace(circuit, serving=ServingOptions(name="m"))
    await serve(plane, circuit)
    headers = {"Authorization": f"Bearer {inference_token(circuit)}"}
    statuses = [(await browser.get(url_of(circuit), headers=each)).status for each in (headers, {})]
    assert statuses == [200, 401]
    (used,) = plane.take_usage()
    assert (used.endpoint, used.requests, used.errors) == (circuit.endpoint_id, 1, 0)
    assert plane.observe()[circuit.id].requests == 1


async def test_nodes_of_an_authority_take_models_at_the_same_address(
    scene: Scene, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    """All nodes write the same keys: an address of one of them alone would belong to somebody else on other hosts."""
    (relay_port,) = free_ports(1)
    means = scene.means()._replace(relay_port=relay_port)
    plane, store = means.worker(), EtcdConfigStore([means.etcd])
    await plane.start()
    circuit = circuit_to(route_to(app.port), port=scene.ports[0], mode=AppMode.INFERENCE)
    circuit = replace(circuit, serving=ServingOptions(name="m"))
    await serve(plane, circuit)
    tree = await store.read_tree(f"traefik/worker_{means.authority}/")
    addresses = [value for key, value in tree.items() if key.startswith("tcp/") and key.endswith("/address")]
    assert addresses == [f"127.0.0.1:{relay_port}"]
    async with browser.get(url_of(circuit)) as response:
        assert response.status == 200
    with pytest.raises(InvalidInput, match="relay of Traefik cannot listen"):
        await means._replace(gate_port=0).worker().start()
    await plane.stop()
    await store.close()


async def test_a_token_with_limits_is_refused_where_nobody_would_count(
    plane: TraefikPlane, scene: Scene, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    circuit = circuit_to(route_to(app.port), port=scene.ports[0], mode=AppMode.INFERENCE, public=False)
    await serve(plane, circuit)
    statuses = []
    tokens = (inference_token(circuit, limits={"concurrent": 1}), inference_token(circuit, limits={}))
    for token in (*tokens, inference_token(circuit)):
        headers = {"Authorization": f"Bearer {token}"}
        async with browser.get(url_of(circuit), headers=headers) as response:
            statuses.append(response.status)
    assert statuses == [403, 200, 200]


async def test_a_traefik_that_is_killed_comes_back_with_all_circuits(
    plane: TraefikPlane, scene: Scene, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    first, second = (circuit_to(route_to(app.port), port=port) for port in scene.ports)
    await serve(plane, first)
    scene.kill_traefik()
    scene.start_traefik()
    await serve(plane, second, version=2)
    for circuit in (first, second):
        async with browser.get(url_of(circuit)) as response:
            assert response.status == 200
    socket = await browser.ws_connect(url_of(first, "/ws"))
    await plane.apply(Changes(version=3, removed=(first.id,)))
    assert (await asyncio.wait_for(socket.receive(), 5)).type is not aiohttp.WSMsgType.TEXT


async def test_without_the_worker_nobody_is_let_in_and_a_new_one_goes_on(
    scene: Scene, app: FakeApp, browser: aiohttp.ClientSession
) -> None:
    plane = scene.worker()
    await plane.start()
    circuit, stale = (circuit_to(route_to(app.port), port=port) for port in scene.ports)
    await serve(plane, circuit, stale)
    await plane.stop()
    async with browser.get(url_of(circuit)) as response:
        assert response.status >= 500
    assert not app.requests
    again = scene.worker()
    await again.start()
    await again.apply(Changes(version=1, circuits=(circuit,), is_complete=True))
    async with browser.get(url_of(circuit)) as response:
        assert response.status == 200
    async with browser.get(url_of(stale)) as response:
        assert response.status == 404
    await again.stop()


WORKER = """
import asyncio, sys
from pathlib import Path
import msgspec
from ai.backend.common.wire.appproxy import Circuit
from ai.backend.core.proxy.changes import Changes
from tests.component.appproxy.worker.test_traefik import Means

async def main():
    plane = msgspec.json.decode(sys.argv[1], type=Means).worker()
    await plane.start()
    circuits = msgspec.json.decode(sys.argv[2], type=tuple[Circuit, ...])
    assert not (await plane.apply(Changes(version=1, circuits=circuits))).failed
    Path(sys.argv[3]).touch()
    await asyncio.sleep(600)  # until the test ends this process

asyncio.run(main())
"""


def reaches(port: int) -> bool:
    """Returns True if a port of this host sends back a byte."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"x")
            return connection.recv(1) == b"x"
    except OSError:
        return False


async def test_raw_tcp_ends_with_its_worker_and_comes_back_with_it(scene: Scene, tmp_path: Path) -> None:
    means, ready = scene.means(protocol=ProxyProtocol.TCP), tmp_path / "ready"
    async with echo() as port:
        circuit = circuit_to(route_to(port), port=scene.ports[0], protocol=ProxyProtocol.TCP)
        arguments = (msgspec.json.encode(each).decode() for each in (means, (circuit,)))
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, *arguments, str(ready))
        try:
            await until(ready.exists, 20)
            await asyncio.sleep(1.5 * LEASE_S)  # it serves for longer than its lease
            assert await asyncio.to_thread(reaches, scene.ports[0])
            worker.send_signal(signal.SIGSTOP)
            await until(lambda: not reaches(scene.ports[0]), 2 * LEASE_S)
            worker.send_signal(signal.SIGCONT)
            await until(lambda: reaches(scene.ports[0]), LEASE_S)
        finally:
            worker.kill()
            await worker.wait()
        await until(lambda: not reaches(scene.ports[0]), 2 * LEASE_S)
        again, other = means.worker(), means._replace(gate_port=0).worker()
        for plane in (again, other):
            await plane.start()
            await plane.apply(Changes(version=1, circuits=(circuit,), is_complete=True))
        assert await asyncio.to_thread(reaches, scene.ports[0])
        await again.stop()
        await asyncio.sleep(1.5 * LEASE_S)  # nothing may happen in this time, so there is no event
        assert await asyncio.to_thread(reaches, scene.ports[0])  # another node of the authority lives
        await other.stop()


async def test_raw_tcp_of_an_earlier_release_gets_a_lease(scene: Scene) -> None:
    means = scene.means(protocol=ProxyProtocol.TCP)
    async with echo() as port:
        circuit = circuit_to(route_to(port), port=scene.ports[0], protocol=ProxyProtocol.TCP)
        store = EtcdConfigStore([means.etcd])
        address = {key_of(circuit.route_info[0]): f"127.0.0.1:{port}"}
        await store.write_tree(f"traefik/worker_{means.authority}/", tcp_tree(circuit, address))
        await store.close()
        await until(lambda: reaches(scene.ports[0]), 10)
        plane = means.worker()
        await plane.start()
        await serve(plane, circuit)
        assert await asyncio.to_thread(reaches, scene.ports[0])
        await plane.stop()
        await until(lambda: not reaches(scene.ports[0]), 2 * LEASE_S)


async def test_what_traefik_does_not_have_is_refused(
    scene: Scene, app: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unknown,) = free_ports(1)
    plane = scene.worker(ports=[*scene.ports, unknown])
    await plane.start()
    circuit = circuit_to(route_to(app.port), port=unknown)
    refused = await plane.apply(Changes(version=1, circuits=(circuit,)))
    assert refused.failed[circuit.id].startswith("E20003")
    await plane.stop()
    monkeypatch.setattr(traefik_plane, "may_end_connections", lambda _pid: "Operation not permitted")
    with pytest.raises(InvalidInput, match="revoked: Operation not permitted"):
        await scene.worker().start()


async def test_what_can_be_read_in_two_ways_reaches_an_app_in_one_reading_or_not_at_all(
    plane: TraefikPlane, scene: Scene
) -> None:
    received: dict[str, bytes] = {}
    kind = ""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = kind
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                received[own] = received.get(own, b"") + data
                if b"\r\n\r\n" in data:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        circuit = circuit_to(route_to(server.sockets[0].getsockname()[1]), port=scene.ports[0])
        await serve(plane, circuit)
        for kind, request in REFUSED.items():  # noqa: B007  # the app reads it
            await exchange(scene.ports[0], request)
    print(f"{len(received)} of {len(REFUSED)} requests reach an app: {sorted(received)}")
    for name, data in received.items():
        assert data.count(b" HTTP/1.1\r\n") == 1, (name, data)
        assert b"/smuggled" not in data.split(b"\r\n\r\n", 1)[0], (name, data)
        head = data.split(b"\r\n\r\n", 1)[0].lower()
        assert not (b"content-length" in head and b"transfer-encoding" in head), (name, data)
