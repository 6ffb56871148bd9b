"""Delays between attempts grow up to a maximum, differ by the jitter, and begin again after a success."""

from __future__ import annotations

import random

import pytest

from ai.backend.infra.retry import Backoff


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(0.2, 2.0)
    assert [backoff.next_s() for _ in range(6)] == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
    assert backoff.failures == 6


def test_a_success_begins_again() -> None:
    backoff = Backoff(1.0, 30.0)
    assert [backoff.next_s() for _ in range(3)] == [1.0, 2.0, 4.0]
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next_s() == 1.0


def test_the_delay_of_a_stored_number_of_failures_counts_none() -> None:
    backoff = Backoff(0.5, 3600.0)
    assert [backoff.delay_s(failures) for failures in (0, 1, 4, 12, 13)] == [0.5, 1.0, 8.0, 2048.0, 3600.0]
    assert backoff.delay_s(-1) == 0.5
    assert backoff.failures == 0


@pytest.mark.parametrize("failures", [2000, 10**9])
def test_many_failures_do_not_overflow(failures: int) -> None:
    assert Backoff(0.5, 3600.0).delay_s(failures) == 3600.0
    assert Backoff(0.5, 3600.0, factor=1.0001).delay_s(failures * 1000) == 3600.0


def test_without_a_first_delay_there_is_none() -> None:
    backoff = Backoff(0.0, 3600.0)
    assert [backoff.delay_s(failures) for failures in (0, 5, 10**9)] == [0.0, 0.0, 0.0]


def test_another_factor() -> None:
    backoff = Backoff(1.0, 3.0, factor=1.5)
    assert [backoff.next_s() for _ in range(4)] == [1.0, 1.5, 2.25, 3.0]


def test_jitter_shortens_a_delay_by_its_share_at_most() -> None:
    backoff = Backoff(8.0, 8.0, jitter=0.25, rng=random.Random(7))
    delays = [backoff.next_s() for _ in range(200)]
    assert 6.0 <= min(delays) < 6.2
    assert 7.8 < max(delays) <= 8.0
    again = Backoff(8.0, 8.0, jitter=0.25, rng=random.Random(7))
    assert [again.next_s() for _ in range(200)] == delays, "it follows from the injected source"


def test_two_sources_give_other_delays() -> None:
    first, second = (Backoff(1.0, 60.0, jitter=0.5, rng=random.Random(seed)) for seed in (1, 2))
    assert first.next_s() != second.next_s()


async def test_waiting_sleeps_for_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    monkeypatch.setattr("ai.backend.infra.retry.asyncio.sleep", sleep)
    backoff = Backoff(1.0, 2.0)
    for _ in range(3):
        await backoff.wait()
    assert slept == [1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "arguments", [(-1.0, 1.0, 2.0, 0.0), (2.0, 1.0, 2.0, 0.0), (1.0, 2.0, 1.0, 0.0), (1.0, 2.0, 2.0, 1.5)]
)
def test_impossible_delays_are_refused(arguments: tuple[float, float, float, float]) -> None:
    first_s, max_s, factor, jitter = arguments
    with pytest.raises(ValueError, match="no delays"):
        Backoff(first_s, max_s, factor=factor, jitter=jitter)
