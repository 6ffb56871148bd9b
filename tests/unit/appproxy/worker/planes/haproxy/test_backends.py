from __future__ import annotations

from uuid import UUID

from ai.backend.appproxy.worker.planes.haproxy.backends import WHOLE, Address, Backends
from ai.backend.appproxy.worker.planes.haproxy.config import Pool, weights_of
from ai.backend.core.proxy.routing import RouteKey
from ai.backend.infra.haproxy.runtime import Use

FIRST, SECOND = UUID(int=1), UUID(int=2)
ONE, TWO, THREE = (RouteKey(name) for name in ("one", "two", "three"))


def backends(count: int = 2, servers: int = 2) -> Backends:
    return Backends([Pool(prefix="a", backends=count, servers=servers, balance="leastconn")])


def to(port: int, weight: int = 1) -> Address:
    return Address("10.0.0.1", port, weight)


def used(number: int, requests: int = 0) -> Use:
    return Use(open=number, requests=requests, received=0, sent=0, idle_s=0)


def test_a_new_route_is_ready_before_the_old_one_drains() -> None:
    known = backends()
    known.assign(FIRST, {ONE: to(1)}, now=0, drain_s=30)
    steps = known.assign(FIRST, {TWO: to(2)}, now=0, drain_s=30)
    assert steps is not None
    before, after = steps
    assert before[-1] == "set server a1/s2 state ready"
    assert after == ["set server a1/s1 state drain"]


def test_a_server_is_used_again_only_when_nothing_is_open_to_it() -> None:
    known = backends(count=1)
    known.assign(FIRST, {ONE: to(1)}, now=0, drain_s=30)
    known.assign(FIRST, {TWO: to(2)}, now=0, drain_s=30)
    assert known.assign(FIRST, {THREE: to(3)}, now=0, drain_s=30) is None
    assert known.sweep({("a1", "s1"): used(1)}, now=1) == []
    closing = ["set server a1/s1 state maint", "shutdown sessions server a1/s1"]
    assert known.sweep({("a1", "s1"): used(1)}, now=31) == closing
    assert known.sweep({("a1", "s1"): used(1)}, now=32) == closing  # until it has happened
    assert known.sweep({}, now=33) == []
    assert known.assign(FIRST, {THREE: to(3)}, now=33, drain_s=30) is not None


def test_the_counts_of_an_earlier_circuit_are_not_those_of_the_next() -> None:
    known = backends(count=1)
    known.assign(FIRST, {ONE: to(1)}, now=0, drain_s=30)
    uses = {("a1", WHOLE): used(0, requests=5)}
    assert known.use_of(FIRST, uses).requests == 5
    assert known.close_circuit(FIRST) == ["set server a1/s1 state maint", "shutdown sessions server a1/s1"]
    assert known.assign(SECOND, {ONE: to(1)}, now=0, drain_s=30) is None
    known.sweep(uses, now=1)
    known.assign(SECOND, {ONE: to(1)}, now=2, drain_s=30)
    assert known.use_of(SECOND, uses).requests == 0


def test_weights_are_exact_where_they_can_be() -> None:
    assert weights_of({"a": 1.0, "b": 3.0, "c": 0.0}) == {"a": 1, "b": 3, "c": 0}
    assert weights_of({"a": 0.1, "b": 0.9}) == {"a": 28, "b": 256}
    assert weights_of({"a": 1.0, "b": 1e6}) == {"a": 1, "b": 256}
