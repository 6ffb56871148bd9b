"""Endpoints of model services at the embedded plane: weights, waiting, retries, limits, usage, one base URL."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import msgspec
import pytest

from ai.backend.appproxy.worker.access.gate import Gate
from ai.backend.appproxy.worker.access.tokens import Tokens
from ai.backend.appproxy.worker.planes.embedded.limits import Limits
from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane, Frontend
from ai.backend.appproxy.worker.upstreams import RouteDialer
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import AppMode, Circuit, RevisionShare, RouteInfo, ServingOptions
from ai.backend.core.proxy.changes import Changes
from tests.support.engine import FakeEngine, running_engine
from tests.support.proxy_apps import (
    PERMIT_SECRET,
    SECRET,
    circuit_to,
    free_ports,
    inference_token,
    route_to,
    until,
)

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
OLD, NEW = UUID(int=1), UUID(int=2)


class Proxy:
    """A plane with an endpoint, and a client of it."""

    def __init__(self, ports: list[int], http: aiohttp.ClientSession) -> None:
        self.ports = ports
        self.http = http
        self.version = 0
        self.waits = 0
        self.circuits: dict[UUID, Circuit] = {}
        self.token = ""
        self.plane: EmbeddedPlane

    async def start(self, **limits: Any) -> None:
        tokens = Tokens(shared_secret=SECRET, permit_secret=PERMIT_SECRET, started_at=0.0)
        frontend = Frontend(
            host="127.0.0.1", ports={port: port for port in self.ports[:2]}, models=("127.0.0.1", self.ports[2])
        )
        gate = Gate(tokens, is_secure=False)
        self.plane = EmbeddedPlane(frontend, gate, RouteDialer(), limits=Limits(**limits))
        await self.plane.start()
        self.plane.set_waiting_callback(self._count_wait)

    def is_at_rest(self) -> bool:
        """Returns True if nothing of any request is left."""
        endpoints = [state.endpoint for state in self.plane._shared.table if state.endpoint is not None]
        loads = [load for each in endpoints for load in each.picker.loads.values()]
        busy = [each.queued for each in endpoints] + [load.requests + load.uncached_tokens for load in loads]
        in_flight = [state.in_flight for state in self.plane._shared.table]
        return not any(busy) and not any(in_flight) and self.plane._shared.model_bytes == 0

    def _count_wait(self) -> None:
        self.waits += 1

    async def apply(self, circuit: Circuit) -> Circuit:
        self.version += 1
        applied = await self.plane.apply(Changes(version=self.version, circuits=(circuit,)))
        assert not applied.failed
        self.circuits[circuit.id] = circuit
        return circuit

    async def serve(self, *routes: RouteInfo, slot: int = 0, public: bool = False, **options: Any) -> Circuit:
        circuit = circuit_to(*routes, port=self.ports[slot], mode=AppMode.INFERENCE, public=public)
        serving = msgspec.convert({"name": "llm", "models": ["m"], **options}, ServingOptions)
        circuit = await self.apply(replace(circuit, serving=serving))
        self.token = inference_token(circuit)
        return circuit

    async def route(self, circuit: Circuit, *routes: RouteInfo) -> None:
        await self.apply(replace(circuit, route_info=list(routes)))

    async def ask(
        self,
        body: Any = None,
        *,
        slot: int = 0,
        path: str = "/v1/chat/completions",
        token: str | None = None,
        method: str = "POST",
        **headers: str,
    ) -> tuple[int, bytes, dict[str, str]]:
        url = f"http://127.0.0.1:{self.ports[slot]}{path}"
        fields = {"Authorization": f"Bearer {self.token if token is None else token}", **headers}
        payload = None if method == "GET" else CHAT if body is None else body
        async with self.http.request(method, url, json=payload, headers=fields) as response:
            return response.status, await response.read(), dict(response.headers)

    async def name(self, **other: Any) -> str:
        status, body, _ = await self.ask(**other)
        assert status == 200, body
        return str(json.loads(body)["id"])


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with aiohttp.ClientSession() as http:
        proxy = Proxy(free_ports(3), http)
        await proxy.start(first_byte_s=1.0, stream_gap_s=1.0)
        yield proxy
        await until(proxy.is_at_rest)
        await proxy.plane.stop()


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running_engine(name)) for name in ("a", "b", "c")]


def to(engine: FakeEngine, revision: UUID = OLD, weight: float = 1.0) -> RouteInfo:
    route = route_to(engine.port, session=UUID(int=1000 + engine.port))
    return replace(route, revision=RevisionShare(id=revision, weight=weight))


async def test_revisions_get_their_weights_whatever_the_number_of_their_replicas(
    proxy: Proxy, engines: list[FakeEngine]
) -> None:
    a, b, c = engines
    await proxy.serve(to(a, OLD, 9.0), to(b, OLD, 9.0), to(c, NEW, 1.0))
    names = Counter([await proxy.name() for _ in range(40)])
    assert names == {"a": 18, "b": 18, "c": 4}


async def test_the_engine_gets_the_request_without_the_token_and_the_client_its_stream(
    proxy: Proxy, engines: list[FakeEngine]
) -> None:
    circuit = await proxy.serve(to(engines[0]))
    status, body, _ = await proxy.ask({**CHAT, "stream": True})
    assert (status, body.count(b"data: "), b'"usage"' in body) == (200, 4, False)
    assert engines[0].bodies[-1]["stream_options"] == {"include_usage": True}
    assert "Authorization" not in engines[0].headers[-1]
    _, asked, _ = await proxy.ask({**CHAT, "stream": True, "stream_options": {"include_usage": True}})
    assert asked.count(b"data: ") == 5
    [row] = proxy.plane.take_usage()
    assert (row.endpoint, row.revision, row.requests) == (circuit.endpoint_id, OLD, 2)
    assert (row.prompt_tokens, row.output_tokens, row.estimated) == (22, 6, 0)
    assert row.token
    assert row.user


async def test_requests_wait_for_a_replica_and_wake_it_once(proxy: Proxy, engines: list[FakeEngine]) -> None:
    circuit = await proxy.serve(hold_requests=30)
    for path in ("/health", "/v1/models"):
        await proxy.ask(path=path, method="GET")
    assert proxy.waits == 0, "questions about the endpoint wake nothing"
    calls = [asyncio.create_task(proxy.ask()) for _ in range(30)]

    def observe() -> int:
        return proxy.plane.observe()[circuit.id].queued

    await until(lambda: observe() == 30)
    status, body, _ = await proxy.ask()
    assert (status, json.loads(body)["error"]["code"]) == (429, "queue_full")
    calls[7].cancel()
    await until(lambda: observe() == 29)
    assert proxy.waits == 1
    engines[0].delay_s = 0.05
    began = time.monotonic()
    await proxy.route(circuit, to(engines[0]))
    await until(lambda: engines[0].open > 0)
    assert time.monotonic() - began < 0.5
    peak = engines[0].open
    answers = [call for call in calls if call is not calls[7]]
    assert [(await call)[0] for call in answers] == [200] * 29
    assert peak <= 16, "a replica that has just come does not get all at once"
    assert observe() == 0


async def test_waiting_has_an_end(proxy: Proxy) -> None:
    await proxy.serve(hold_s=0.2)
    status, body, headers = await proxy.ask()
    assert (status, headers["Retry-After"]) == (503, "2")
    assert json.loads(body)["error"]["type"] == "server_error"


async def test_models_of_an_endpoint_without_replicas_are_listed(proxy: Proxy) -> None:
    await proxy.serve(models=["m", "m-lora"])
    status, body, _ = await proxy.ask(path="/v1/models", method="GET")
    assert status == 200
    assert [each["id"] for each in json.loads(body)["data"]] == ["m", "m-lora"]
    assert (await proxy.ask(path="/health", method="GET"))[0] == 503


@pytest.mark.parametrize("mode", ["die", "garbage", "busy"])
async def test_a_request_goes_to_another_replica_until_its_answer_begins(
    proxy: Proxy, engines: list[FakeEngine], mode: str
) -> None:
    a, b, _ = engines
    a.mode = mode
    await proxy.serve(to(a), to(b))
    assert [await proxy.name() for _ in range(10)] == ["b"] * 10
    assert a.paths, "it was tried"
    errors = {row.session: row.errors for row in proxy.plane.take_usage()}
    assert errors[to(a).session_id] >= 1
    assert errors[to(b).session_id] == 0


async def test_retries_have_a_budget(proxy: Proxy, engines: list[FakeEngine]) -> None:
    for engine in engines:
        engine.mode = "die"
    await proxy.serve(*map(to, engines))
    results = [await proxy.ask() for _ in range(40)]
    assert {status for status, _, _ in results} == {502}
    assert proxy.plane.counts.retries <= 10 + 0.2 * 40
    rows = proxy.plane.take_usage()
    attempts = sum(len(engine.paths) for engine in engines)
    assert sum(row.requests for row in rows) == sum(row.errors for row in rows) == attempts, "each attempt counts once"
    assert json.loads(results[0][1])["error"]["code"] == "replica_failed"


async def test_a_replica_that_nobody_can_connect_to_is_left_out(proxy: Proxy, engines: list[FakeEngine]) -> None:
    gone = replace(to(engines[0]), kernel_port=free_ports(1)[0])
    await proxy.serve(gone, to(engines[1]))
    assert [await proxy.name() for _ in range(12)] == ["b"] * 12
    errors = {row.session: row.errors for row in proxy.plane.take_usage()}
    assert errors[gone.session_id] == 3, "after the third failure it is asked no more for a while"


async def test_an_error_of_the_only_replica_is_its_answer(proxy: Proxy, engines: list[FakeEngine]) -> None:
    engines[0].mode = "busy"
    await proxy.serve(to(engines[0]))
    assert (await proxy.ask())[:2] == (503, b'{"error": "busy"}')


async def test_a_replica_that_hangs_is_given_up_and_that_ends_it(proxy: Proxy, engines: list[FakeEngine]) -> None:
    engines[0].mode = "hang"
    await proxy.serve(to(engines[0]))
    status, body, _ = await proxy.ask()
    assert (status, json.loads(body)["error"]["code"]) == (504, "timeout")
    await asyncio.wait_for(engines[0].aborted.wait(), 2)


@pytest.mark.parametrize("mode", ["cut", "trickle"])
async def test_a_stream_that_breaks_or_stops_looks_broken(proxy: Proxy, engines: list[FakeEngine], mode: str) -> None:
    engines[0].mode = mode
    await proxy.serve(to(engines[0]), to(engines[0]))
    with pytest.raises(aiohttp.ClientError):
        await proxy.ask({**CHAT, "stream": True})
    assert len(engines[0].paths) == 1, "an answer that has begun is not asked for again"
    await until(lambda: sum(row.errors for row in proxy.plane.take_usage()) == 1)


async def test_a_client_that_goes_away_stops_the_engine(proxy: Proxy, engines: list[FakeEngine]) -> None:
    engines[0].mode = "trickle"
    circuit = await proxy.serve(to(engines[0]), limits={"concurrent": 1})
    url = f"http://127.0.0.1:{proxy.ports[0]}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {proxy.token}"}
    async with proxy.http.post(url, json={**CHAT, "stream": True}, headers=headers) as response:
        await response.content.readany()
        assert (await proxy.ask())[0] == 429
    began = time.monotonic()
    await asyncio.wait_for(engines[0].aborted.wait(), 2)
    assert time.monotonic() - began < 0.5
    await until(lambda: not proxy.plane.observe()[circuit.id].in_flight)
    engines[0].mode = "ok"
    assert await proxy.name() == "a", "its place among the open requests is free again"


async def test_a_replica_that_lies_about_tokens_is_estimated(proxy: Proxy, engines: list[FakeEngine]) -> None:
    engines[0].mode = "lie"
    await proxy.serve(to(engines[0]), limits={"tokens": [{"amount": 1000}]})
    await proxy.name()
    [row] = proxy.plane.take_usage()
    assert row.estimated == 1
    assert 0 < row.output_tokens < 1000
    assert await proxy.name() == "a"


async def test_limits_of_a_token(proxy: Proxy, engines: list[FakeEngine]) -> None:
    circuit = await proxy.serve(to(engines[0]), limits={"requests": [{"amount": 1000}]})
    own = inference_token(circuit, limits={"requests": [{"amount": 2, "seconds": 600}]})
    answers = [await proxy.ask(token=own) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 429]
    remaining = [headers["x-ratelimit-remaining-requests"] for _, _, headers in answers]
    assert remaining == ["1", "0", "0"]
    assert json.loads(answers[2][1])["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(answers[2][2]["Retry-After"]) <= 610
    assert (await proxy.ask())[0] == 200, "another token has limits of its own"
    tokens = inference_token(circuit, limits={"tokens": [{"amount": 20, "seconds": 600, "kind": "output"}]})
    statuses = [(await proxy.ask({**CHAT, "max_tokens": 10}, token=tokens))[0] for _ in range(7)]
    assert statuses == [200] * 4 + [429] * 3, "three tokens each, while ten are reserved"


async def test_forged_expired_and_foreign_tokens(proxy: Proxy, engines: list[FakeEngine]) -> None:
    circuit = await proxy.serve(to(engines[0]))
    foreign = circuit_to(port=proxy.ports[1], mode=AppMode.INFERENCE)
    good = inference_token(circuit)
    head, claims, signature = good.split(".")
    for token in (
        inference_token(foreign),
        inference_token(circuit, expires_in_s=-60),
        inference_token(circuit, typ="setup"),
        inference_token(circuit, aud=[str(foreign.endpoint_id)]),
        inference_token(circuit, aud=7),
        inference_token(circuit, limits={"everything": True}),
        f"{head}.{claims}.{signature[:-4]}AAAA",
        f"eyJhbGciOiJub25lIn0.{claims}.",
        "",
        "x" * 5000,
    ):
        status, body, headers = await proxy.ask(token=token)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), token
        problem = json.loads(body)
        assert problem["error"]["code"] == "invalid_api_key"
        assert problem["title"].startswith("E2000")
        assert str(circuit.endpoint_id) not in body.decode()
        assert (await proxy.ask(token=token, slot=2))[0] in (401, 404)
    assert not engines[0].paths
    assert (await proxy.ask(token=inference_token(circuit, aud=[str(foreign.endpoint_id), str(circuit.endpoint_id)])))[
        0
    ] == 200
    for header in ("Bearer", "Basic dTpw", f"Bearer {good} {good}"):
        assert (await proxy.ask(token="", Authorization=header))[0] == 401


async def test_one_base_url_finds_the_endpoint_by_its_model(proxy: Proxy, engines: list[FakeEngine]) -> None:
    a, b, _ = engines
    mine = await proxy.serve(to(a), slot=0, models=["small"])
    token = proxy.token
    others = await proxy.serve(to(b), slot=1, models=["large"])
    both = inference_token(mine, aud=[str(mine.endpoint_id), str(others.endpoint_id)])

    async def model_names(token: str) -> list[str]:
        status, body, _ = await proxy.ask(path="/v1/models", method="GET", slot=2, token=token)
        assert status == 200
        return sorted(each["id"] for each in json.loads(body)["data"])

    assert (await model_names(token), await model_names(both)) == (["small"], ["large", "small"])
    assert await proxy.name(body={**CHAT, "model": "small"}, slot=2, token=token) == "a"
    assert await proxy.name(body={**CHAT, "model": "large"}, slot=2, token=both) == "b"
    await proxy.name(body={"model": "large", "input": "text"}, slot=2, token=both, path="/v1/embeddings")
    assert b.paths[-1] == "/v1/embeddings"
    for model in ("large", "nothing", "", 7, None):
        status, body, _ = await proxy.ask({**CHAT, "model": model}, slot=2, token=token)
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
    for path, method, expected in (
        ("/v1/models/small", "GET", 200),
        ("/v1/models/large", "GET", 404),
        ("/", "GET", 404),
        ("/v1/files", "DELETE", 404),
    ):
        assert (await proxy.ask(path=path, method=method, slot=2, token=token))[0] == expected
    assert (await proxy.ask([1], slot=2, token=token))[0] == 400
    rows = {row.endpoint: row.requests for row in proxy.plane.take_usage()}
    assert rows == {mine.endpoint_id: 1, others.endpoint_id: 2}


async def test_large_requests_are_bounded(engines: list[FakeEngine]) -> None:
    async with aiohttp.ClientSession() as http:
        proxy = Proxy(free_ports(3), http)
        await proxy.start(model_body_bytes=100_000, model_bodies_bytes=150_000)
        await proxy.serve(to(engines[0]))
        text = {"role": "user", "content": "x" * 90_000}
        assert (await proxy.ask({**CHAT, "messages": [text]}))[0] == 200
        for slot in (0, 2):
            status, body, _ = await proxy.ask({**CHAT, "messages": [text, text]}, slot=slot)
            assert (status, json.loads(body)["error"]["code"]) == (413, "request_too_large")
        engines[0].mode = "hang"
        first = asyncio.create_task(proxy.ask({**CHAT, "messages": [text]}))
        await until(lambda: engines[0].open == 1)
        assert (await proxy.ask({**CHAT, "messages": [text]}))[0] == 503
        engines[0].released.set()
        await first
        assert proxy.plane._shared.model_bytes == 0
        await proxy.plane.stop()


async def test_sessions_and_prefixes_stay_where_they_were(proxy: Proxy, engines: list[FakeEngine]) -> None:
    await proxy.serve(*map(to, engines), routing="prefix")
    for key in ("one", "two"):
        headers = {"X-Session-Id": key}
        assert len({await proxy.name(**headers) for _ in range(6)}) == 1
    text = {"role": "user", "content": "long " * 4000}
    names = [await proxy.name(body={**CHAT, "messages": [text, {"role": "user", "content": str(n)}]}) for n in range(8)]
    assert Counter(names).most_common(1)[0][1] >= 7, "but for what explores"


async def test_nothing_fails_while_routes_and_weights_change_under_load(
    proxy: Proxy, engines: list[FakeEngine]
) -> None:
    circuit = await proxy.serve(to(engines[0]), hold_requests=100)
    failures: list[Any] = []
    answered = 0
    is_over = False

    async def call() -> None:
        nonlocal answered
        while not is_over:
            stream = answered % 3 == 0
            status, body, _ = await proxy.ask({**CHAT, "stream": stream})
            if status != 200 or (stream and not body.endswith(b"data: [DONE]\n\n")):
                failures.append((status, body[:200]))
            answered += 1

    callers = [asyncio.create_task(call()) for _ in range(12)]
    for number in range(60):
        chosen = [engines[n] for n in range(3) if (number >> n) & 1]
        shares = [(OLD, 1.0 + number % 5), (NEW, 1.0)]
        await proxy.route(circuit, *(to(engine, *shares[n % 2]) for n, engine in enumerate(chosen)))
        await asyncio.sleep(0.02)
    await proxy.route(circuit, to(engines[1]))
    is_over = True
    await asyncio.wait_for(asyncio.gather(*callers), 10)
    assert failures == []
    assert answered > 200
    assert all(engine.paths for engine in engines)


async def test_an_endpoint_that_is_removed_ends_what_waits(proxy: Proxy) -> None:
    circuit = await proxy.serve()
    call = asyncio.create_task(proxy.ask())
    await until(lambda: proxy.plane.observe()[circuit.id].queued == 1)
    await proxy.plane.apply(Changes(version=99, removed=(circuit.id,)))
    with pytest.raises(aiohttp.ClientError):
        await call
    assert (await proxy.ask(token=str(uuid4())))[0] == 404
