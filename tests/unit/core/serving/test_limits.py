"""Limits in rolling windows, and what was used by whom."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.wire.appproxy import (
    FIRST_BYTE_BOUNDS_S,
    InferenceLimits,
    RequestWindow,
    TokenKind,
    TokenWindow,
)
from ai.backend.core.serving.limits import Estimate, InferenceMeter, Refusal, Reservation
from ai.backend.core.serving.usage import MAX_ROWS, Cost, UsageKey, UsageTracker, quantile_s

arrivals = st.lists(st.tuples(st.floats(0.0, 7.0), st.integers(0, 60), st.integers(0, 60)), max_size=60)


@given(arrivals, st.integers(1, 8), st.integers(1, 100), st.sampled_from(TokenKind))
def test_no_window_ever_has_more_than_its_limit(
    arrivals: list[tuple[float, int, int]], requests: int, tokens: int, kind: TokenKind
) -> None:
    limits = InferenceLimits(
        requests=[RequestWindow(amount=requests, seconds=10)],
        tokens=[TokenWindow(amount=tokens, seconds=20, kind=kind)],
    )
    meter, now = InferenceMeter(), 0.0
    admitted: list[tuple[float, int]] = []
    for pause, prompt, output in arrivals:
        now += pause
        estimate = Estimate(prompt=prompt, output=output)
        verdict = meter.admit("t", limits, estimate, now)
        if isinstance(verdict, Reservation):
            actual = Estimate(prompt=min(prompt, tokens), output=0 if kind is TokenKind.TOTAL else output)
            meter.complete(verdict, actual)
            meter.complete(verdict, Estimate())
            admitted.append((now, min(actual.tokens_of(kind), tokens)))
        else:
            assert 0.0 < verdict.retry_after_s <= 21.0
            later = meter.admit("t", limits, estimate, now + verdict.retry_after_s + 0.001)
            assert isinstance(later, Reservation) or later.what != verdict.what
            break
        assert sum(at > now - 10 for at, _ in admitted) <= requests
        assert sum(amount for at, amount in admitted if at > now - 20) <= tokens


def test_open_requests_are_limited_and_counted_once() -> None:
    meter, limits = InferenceMeter(), InferenceLimits(concurrent=2)
    first, second = (meter.admit("t", limits, Estimate(), 0.0) for _ in range(2))
    assert meter.admit("t", limits, Estimate(), 0.0) == Refusal(what="concurrent", limit=2, retry_after_s=1.0)
    assert isinstance(meter.admit("other", limits, Estimate(), 0.0), Reservation)
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    meter.complete(first, Estimate())
    meter.complete(first, Estimate())
    assert isinstance(meter.admit("t", limits, Estimate(), 0.0), Reservation)
    assert isinstance(meter.admit("t", limits, Estimate(), 0.0), Refusal)


def test_an_estimate_gives_way_to_the_answer() -> None:
    limits = InferenceLimits(tokens=[TokenWindow(amount=100, seconds=60)], requests=[RequestWindow(amount=5)])
    meter = InferenceMeter()
    reserved = meter.admit("t", limits, Estimate(prompt=20, output=4096), 0.0)
    assert isinstance(reserved, Reservation), "no estimate is refused for ever"
    assert isinstance(meter.admit("t", limits, Estimate(prompt=1), 0.0), Refusal)
    meter.complete(reserved, Estimate(prompt=20, output=30))
    quotas = dict(meter.quotas("t", 0.0))
    assert (quotas["tokens"].limit, quotas["tokens"].remaining) == (100, 50)
    assert (quotas["requests"].limit, quotas["requests"].remaining) == (5, 4)
    over = meter.admit("t", limits, Estimate(prompt=50), 1.0)
    assert isinstance(over, Reservation)
    meter.complete(over, Estimate(prompt=50, output=5000))
    assert isinstance(meter.admit("t", limits, Estimate(), 30.0), Refusal), "what an answer costs too much is owed"
    assert isinstance(meter.admit("t", limits, Estimate(), 62.1), Reservation)


def test_an_answer_that_ends_after_its_window_gives_nothing_back() -> None:
    limits = InferenceLimits(tokens=[TokenWindow(amount=100, seconds=10)])
    meter = InferenceMeter()
    late = meter.admit("t", limits, Estimate(prompt=100), 0.0)
    assert isinstance(late, Reservation)
    assert isinstance(meter.admit("t", limits, Estimate(prompt=100), 20.0), Reservation)
    meter.complete(late, Estimate())
    assert isinstance(meter.admit("t", limits, Estimate(prompt=100), 20.0), Refusal)


def test_accounts_are_bounded() -> None:
    meter, limits = InferenceMeter(max_accounts=3), InferenceLimits(concurrent=1)
    reservations = [meter.admit(str(n), limits, Estimate(), 0.0) for n in range(9)]
    for reservation in reservations:
        assert isinstance(reservation, Reservation)
        meter.complete(reservation, Estimate())


def key(minute: int = 1, token: str = "t") -> UsageKey:
    return UsageKey(minute, token, None, UUID(int=1), None, None, UUID(int=2), UUID(int=3))


def test_usage_is_reported_once_and_in_pieces() -> None:
    book = UsageTracker()
    book.count(key(), Cost(prompt=10, cached=4, output=5), is_error=False, busy_s=0.5, first_byte_s=0.03)
    book.count(key(), Cost(prompt=1, output=1, is_estimated=True), is_error=True, busy_s=0.25)
    [row] = book.take()
    assert (row.requests, row.errors, row.prompt_tokens, row.cached_tokens, row.output_tokens) == (2, 1, 11, 4, 6)
    assert (row.estimated, row.busy_ms, row.first_bytes[4], sum(row.first_bytes)) == (1, 750, 1, 1)
    assert book.take() == []
    for minute in range(MAX_ROWS + 7):
        book.count(key(minute), Cost(), is_error=False, busy_s=0.0)
    assert (len(book.take()), len(book.take())) == (MAX_ROWS, 7)


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_quantiles_bound_the_times(times: list[float], part: float) -> None:
    book = UsageTracker()
    for time in times:
        book.count(key(), Cost(), is_error=False, busy_s=0.0, first_byte_s=time)
    [row] = book.take()
    bound = quantile_s(row.first_bytes, part)
    assert bound is not None
    exact = sorted(times)[min(len(times) - 1, max(0, -int(-part * len(times) // 1) - 1))]
    assert bound >= min(exact, 2 * FIRST_BYTE_BOUNDS_S[-1])
    assert quantile_s([], 0.9) is None
