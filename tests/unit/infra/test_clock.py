from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ai.backend.infra.clock import Ages, RandomIds, SystemClock

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class SetClock:
    """A clock whose two hands move as a test sets them."""

    def __init__(self) -> None:
        self.wall = BEGIN
        self.seconds = 100.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds


def test_an_age_does_not_follow_the_wall_clock_once_it_is_measured() -> None:
    clock = SetClock()
    ages = Ages(clock)
    assert ages.of("a", BEGIN - timedelta(seconds=7)) == 7.0
    clock.wall += timedelta(days=1)
    clock.seconds += 2
    ages.next_round()
    assert ages.of("a", BEGIN - timedelta(seconds=7)) == 9.0
    assert ages.of("b", BEGIN + timedelta(days=9)) == 0.0


def test_a_beginning_that_no_round_measured_is_measured_anew() -> None:
    clock = SetClock()
    ages = Ages(clock)
    ages.of("a", BEGIN)
    clock.seconds += 50
    ages.next_round()
    ages.next_round()
    assert ages.of("a", BEGIN) == 0.0


def test_the_real_clock_is_in_utc_and_ids_differ() -> None:
    assert SystemClock().now().tzinfo is UTC
    ids = RandomIds()
    assert ids.uuid() != ids.uuid()
    token = ids.token(40)
    assert len(token) == 40
    assert token.isalnum()
    assert token != ids.token(40)
