"""The simulated engine of the routing benchmark, and that the shipped choice gains on it what was published."""

from __future__ import annotations

import random

from ai.backend.common.wire.appproxy import RouteInfo, RoutingKind
from ai.backend.core.serving.prefixes import hash_blocks
from ai.backend.core.serving.routing import ReplicaPicker
from bench.engine import Clock, Engine, Job, Mode
from bench.serving import arrivals, at_random, replay, with_kind

PROMPT = hash_blocks(b"p" * 512 * 8)


def times_of(engine: Engine, jobs: int, *, output: int = 40) -> list[tuple[float, float]]:
    """Returns when each of some equal requests got its first and its last token."""
    times: list[list[float]] = [[] for _ in range(jobs)]
    for mine in times:

        def note(mine: list[float] = mine) -> None:
            mine.append(engine.clock.now)

        engine.submit(Job(PROMPT, 1024, output, note, note))
    engine.clock.run()
    return [(mine[0], mine[1]) for mine in times if mine]


def test_prompts_are_computed_one_by_one_and_cached_ones_cost_nothing() -> None:
    engine = Engine(Clock(), prefill_rate=1024.0, decode_rate=40.0)
    first, second = times_of(engine, 2)
    assert first == (1.0, 2.0)
    assert second == (1.0 + 1 / 1024, 2.0 + 1 / 1024)
    assert (engine.prefilled, engine.cached) == (1025, 1023)


def test_slots_and_the_cache_are_bounded() -> None:
    engine = Engine(Clock(), prefill_rate=1e9, decode_rate=40.0, slots=1, cache_blocks=4)
    (_, first_end), (second_begin, _) = times_of(engine, 2)
    assert second_begin >= first_end
    assert engine.cached == 0, "the beginning was displaced by the end"


def test_faults() -> None:
    assert times_of(Engine(Clock(), mode=Mode.HANG), 3) == []
    [(begin, end)] = times_of(Engine(Clock(), mode=Mode.TRICKLE), 1)
    assert end - begin == 100.0


def test_prefixes_gain_what_was_published_and_a_replay_can_be_repeated() -> None:
    requests = arrivals(number=800)

    def by_prefix(routes: list[RouteInfo], dice: random.Random) -> ReplicaPicker:
        return with_kind(RoutingKind.PREFIX)(routes, dice)

    prefix, chance = replay(by_prefix, requests), replay(at_random, requests)
    assert prefix.tokens_per_s > 1.3 * chance.tokens_per_s
    assert sum(prefix.ttft_s) < 0.5 * sum(chance.ttft_s)
    assert prefix == replay(by_prefix, requests)
