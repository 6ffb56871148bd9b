"""Picks: exact shares of revisions, least load, sessions, prefixes until saturation, retries."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ai.backend.common.wire.appproxy import ProxyProtocol, RevisionShare, RouteInfo, RoutingKind
from ai.backend.core.proxy.routing import key_of
from ai.backend.core.serving.prefixes import BLOCK_BYTES, MAX_BLOCKS, PrefixIndex, hash_blocks
from ai.backend.core.serving.routing import SCAN_LIMIT, Pick, PickReason, Prompt, ReplicaPicker, RetryBudget

NOBODY = Prompt()


def route(number: int, revision: int = 1, weight: float = 1.0) -> RouteInfo:
    return RouteInfo(
        session_id=UUID(int=number),
        kernel_host="192.0.2.1",
        kernel_port=8000,
        protocol=ProxyProtocol.HTTP,
        revision=RevisionShare(id=UUID(int=revision), weight=weight),
    )


def picker(routes: list[RouteInfo], kind: RoutingKind = RoutingKind.LEAST_OUTSTANDING, seed: int = 1) -> ReplicaPicker:
    return ReplicaPicker(routes, kind=kind, dice=random.Random(seed))


def must_pick(picker: ReplicaPicker, prompt: Prompt = NOBODY) -> Pick:
    pick = picker.pick(prompt)
    assert pick is not None
    return pick


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=4), st.integers(0, 30))
@settings(deadline=None)
def test_revisions_get_exactly_their_weights_however_many_replicas_they_have(
    revisions: list[tuple[int, int]], start: int
) -> None:
    routes = [
        route(100 * number + member, number, float(weight))
        for number, (weight, members) in enumerate(revisions)
        for member in range(members)
    ]
    chooser, total = picker(routes), sum(weight for weight, _ in revisions)
    picks = [must_pick(chooser) for _ in range(start + total)]
    shares = Counter(pick.revision for pick in picks[start:])
    assert shares == {UUID(int=number): weight for number, (weight, _) in enumerate(revisions)}


def test_weight_zero_gets_nothing_until_it_is_alone() -> None:
    chooser = picker([route(1, 1, 0.0), route(2, 2, 1.0)])
    assert {must_pick(chooser).target.route.session_id for _ in range(20)} == {UUID(int=2)}
    pick = chooser.pick(NOBODY, {key_of(route(2))}, 1)
    assert pick is not None
    assert pick.target.route.session_id == UUID(int=1)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=SCAN_LIMIT))
def test_the_least_outstanding_is_picked(loads: list[int]) -> None:
    routes = [route(n) for n in range(len(loads))]
    chooser = picker(routes)
    for each, load in zip(routes, loads, strict=True):
        chooser.loads[key_of(each)].requests = load
    assert chooser.loads[must_pick(chooser).target.key].requests == min(loads)


def test_two_choices_balance_a_thousand_replicas() -> None:
    chooser = picker([route(n) for n in range(1000)])
    for _ in range(10_000):
        chooser.begin(must_pick(chooser))
    loads = [load.requests for load in chooser.loads.values()]
    assert max(loads) <= 14, "ten each on average; by chance alone the largest has more than twenty"


@given(st.integers(2, 60), st.text(min_size=1, max_size=20))
@settings(deadline=None)
def test_a_session_stays_and_moves_only_when_its_replica_goes(count: int, key: str) -> None:
    routes, prompt = [route(n) for n in range(count)], Prompt(session_key=key)
    first = must_pick(picker(routes), prompt).target
    chooser = picker(list(reversed(routes)), seed=2)
    assert must_pick(chooser, prompt).target == first, "any worker places it alike"
    other = next(each for each in routes if key_of(each) != first.key)
    chooser.update([each for each in routes if each != other])
    assert must_pick(chooser, prompt).target == first or count == 2
    chooser.update([each for each in routes if key_of(each) != first.key])
    assert must_pick(chooser, prompt).target != first


def test_sessions_keep_their_revision_while_its_weight_grows() -> None:
    keys = [f"session {n}" for n in range(500)]

    def of_new(weight: float) -> set[str]:
        chooser = picker([route(1, 1, weight), route(2, 2, 100 - weight)])
        return {key for key in keys if must_pick(chooser, Prompt(session_key=key)).revision == UUID(int=1)}

    few, more = of_new(10), of_new(50)
    assert few <= more
    assert 25 <= len(few) <= 80
    assert 200 <= len(more) <= 300


def prompt_of(text: bytes) -> Prompt:
    return Prompt(blocks=hash_blocks(text), tokens=len(text) // 4)


def test_a_prefix_is_kept_until_its_replica_is_saturated() -> None:
    chooser = picker([route(n) for n in range(8)], RoutingKind.PREFIX, seed=5)
    text = bytes(range(256)) * 100
    first = must_pick(chooser, prompt_of(text))
    again = must_pick(chooser, prompt_of(text + b"more" * 100))
    assert (again.target, again.reason) == (first.target, PickReason.PREFIX)
    assert again.uncached_tokens < 300
    chooser.loads[first.target.key].uncached_tokens = 50_000
    moved = must_pick(chooser, prompt_of(text))
    assert moved.target != first.target
    assert moved.reason is PickReason.LEAST_LOAD


def test_a_short_common_part_does_not_attract() -> None:
    chooser = picker([route(n) for n in range(8)], RoutingKind.PREFIX, seed=5)
    system = b"system prompt " * 200
    for number in range(200):
        pick = must_pick(chooser, prompt_of(system + random.Random(number).randbytes(40_000)))
        chooser.begin(pick)
    requests = [load.requests for load in chooser.loads.values()]
    assert min(requests) >= 15
    assert max(requests) <= 35


@given(st.binary(max_size=4 * BLOCK_BYTES), st.binary(min_size=1, max_size=8))
def test_blocks_are_named_by_all_before_them(text: bytes, salt: bytes) -> None:
    names = hash_blocks(text)
    assert len(names) == len(text) // BLOCK_BYTES
    assert hash_blocks(text + b"x" * BLOCK_BYTES)[: len(names)] == names
    assert not set(hash_blocks(text, salt)) & set(names)
    changed = b"y" + text[1:] if text[:1] != b"y" else b"z" + text[1:]
    assert not set(hash_blocks(changed)) & set(names)
    assert len(hash_blocks(b"a" * (MAX_BLOCKS + 9) * BLOCK_BYTES)) == MAX_BLOCKS


def test_the_index_forgets_as_its_replica_does_and_is_bounded() -> None:
    index, key = PrefixIndex(capacity=10, max_blocks=50), key_of(route(1))
    first = hash_blocks(b"a" * BLOCK_BYTES * 5)
    index.add(key, first)
    assert index.holders(first) == ([key], 5)
    for number in range(20):
        index.add(key, hash_blocks(bytes([number]) * BLOCK_BYTES * 5))
    assert index.holders(first) == ([], 0)
    assert len(index) <= 50
    index.forget(key)
    assert index.holders(hash_blocks(bytes([19]) * BLOCK_BYTES * 5)) == ([], 0)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60), st.integers(0, 99))
@settings(deadline=None)
def test_loads_return_to_nothing_and_routes_may_change_meanwhile(steps: list[tuple[int, bool]], seed: int) -> None:
    chooser, routes = picker([], RoutingKind.PREFIX, seed), [route(n, n % 2) for n in range(5)]
    open_picks: list[Pick] = []
    for number, ends in steps:
        chooser.update(routes[: number + 1])
        chooser.begin(pick := must_pick(chooser, prompt_of(bytes([number]) * 5000)))
        open_picks.append(pick)
        if ends:
            ended = open_picks.pop(0)
            chooser.begin_response(ended)
            chooser.end(ended)
    for pick in open_picks:
        chooser.begin_response(pick)
        chooser.end(pick)
    assert all((load.requests, load.uncached_tokens) == (0, 0) for load in chooser.loads.values())


@pytest.mark.parametrize("kind", list(RoutingKind))
def test_what_is_excluded_is_never_picked(kind: RoutingKind) -> None:
    routes = [route(n, n % 3, n % 3) for n in range(12)]
    chooser = picker(routes, kind)
    excluded = {key_of(each) for each in routes[:11]}
    for prompt in (NOBODY, Prompt(session_key="a"), prompt_of(b"b" * 9000)):
        pick = chooser.pick(prompt, excluded, len(excluded))
        assert pick is not None
        assert pick.target.route == routes[11]
    assert chooser.pick(NOBODY, {key_of(each) for each in routes}, 12) is None


@given(st.lists(st.booleans(), max_size=300))
def test_retries_stay_within_their_part(events: list[bool]) -> None:
    budget, requests, retries = RetryBudget(), 0, 0
    for is_request in events:
        if is_request:
            budget.count_request()
            requests += 1
        else:
            retries += budget.take()
        assert retries <= 10 + 0.2 * requests
