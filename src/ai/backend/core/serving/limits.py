"""Limits the requests, open requests and model tokens of API tokens in rolling windows (serving anchors 9).

What a request may cost is reserved when it comes, and replaced by what it did cost when it has ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from ai.backend.common.wire.appproxy import InferenceLimits, TokenKind

PARTS = 60
"""The number of parts into which a window is divided for counting."""
_MAX_TOKENS_KEPT = 65_536


class RollingSum:
    """Sums amounts over the last ``seconds``. Whole parts of the window are counted, so the sum is never too small."""

    __slots__ = ("_parts", "_seconds", "_total")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._parts: OrderedDict[int, int] = OrderedDict()
        self._total = 0

    def part_of(self, now: float) -> int:
        return int(now * PARTS / self._seconds)

    def add(self, part_number: int, amount: int) -> None:
        """Adds an amount to the present part of the window."""
        self._parts[part_number] = self._parts.get(part_number, 0) + amount
        self._total += amount

    def correct(self, part_number: int, amount: int) -> None:
        """Adds to a past part of the window, or subtracts from it. Does nothing once the part has left the window."""
        if part_number in self._parts:
            self.add(part_number, amount)

    def total(self, now: float) -> int:
        oldest_part = self.part_of(now) - PARTS
        while self._parts and (first_part := next(iter(self._parts))) < oldest_part:
            self._total -= self._parts.pop(first_part)
        return self._total

    def wait_s(self, now: float, room: int, limit: int) -> float:
        """Returns the seconds until ``room`` more can be added without exceeding the limit.

        Returns the whole window if they never fit.
        """
        excess = self.total(now) + room - limit
        if excess <= 0:
            return 0.0
        for part_number, part_amount in self._parts.items():
            excess -= part_amount
            if excess <= 0:
                return max(0.0, (part_number + PARTS + 1) * self._seconds / PARTS - now)
        return self._seconds


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the number of tokens that a request may cost."""

    prompt: int = 0
    output: int = 0

    def tokens_of(self, kind: TokenKind) -> int:
        match kind:
            case TokenKind.INPUT:
                return self.prompt
            case TokenKind.OUTPUT:
                return self.output
            case TokenKind.TOTAL:
                return self.prompt + self.output


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Describes why a request is refused, and after how many seconds it may be repeated.

    ``what``: ``requests``, ``tokens`` or ``concurrent``.
    """

    what: str
    limit: int
    retry_after_s: float


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the narrowest window of an API token, of its request windows or of its token windows.

    It has the limit, the remainder, and the seconds until the whole limit is free again.
    """

    limit: int
    remaining: int
    reset_s: float


@dataclass(slots=True)
class Reservation:
    """Represents an admitted request.

    :meth:`InferenceMeter.complete` ends the reservation. ``tokens`` are what each window counted for it.
    """

    token: str
    at: float
    tokens: list[int]
    is_open: bool = True


@dataclass(slots=True)
class _TokenUse:
    """Holds the usage of one API token in each window of its limits."""

    limits: InferenceLimits
    requests: list[RollingSum] = field(default_factory=list)
    tokens: list[RollingSum] = field(default_factory=list)
    open: int = 0

    def __post_init__(self) -> None:
        self.requests = [RollingSum(window.seconds) for window in self.limits.requests]
        self.tokens = [RollingSum(window.seconds) for window in self.limits.tokens]


class InferenceMeter:
    """Counts the requests of API tokens by the ids of the tokens.

    ``now`` is seconds of any clock that never goes back.
    """

    def __init__(self, *, max_accounts: int = _MAX_TOKENS_KEPT) -> None:
        self._accounts: OrderedDict[str, _TokenUse] = OrderedDict()
        self._max_accounts = max_accounts

    def admit(self, token: str, limits: InferenceLimits, estimate: Estimate, now: float) -> Reservation | Refusal:
        """Admits a request within all limits of its API token, and reserves the tokens that the request may cost.

        Nothing is counted for one that is refused. An estimate above a limit counts as all of it: only the answer will
        tell.
        """
        account = self._usage_of(token, limits)
        if limits.concurrent is not None and account.open >= limits.concurrent:
            return Refusal(what="concurrent", limit=limits.concurrent, retry_after_s=1.0)
        for window, rolling_sum in zip(limits.requests, account.requests, strict=True):
            if rolling_sum.total(now) + 1 > window.amount:
                wait_s = rolling_sum.wait_s(now, 1, window.amount)
                return Refusal(what="requests", limit=window.amount, retry_after_s=wait_s)
        reserved_of_windows: list[int] = []
        for limit, rolling_sum in zip(limits.tokens, account.tokens, strict=True):
            reserved_tokens = min(estimate.tokens_of(limit.kind), limit.amount)
            summed_tokens = rolling_sum.total(now)
            if summed_tokens + reserved_tokens > limit.amount or summed_tokens >= limit.amount:
                wait_s = rolling_sum.wait_s(now, max(1, reserved_tokens), limit.amount)
                return Refusal(what="tokens", limit=limit.amount, retry_after_s=wait_s)
            reserved_of_windows.append(reserved_tokens)
        for rolling_sum in account.requests:
            rolling_sum.add(rolling_sum.part_of(now), 1)
        for rolling_sum, reserved_tokens in zip(account.tokens, reserved_of_windows, strict=True):
            rolling_sum.add(rolling_sum.part_of(now), reserved_tokens)
        account.open += 1
        return Reservation(token, now, reserved_of_windows)

    def complete(self, reservation: Reservation, actual: Estimate) -> None:
        """Ends an admitted request once, and counts its real tokens instead of the estimate."""
        account = self._accounts.get(reservation.token)
        if account is None or not reservation.is_open:
            return
        reservation.is_open = False
        account.open = max(0, account.open - 1)
        for window, rolling_sum, reserved_tokens in zip(
            account.limits.tokens, account.tokens, reservation.tokens, strict=False
        ):
            rolling_sum.correct(rolling_sum.part_of(reservation.at), actual.tokens_of(window.kind) - reserved_tokens)

    def quotas(self, token: str, now: float) -> Iterator[tuple[str, Quota]]:
        """Yields the narrowest request window and the narrowest token window of an API token with limits."""
        account = self._accounts.get(token)
        if account is None:
            return
        windows_of_kinds = (
            ("requests", account.requests, [window.amount for window in account.limits.requests]),
            ("tokens", account.tokens, [window.amount for window in account.limits.tokens]),
        )
        for kind, sums, limits in windows_of_kinds:
            quotas = [
                Quota(
                    limit=limit,
                    remaining=max(0, limit - rolling_sum.total(now)),
                    reset_s=rolling_sum.wait_s(now, limit, limit),
                )
                for rolling_sum, limit in zip(sums, limits, strict=True)
            ]
            if quotas:
                yield kind, min(quotas, key=lambda quota: (quota.remaining, quota.limit))

    def _usage_of(self, token: str, limits: InferenceLimits) -> _TokenUse:
        account = self._accounts.get(token)
        if account is None or account.limits != limits:
            open_count = account.open if account else 0
            account = self._accounts[token] = _TokenUse(limits)
            account.open = open_count
        self._accounts.move_to_end(token)
        while len(self._accounts) > self._max_accounts:
            self._accounts.popitem(last=False)
        return account
