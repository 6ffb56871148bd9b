"""An endpoint at a worker: who waits, in which order and bounds, and whose limits count."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.appproxy.worker.access.tokens import Grant
from ai.backend.appproxy.worker.inference.endpoint import RELEASE_PER_REPLICA, Counters, ServedEndpoint
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import AppMode, InferenceLimits, RequestWindow, RouteInfo, ServingOptions
from ai.backend.core.proxy.breaker import Breaker
from ai.backend.core.serving.limits import Estimate, Refusal, Reservation
from ai.backend.core.serving.routing import Pick, Prompt
from tests.support.proxy_apps import circuit_to, route_to


class FakeRequest:
    """A waiting request that goes to a replica once it is released."""

    def __init__(self, endpoint: ServedEndpoint, log: list[int], number: int, size: int = 1) -> None:
        self.endpoint, self.log, self.number, self.size = endpoint, log, number, size
        self.pick: Pick | None = None

    def release(self) -> None:
        self.log.append(self.number)
        self.pick = self.endpoint.pick(Prompt(), frozenset(), 0.0)
        assert self.pick is not None


def endpoint_with(*routes: RouteInfo, counters: Counters | None = None, **options: Any) -> ServedEndpoint:
    circuit = circuit_to(*routes, port=8000, mode=AppMode.INFERENCE)
    serving = msgspec.convert({"name": "llm", **options}, ServingOptions)
    counters = counters or Counters(dice=random.Random(1), clock=lambda: 0.0)
    return ServedEndpoint(replace(circuit, serving=serving), counters, Breaker())


def add_routes(endpoint: ServedEndpoint, *routes: RouteInfo) -> None:
    endpoint.update(replace(endpoint.circuit, route_info=list(routes)))


@given(st.integers(1, 80), st.integers(1, 3))
def test_those_who_wait_go_in_their_order_as_many_as_the_replicas_take(count: int, replicas: int) -> None:
    endpoint, log = endpoint_with(hold_requests=1000), list[int]()
    requests = [FakeRequest(endpoint, log, number) for number in range(count)]
    assert all(map(endpoint.hold, requests))
    add_routes(endpoint, *(route_to(9000 + n, session=UUID(int=n)) for n in range(replicas)))
    assert len(log) == min(count, RELEASE_PER_REPLICA * replicas)
    for request in requests:
        assert request.pick is not None, "the end of one lets the next one go"
        endpoint.end_request(request.pick)
    assert log == list(range(count))
    assert endpoint.queued == 0


def test_the_queue_is_bounded_by_number_and_bytes_and_tells_of_its_first() -> None:
    waits: list[int] = []
    counters = Counters(on_waiting=lambda: waits.append(1))
    endpoint = endpoint_with(counters=counters, hold_requests=2, hold_bytes=10)
    first, second, third, large = (FakeRequest(endpoint, [], n, size) for n, size in enumerate((4, 4, 1, 7)))
    assert endpoint.hold(first)
    assert not endpoint.hold(large)
    assert endpoint.hold(second)
    assert not endpoint.hold(third)
    endpoint.withdraw(first)
    endpoint.withdraw(first)
    assert (endpoint.hold(third), endpoint.queued, len(waits)) == (True, 2, 1)


def grant(name: str, limits: InferenceLimits | None = None) -> Grant:
    return Grant(token=name, user=None, audience=frozenset(), limits=limits, expires_at=0.0)


def test_limits_of_a_token_count_wherever_it_is_used_and_those_of_an_endpoint_for_each_token() -> None:
    counters = Counters(clock=lambda: 0.0)
    one = {"requests": [{"amount": 1}]}
    here, there = (endpoint_with(counters=counters, limits=one) for _ in range(2))
    own = grant("own", InferenceLimits(requests=[RequestWindow(amount=2)]))
    verdicts = [endpoint.admit(own, Estimate()) for endpoint in (here, there, here)]
    assert [type(verdict) for verdict in verdicts] == [Reservation, Reservation, Refusal]
    for endpoint in (here, there):
        for each in (grant("a"), grant("b"), None):
            assert [type(endpoint.admit(each, Estimate())) for _ in range(2)] == [Reservation, Refusal]
    assert endpoint_with().admit(grant("a"), Estimate()) is None


def test_an_endpoint_of_an_older_manager_lets_nobody_wait() -> None:
    circuit = circuit_to(port=8000, mode=AppMode.INFERENCE)
    endpoint = ServedEndpoint(circuit, Counters(), Breaker())
    assert not endpoint.hold(FakeRequest(endpoint, [], 1))
    assert list(endpoint.models) == [str(circuit.endpoint_id)]
