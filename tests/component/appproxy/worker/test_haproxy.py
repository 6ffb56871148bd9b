"""The data plane on HAProxy: what it passes on by itself, what it leaves to the gate, and its sudden end."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import grpc
import pytest

from ai.backend.appproxy.worker.planes.haproxy.plane import HaproxyPlane
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import AppMode, Circuit, InferenceLimits, ProxyProtocol, ServingOptions
from ai.backend.core.proxy.changes import Changes
from ai.backend.core.proxy.cookies import permit_name
from tests.component.appproxy.worker.conftest import PlaneFactory
from tests.component.appproxy.worker.raw import exchange
from tests.component.appproxy.worker.test_exploits import cookie_of, url_of
from tests.component.appproxy.worker.test_smuggling import BAD_CHUNKS, CHUNKED, REFUSED
from tests.support.certificates import self_signed
from tests.support.proxy_apps import FakeApp, circuit_to, inference_token, route_to, until

pytestmark = pytest.mark.needs("haproxy")
FRAMED_ANEW = {
    "content length and transfer encoding",
    "transfer encoding and content length",
    "equal content lengths",
    "bare line feeds",
    "a bare line feed in the head",
    "a folded field",
    "another version",
}
"""Requests that HAProxy understands in one way and writes anew, where our own parser refuses them."""


@pytest.fixture
def plane_kind() -> str:
    return "haproxy"


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


async def serve(plane: HaproxyPlane, *circuits: Circuit, version: int = 1) -> None:
    assert not (await plane.apply(Changes(version=version, circuits=circuits))).failed


def requests_in_python(plane: HaproxyPlane, circuit: Circuit) -> int:
    return plane._inner.observe()[circuit.id].requests


async def test_a_permit_is_known_to_haproxy_after_the_gate_has_seen_it(
    start_plane: PlaneFactory, app: FakeApp, ports: list[int], browser: aiohttp.ClientSession
) -> None:
    plane: HaproxyPlane = await start_plane()
    circuit = circuit_to(route_to(app.port), port=ports[0], public=False)
    other = circuit_to(route_to(app.port), port=ports[1], public=False)
    await serve(plane, circuit, other)
    headers = {
        "Cookie": f"a=1; {cookie_of(circuit)}; b=2; {permit_name(other.id, is_secure=False)}=x; "
        "__Host-backendai=login; backendai-8090=login",
        "X-Forwarded-For": "10.1.2.3",
        "Forwarded": "for=10.1.2.3",
        "X_Real_Ip": "10.1.2.3",
    }
    for _ in range(3):
        async with browser.get(url_of(circuit), headers=headers) as response:
            assert response.status == 200
        await until(lambda: not plane._lock.locked())
    assert requests_in_python(plane, circuit) == 1
    await plane.refresh()
    assert plane.observe()[circuit.id].requests == 3
    for request in app.requests:
        assert request.headers["Cookie"].replace(" ", "") == "a=1;b=2"
        assert request.headers["X-Forwarded-For"] == "127.0.0.1"
        assert not {"Forwarded", "X_Real_Ip"} & set(request.headers)
    # The same cookies are worth nothing at another circuit, nor after the circuit was given to somebody else.
    async with browser.get(url_of(other), headers=headers) as response:
        assert response.status == 401
    async with browser.ws_connect(url_of(circuit, "/ws"), headers=headers) as socket:
        await serve(plane, replace(circuit, user_id=other.user_id), version=2)
        assert (await asyncio.wait_for(socket.receive(), 5)).type is not aiohttp.WSMsgType.TEXT
    async with browser.get(url_of(circuit), headers=headers) as response:
        assert response.status == 401


async def test_a_circuit_that_ends_while_its_user_is_admitted_disturbs_nobody(
    start_plane: PlaneFactory, app: FakeApp, ports: list[int], browser: aiohttp.ClientSession
) -> None:
    """The end of a circuit removes cookies that HAProxy may not have got yet: a command that fails would end it."""
    plane: HaproxyPlane = await start_plane()
    circuit = circuit_to(route_to(app.port), port=ports[0], public=False)
    other = circuit_to(route_to(app.port), port=ports[1])
    await serve(plane, circuit, other)
    pid = plane.pid
    async with browser.ws_connect(url_of(other, "/ws")) as socket:
        async with plane._lock:
            removal = asyncio.create_task(plane.apply(Changes(version=2, removed=(circuit.id,))))
            await asyncio.sleep(0)  # it comes before the report of the cookie
            headers = {"Cookie": f"fresh=1; {cookie_of(circuit)}"}
            async with browser.get(url_of(circuit), headers=headers) as response:
                assert response.status == 200
        await removal
        await asyncio.sleep(1)  # a command that failed would end HAProxy within it; without one there is no event
        await socket.send_str("x")
        assert (await asyncio.wait_for(socket.receive(), 5)).type is aiohttp.WSMsgType.TEXT
    assert plane.pid == pid


async def test_cookies_of_an_app_reach_its_own_host_only(
    start_plane: PlaneFactory, app: FakeApp, ports: list[int], browser: aiohttp.ClientSession
) -> None:
    plane: HaproxyPlane = await start_plane()
    circuit = circuit_to(route_to(app.port), port=ports[0])
    await serve(plane, circuit)
    forged = f"{permit_name(circuit.id, is_secure=False)}=forged"
    wishes = [
        forged,
        f"={forged}; Path=/lab",
        f" = {forged}",
        "backendai-8090=login; Path=/",
        "a=1; Domain=example.net; Path=/",
        "b=2; domain=x; DOMAIN=y",
        "c=3; Path=/",
    ]
    async with browser.get(url_of(circuit, "/cookies"), params={"set": wishes}) as response:
        cookies = [each for each in response.headers.getall("Set-Cookie") if each]
    assert cookies == ["a=1; Path=/", "c=3; Path=/"]
    assert requests_in_python(plane, circuit) == 0


async def test_haproxy_may_be_killed_at_any_time(
    start_plane: PlaneFactory, app: FakeApp, ports: list[int], browser: aiohttp.ClientSession
) -> None:
    """Who connects meanwhile waits; what was open is cut; the counts never go back."""
    plane: HaproxyPlane = await start_plane()
    circuit = circuit_to(route_to(app.port), port=ports[0])
    await serve(plane, circuit)
    failed = counted = 0
    for number in range(3):
        socket = await browser.ws_connect(url_of(circuit, "/ws"))
        await plane.refresh()
        assert plane.observe()[circuit.id].requests > counted
        counted = plane.observe()[circuit.id].requests
        assert plane.pid is not None
        os.kill(plane.pid, signal.SIGKILL)
        if number == 1:  # and a change comes while it is away
            await serve(plane, circuit, circuit_to(route_to(app.port), port=ports[1]), version=2)
        assert (await asyncio.wait_for(socket.receive(), 5)).type is not aiohttp.WSMsgType.TEXT
        for _ in range(20):
            async with aiohttp.ClientSession() as fresh:
                try:
                    async with fresh.post(url_of(circuit)) as response:
                        assert response.status == 200
                except aiohttp.ClientError:
                    failed += 1
    print(f"haproxy killed 3 times: {failed} of 60 new connections failed")
    assert failed <= 3  # the connection that it had accepted when it was killed
    async with browser.get(f"http://127.0.0.1:{ports[1]}/") as response:
        assert response.status == 200
    await plane.refresh()
    assert plane.observe()[circuit.id].requests >= counted + 20


async def test_what_our_parser_refuses_reaches_an_app_in_one_reading_or_not_at_all(
    start_plane: PlaneFactory, ports: list[int]
) -> None:
    plane: HaproxyPlane = await start_plane()
    received: dict[str, bytes] = {}

    async def send(kind: str, request: bytes) -> None:
        """Each request has an app of its own, which keeps all that reaches it."""

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await reader.read(65_536):
                    received[kind] = received.get(kind, b"") + data
                    if b"\r\n\r\n" in data:
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            writer.close()

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            route = route_to(server.sockets[0].getsockname()[1])
            circuit = circuit_to(route, port=ports[0])
            await serve(plane, circuit, version=len(received) + 1)
            await exchange(ports[0], request)
            await plane.apply(Changes(version=1, removed=(circuit.id,)))

    for kind, request in {**REFUSED, **{f"chunk: {kind}": CHUNKED + body for kind, body in BAD_CHUNKS.items()}}.items():
        await send(kind, request)
    passed = {kind for kind in received if not kind.startswith("chunk: ")}
    assert passed <= FRAMED_ANEW, passed - FRAMED_ANEW
    for kind, data in received.items():
        assert data.count(b" HTTP/1.1\r\n") == 1, (kind, data)
        assert b"/smuggled" not in data.split(b"\r\n\r\n", 1)[0], (kind, data)
        head = data.split(b"\r\n\r\n", 1)[0].lower()
        assert not (b"content-length" in head and b"transfer-encoding" in head), (kind, data)


async def test_grpc_reaches_an_endpoint_by_its_token(start_plane: PlaneFactory, ports: list[int]) -> None:
    plane: HaproxyPlane = await start_plane(protocol=ProxyProtocol.GRPC)

    calls = 0

    async def double(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        nonlocal calls
        calls += 1
        async for request in requests:
            yield request * 2

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(double)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("demo.Demo", {"Double": handler}),))
    route = route_to(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    circuit, other = (
        circuit_to(route, port=port, mode=AppMode.INFERENCE, protocol=ProxyProtocol.GRPC, public=False)
        for port in ports[:2]
    )
    closed = replace(other, id=uuid4(), allowed_client_ips="10.0.0.0/8")
    await serve(plane, circuit, other)
    assert set((await plane.apply(Changes(version=2, circuits=(closed,)))).failed) == {closed.id}

    async def call(token: str | None, *messages: bytes) -> list[bytes]:
        metadata = [("authorization", f"Bearer {token}")] if token else []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{circuit.port}") as channel:
            stream = channel.stream_stream("/demo.Demo/Double")(iter(messages), metadata=metadata)
            return [message async for message in stream]

    assert await call(inference_token(circuit), b"ab", b"c") == [b"abab", b"cc"]
    refused = [
        None,
        inference_token(other),
        inference_token(circuit, expires_in_s=-60),
        inference_token(circuit, typ="setup"),
        inference_token(circuit)[:-8] + "AAAAAAAA",
        inference_token(circuit, limits={"concurrent": 1}),  # which nobody would count here
    ]
    for token in refused:
        with pytest.raises(grpc.aio.AioRpcError):
            await call(token, b"x")
    assert calls == 1
    await plane.refresh()
    assert plane.observe()[circuit.id].requests == 1
    await plane.apply(Changes(version=3, removed=(circuit.id,)))
    with pytest.raises(grpc.aio.AioRpcError):
        await call(inference_token(circuit), b"x")
    await server.stop(None)


@pytest.mark.parametrize("public", [True, False])
async def test_an_endpoint_of_http2_with_limits_is_refused_as_nobody_would_count(
    start_plane: PlaneFactory, ports: list[int], public: bool
) -> None:
    plane: HaproxyPlane = await start_plane(protocol=ProxyProtocol.H2)
    circuit = circuit_to(route_to(1), port=ports[0], mode=AppMode.INFERENCE, protocol=ProxyProtocol.H2, public=public)
    unlimited, limited = (
        replace(circuit, serving=ServingOptions(name="m", limits=limits))
        for limits in (InferenceLimits(), InferenceLimits(concurrent=1))
    )
    await serve(plane, unlimited)
    refused = await plane.apply(Changes(version=2, circuits=(limited,)))
    assert set(refused.failed) == {circuit.id}


async def test_a_host_of_http2_is_an_exact_label_and_its_target_has_one_reading(
    start_plane: PlaneFactory, ports: list[int]
) -> None:
    plane: HaproxyPlane = await start_plane(protocol=ProxyProtocol.GRPC, domain=".apps.example.net")
    targets = []

    class Anything(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
        def service(self, details: Any) -> Any:
            targets.append(details.method)

            async def answer(_request: bytes, _context: Any) -> bytes:
                return b"x"

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Anything(),))
    route = route_to(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    circuit = circuit_to(route, subdomain="grpc", mode=AppMode.INFERENCE, protocol=ProxyProtocol.GRPC)
    await serve(plane, circuit)

    async def call(host: str, target: str) -> bool:
        options = [("grpc.default_authority", host)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[2]}", options=options) as channel:
            try:
                return bool(await channel.unary_unary(target)(b"x") == b"x")
            except grpc.aio.AioRpcError:
                return False

    host = "grpc.apps.example.net"
    assert await call(host, "/demo.Demo/Get?a=%20")
    assert await call(f"{host}:443", "/demo.Demo/Get")
    targets.clear()
    for forged in (f"evil,{host}", f"{host},evil", f"x.{host}", f"{host}.", f"evil@{host}"):
        assert not await call(forged, "/demo.Demo/Get"), forged
    for target in ("/a%00b", "/a%zz", "/a#b", "/a\\b"):
        assert not await call(host, target), target
    assert targets == []
    await server.stop(None)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Returns a frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


async def test_streams_that_are_reset_at_once_disturb_nobody(start_plane: PlaneFactory, ports: list[int]) -> None:
    plane: HaproxyPlane = await start_plane(protocol=ProxyProtocol.GRPC)
    running = peak = 0

    async def wait(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        try:
            async for request in requests:
                yield request
        finally:
            running -= 1

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(wait)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("demo.Demo", {"Wait": handler}),))
    route = route_to(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    circuit = circuit_to(route, port=ports[0], mode=AppMode.INFERENCE, protocol=ProxyProtocol.GRPC)
    await serve(plane, circuit)
    fields = ((b":path", b"/demo.Demo/Wait"), (b":authority", b"a"), (b"content-type", b"application/grpc"))
    literals = b"".join(b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
    head = b"\x83\x86" + literals + b"\x00\x02te\x08trailers"  # POST by http, in HPACK
    flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)
    for stream in range(1, 8_001, 2):
        flood += frame(1, 4, stream, head) + frame(3, 0, stream, (8).to_bytes(4, "big"))

    async def attack() -> None:
        with suppress(ConnectionError):
            await exchange(ports[0], flood)

    attacks = [asyncio.create_task(attack()) for _ in range(4)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{circuit.port}") as channel:
        for number in range(20):
            stream = channel.stream_stream("/demo.Demo/Wait")(iter([b"%d" % number]))
            assert [message async for message in stream] == [b"%d" % number]
    await asyncio.gather(*attacks)
    await until(lambda: running == 0)
    print(f"16,000 streams that were reset at once: at most {peak} calls ran together")
    assert plane.pid is not None
    await plane.refresh()
    assert plane.observe()[circuit.id].open == 0
    await server.stop(None)


async def test_a_replaced_certificate_is_used_without_a_restart(
    start_plane: PlaneFactory, app: FakeApp, ports: list[int], tmp_path: Path
) -> None:
    files = self_signed(tmp_path)
    plane: HaproxyPlane = await start_plane(is_secure=True, certificate=files)
    circuit = circuit_to(route_to(app.port), port=ports[0])
    await serve(plane, circuit)
    pid, first = plane.pid, files[0].read_text()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"https://127.0.0.1:{ports[0]}/ws"

    async def used() -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", ports[0], ssl=context)
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return ssl.DER_cert_to_PEM_cert(certificate)

    assert await used() == first
    async with aiohttp.ClientSession() as session, session.ws_connect(url, ssl=context) as socket:
        files[0].write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        await asyncio.sleep(1.2)  # two sweeps find it; nothing tells that they have refused it
        assert await used() == first
        self_signed(tmp_path)
        second = files[0].read_text()
        last = first
        for _ in range(100):  # HAProxy tells nobody
            if (last := await used()) == second:
                break
            await asyncio.sleep(0.2)
        assert last == second
        await socket.send_str("x")
        assert (await asyncio.wait_for(socket.receive(), 5)).type is aiohttp.WSMsgType.TEXT
    assert pid is not None
    assert plane.pid == pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: plane.pid not in (None, pid))
    assert await used() == second, "the new process reads the file"
