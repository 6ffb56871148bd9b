from __future__ import annotations

import pytest

from ai.backend.common.errors import RateLimitExceeded
from ai.backend.infra.http.ratelimit import WINDOW_S, RateLimiter


def test_the_window_rolls() -> None:
    limiter = RateLimiter()
    for second in range(10):
        allowance = limiter.take("k", 10, now=1000.0 + second)
        assert allowance is not None
        assert allowance.remaining == 9 - second
    with pytest.raises(RateLimitExceeded) as caught:
        limiter.take("k", 10, now=1100.0)
    assert caught.value.data["limit"] == 10
    assert caught.value.data["retry_after"] == 990 + WINDOW_S - 1100
    with pytest.raises(RateLimitExceeded):
        limiter.take("k", 10, now=1000.0 + WINDOW_S - 31)
    again = limiter.take("k", 10, now=1100.0 + caught.value.data["retry_after"])
    assert again is not None
    assert again.remaining == 9


def test_only_what_fell_out_comes_back() -> None:
    limiter = RateLimiter()
    for _ in range(3):
        limiter.take("k", 5, now=0.0)
    for _ in range(2):
        limiter.take("k", 5, now=600.0)
    allowance = limiter.take("k", 5, now=905.0)
    assert allowance is not None
    assert allowance.remaining == 2


def test_a_refused_request_does_not_count() -> None:
    limiter = RateLimiter()
    limiter.take("k", 1, now=0.0)
    for now in range(1, 900, 20):
        with pytest.raises(RateLimitExceeded):
            limiter.take("k", 1, now=float(now))
    assert limiter.take("k", 1, now=931.0) is not None


def test_keys_do_not_share() -> None:
    limiter = RateLimiter()
    limiter.take("a", 1, now=0.0)
    assert limiter.take("b", 1, now=0.0) is not None


@pytest.mark.parametrize("limit", [None, 0, -1])
def test_no_limit_counts_nothing(limit: int | None) -> None:
    assert RateLimiter().take("k", limit, now=0.0) is None


def test_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    limiter = RateLimiter(max_keys=2)
    limiter.take("a", 1, now=0.0)
    limiter.take("b", 2, now=0.0)
    limiter.take("b", 2, now=0.0)
    limiter.take("c", 1, now=0.0)
    assert limiter.take("a", 1, now=1.0) is not None  # forgotten, so counted anew


def test_a_clock_that_stands_or_jumps_keeps_the_count_right() -> None:
    limiter = RateLimiter()
    limiter.take("k", 3, now=100.0)
    limiter.take("k", 3, now=40.0)
    allowance = limiter.take("k", 3, now=10_000_000.0)
    assert allowance is not None
    assert allowance.remaining == 2


def test_headers() -> None:
    allowance = RateLimiter().take("k", 7, now=0.0)
    assert allowance is not None
    assert allowance.headers() == {
        "X-RateLimit-Limit": "7",
        "X-RateLimit-Remaining": "6",
        "X-RateLimit-Window": "900",
    }
