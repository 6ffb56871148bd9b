"""The promises of the SPI of data planes; every plane runs them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from ai.backend.appproxy.worker.planes.plane import CircuitObservation, ConnectionFilter, DataPlane
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import AppMode, Circuit, ProxyProtocol
from ai.backend.core.proxy import changes as core_changes
from ai.backend.core.proxy.changes import Changes
from tests.support.proxy_apps import (
    FakeApp,
    circuit_to,
    inference_token,
    route_to,
    running_app,
    setup_code,
    tcp_app,
    until,
)


async def apply(plane: DataPlane, *circuits: Circuit, version: int = 1) -> None:
    applied = await plane.apply(Changes(version=version, circuits=circuits))
    assert applied.version == version
    assert not applied.failed


def url_of(circuit: Circuit, path: str = "/") -> str:
    return f"http://127.0.0.1:{circuit.port}{path}"


async def until_use(plane: DataPlane, circuit: Circuit, condition: Callable[[CircuitObservation], bool]) -> None:
    """Waits until a condition about the use of a circuit holds. Raises TimeoutError."""
    async with asyncio.timeout(10):
        while True:
            await plane.refresh()
            if condition(plane.observe()[circuit.id]):
                return
            await asyncio.sleep(0.01)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


class TestVersions:
    async def test_a_circuit_serves_when_its_version_is_acknowledged(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        circuit = circuit_to(route_to(app.port), port=ports[0])
        await apply(plane, circuit)
        async with http.get(url_of(circuit)) as response:
            assert (response.status, await response.text()) == (200, "app")

    async def test_a_version_may_be_applied_twice(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        circuit = circuit_to(route_to(app.port), port=ports[0])
        await apply(plane, circuit)
        async with http.ws_connect(url_of(circuit, "/ws")) as socket:
            await apply(plane, circuit)
            await socket.send_str("still")
            assert await socket.receive_str() == "app: still"

    async def test_a_full_state_removes_what_it_does_not_name(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        first, second = (circuit_to(route_to(app.port), port=port) for port in ports[:2])
        await apply(plane, first, second)
        await plane.apply(Changes(version=2, circuits=(second,), is_complete=True))
        assert set(plane.observe()) == {second.id}
        async with http.get(url_of(first)) as response:
            assert response.status == 404

    async def test_a_changed_route_serves_the_next_request(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        circuit = circuit_to(route_to(app.port), port=ports[0])
        await apply(plane, circuit)
        async with running_app("other") as other:
            await apply(plane, replace(circuit, route_info=[route_to(other.port)]), version=2)
            async with http.get(url_of(circuit)) as response:
                assert await response.text() == "other"

    @pytest.mark.parametrize(
        ("changed", "code"),
        [
            ({"protocol": ProxyProtocol.GRPC}, "E20002"),
            ({"protocol": ProxyProtocol.H2}, "E20002"),
            ({"port": None}, "E00001"),
            ({"port": 1}, "E00001"),
        ],
    )
    async def test_a_circuit_that_cannot_be_served_is_refused_by_its_code(
        self, plane: DataPlane, app: FakeApp, ports: list[int], changed: dict[str, Any], code: str
    ) -> None:
        circuit = replace(circuit_to(route_to(app.port), port=ports[0]), **changed)
        good = circuit_to(route_to(app.port), port=ports[1])
        applied = await plane.apply(Changes(version=1, circuits=(circuit, good)))
        assert set(applied.failed) == {circuit.id}
        assert applied.failed[circuit.id].startswith(code)
        assert set(plane.observe()) == {good.id}


class TestWeights:
    async def test_weights_are_exact(self, plane: DataPlane, ports: list[int], http: aiohttp.ClientSession) -> None:
        async with running_app("one") as one, running_app("three") as three:
            circuit = circuit_to(route_to(one.port, ratio=1), route_to(three.port, ratio=3), port=ports[0])
            await apply(plane, circuit)
            answers = Counter([await (await http.get(url_of(circuit))).text() for _ in range(40)])
        assert answers == {"one": 10, "three": 30}

    async def test_a_weight_of_zero_gets_nothing(
        self, plane: DataPlane, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        async with running_app("one") as one, running_app("none") as none:
            circuit = circuit_to(route_to(one.port), route_to(none.port, ratio=0), port=ports[0])
            await apply(plane, circuit)
            answers = {await (await http.get(url_of(circuit))).text() for _ in range(10)}
        assert answers == {"one"}

    async def test_equal_routes_share_by_outstanding_requests(
        self, plane: DataPlane, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        async with running_app("slow") as slow, running_app("quick") as quick:
            circuit = circuit_to(route_to(slow.port), route_to(quick.port), port=ports[0])
            await apply(plane, circuit)
            hanging = [asyncio.ensure_future(http.get(url_of(circuit, "/hang"))) for _ in range(2)]
            await until(lambda: len(slow.requests) + len(quick.requests) == 2)
            assert (len(slow.requests), len(quick.requests)) == (1, 1)
            slow.released.set()
            await asyncio.wait(hanging, return_when=asyncio.FIRST_COMPLETED)
            answers = [await (await http.get(url_of(circuit))).text() for _ in range(4)]
            assert answers == ["slow"] * 4
            quick.released.set()
            await asyncio.gather(*hanging)

    async def test_a_dead_replica_costs_no_request(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        async with running_app("dead") as dead:
            pass
        circuit = circuit_to(route_to(dead.port), route_to(app.port), port=ports[0])
        await apply(plane, circuit)
        statuses = [(await http.get(url_of(circuit))).status for _ in range(10)]
        assert statuses == [200] * 10


class TestDraining:
    async def test_a_removed_route_finishes_its_streams(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        circuit = circuit_to(route_to(app.port), port=ports[0])
        await apply(plane, circuit)
        async with running_app("other") as other:
            response = await http.get(url_of(circuit, "/events"))
            assert await response.content.readline() == b"data: first\n"
            await apply(plane, replace(circuit, route_info=[route_to(other.port)]), version=2)
            async with http.get(url_of(circuit)) as following:
                assert await following.text() == "other"
            app.released.set()
            assert b"data: last" in await response.read()

    async def test_a_drain_ends_at_its_deadline(
        self,
        plane: DataPlane,
        app: FakeApp,
        ports: list[int],
        http: aiohttp.ClientSession,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(core_changes, "DRAIN_S", dict.fromkeys(AppMode, 0.1))
        circuit = circuit_to(route_to(app.port), port=ports[0])
        await apply(plane, circuit)
        response = await http.get(url_of(circuit, "/events"))
        await apply(plane, replace(circuit, route_info=[]), version=2)
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(response.read(), 5)

    async def test_a_circuit_without_routes_says_when_to_come_again(
        self, plane: DataPlane, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        circuit = circuit_to(port=ports[0])
        await apply(plane, circuit)
        async with http.get(url_of(circuit)) as response:
            assert response.status == 503
            assert "Retry-After" in response.headers


class TestPermits:
    async def test_nobody_gets_in_without_a_permit(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        circuit = circuit_to(route_to(app.port), port=ports[0], public=False)
        await apply(plane, circuit)
        for method in ("GET", "POST", "OPTIONS", "HEAD", "DELETE"):
            async with http.request(method, url_of(circuit)) as response:
                assert response.status == 401
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await http.ws_connect(url_of(circuit, "/ws"))
        assert not app.requests

    async def test_a_set_up_code_lets_a_browser_in_once(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        circuit = circuit_to(route_to(app.port), port=ports[0], public=False)
        await apply(plane, circuit)
        path = f"/.backendai/setup?code={setup_code(circuit, redirect='/lab?a=b')}"
        async with http.get(url_of(circuit, path)) as response:
            assert response.status == 200
            assert response.url.path_qs == "/lab?a=b"
        async with aiohttp.ClientSession() as other, other.get(url_of(circuit, path)) as response:
            assert response.status == 401
            assert "E20005" in await response.text()
        assert [request.path for request in app.requests] == ["/lab"]

    async def test_a_token_opens_its_own_endpoint_only(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        first, second = (
            circuit_to(route_to(app.port), port=port, mode=AppMode.INFERENCE, public=False) for port in ports[:2]
        )
        await apply(plane, first, second)
        headers = {"Authorization": f"BackendAI {inference_token(first)}"}
        statuses = [(await http.get(url_of(circuit), headers=headers)).status for circuit in (first, second)]
        assert statuses == [200, 401]
        assert "Authorization" not in app.requests[0].headers


class TestUse:
    async def test_requests_and_their_time_are_counted(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        circuit = circuit_to(route_to(app.port), port=ports[0])
        await apply(plane, circuit)
        before = time.time()
        for _ in range(3):
            await (await http.get(url_of(circuit))).read()
        await plane.refresh()
        seen = plane.observe()[circuit.id]
        assert seen.requests == 3
        assert before <= seen.last_used <= time.time()
        assert (seen.open, seen.in_flight) == (0, {})

    async def test_the_first_of_two_sockets_that_closes_leaves_the_circuit_in_use(
        self, plane: DataPlane, app: FakeApp, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        circuit = circuit_to(route_to(app.port), port=ports[0])
        await apply(plane, circuit)
        first = await http.ws_connect(url_of(circuit, "/ws"))
        second = await http.ws_connect(url_of(circuit, "/ws"))
        await until_use(plane, circuit, lambda use: use.open == 2)
        await first.close()
        await until_use(plane, circuit, lambda use: use.open == 1)
        assert plane.observe()[circuit.id].last_used >= time.time() - 1
        await second.close()

    async def test_bytes_of_tcp_count_as_use(self, tcp_plane: DataPlane, ports: list[int]) -> None:
        async with tcp_app() as port:
            circuit = circuit_to(route_to(port), port=ports[0], protocol=ProxyProtocol.TCP)
            if not tcp_plane.capabilities.counts_bytes:
                pytest.skip("capability: the plane does not count bytes")
            await apply(tcp_plane, circuit)
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            await tcp_plane.refresh()
            seen = tcp_plane.observe()[circuit.id]
            assert (seen.open, seen.requests) == (1, 1)
            assert seen.last_used >= time.time() - 1
            writer.close()
            await until_use(tcp_plane, circuit, lambda use: (use.open, use.received, use.sent) == (0, 5, 9))


class TestRevocation:
    @pytest.fixture
    async def circuit(self, plane: DataPlane, app: FakeApp, ports: list[int]) -> Circuit:
        circuit = circuit_to(route_to(app.port), port=ports[0])
        await apply(plane, circuit)
        return circuit

    async def test_removal_cuts_websockets_streams_and_waiting_requests(
        self, plane: DataPlane, app: FakeApp, circuit: Circuit, http: aiohttp.ClientSession
    ) -> None:
        socket = await http.ws_connect(url_of(circuit, "/ws"))
        stream = await http.get(url_of(circuit, "/events"))
        await stream.content.readline()
        waiting = asyncio.ensure_future(http.post(url_of(circuit, "/hang")))
        await until(lambda: len(app.requests) == 3)
        await plane.apply(Changes(version=2, removed=(circuit.id,)))
        message = await asyncio.wait_for(socket.receive(), 5)
        assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.ERROR)
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(stream.read(), 5)
        with suppress(aiohttp.ClientError):  # a plane may say that no answer comes any more
            assert (await asyncio.wait_for(waiting, 5)).status == 502
        async with http.get(url_of(circuit)) as response:
            assert response.status == 404

    async def test_a_circuit_that_is_closed_to_the_public_cuts_its_visitors(
        self, plane: DataPlane, circuit: Circuit, http: aiohttp.ClientSession
    ) -> None:
        socket = await http.ws_connect(url_of(circuit, "/ws"))
        await apply(plane, replace(circuit, open_to_public=False), version=2)
        message = await asyncio.wait_for(socket.receive(), 5)
        assert message.type is not aiohttp.WSMsgType.TEXT

    async def test_what_is_cut_is_chosen_by_circuit_user_and_route(
        self, plane: DataPlane, app: FakeApp, circuit: Circuit, ports: list[int], http: aiohttp.ClientSession
    ) -> None:
        other = circuit_to(route_to(app.port), port=ports[1])
        await apply(plane, other, version=2)
        cut = await http.ws_connect(url_of(circuit, "/ws"))
        socket = await http.ws_connect(url_of(other, "/ws"))
        assert await plane.cut(ConnectionFilter(user=circuit.user_id)) == 1
        assert await plane.cut(ConnectionFilter(circuit=circuit.id)) == 0
        assert (await asyncio.wait_for(cut.receive(), 5)).type is not aiohttp.WSMsgType.TEXT
        await socket.send_str("alive")
        assert await socket.receive_str() == "app: alive"
        assert await plane.cut(ConnectionFilter()) == 1

    async def test_tcp_connections_are_cut(self, tcp_plane: DataPlane, ports: list[int]) -> None:
        async with tcp_app() as port:
            circuit = circuit_to(route_to(port), port=ports[1], protocol=ProxyProtocol.TCP)
            await apply(tcp_plane, circuit)
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[1])
            writer.write(b"x")
            await reader.readexactly(1)
            await tcp_plane.apply(Changes(version=2, removed=(circuit.id,)))
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 5)
            writer.close()
