"""Time and identities as interfaces, and their real forms."""

from __future__ import annotations

import secrets
import time
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID, uuid4

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> datetime:
        """Return the time of the wall clock, aware and in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment; no change of the wall clock moves them."""
        ...


class IdGenerator(Protocol):
    """Makes identities."""

    def uuid(self) -> UUID: ...
    def token(self, length: int) -> str:
        """Return letters and digits from a cryptographic source."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class RandomIds:
    """Random identities from the operating system."""

    def uuid(self) -> UUID:
        return uuid4()

    def token(self, length: int) -> str:
        return "".join(secrets.choice(_ALPHABET) for _ in range(length))


class Ages:
    """Measures on the monotonic clock how long ago something began, by the wall clock, since it is kept in a database.

    The wall clock is believed at the first call for a beginning; one in the future counts as the present. From then on
    only the monotonic clock counts: a wall clock that is set forward by a day ends nobody's session.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._previous: dict[tuple[Hashable, datetime], float] = {}
        self._current: dict[tuple[Hashable, datetime], float] = {}

    def next_round(self) -> None:
        """Forget the beginnings that were not asked for since the last round."""
        self._previous, self._current = self._current, {}

    def of(self, thing: Hashable, since: datetime) -> float:
        """Return the seconds since the beginning."""
        key, now = (thing, since), self._clock.monotonic()
        began = self._current.get(key, self._previous.get(key))
        if began is None:
            began = now - max(0.0, (self._clock.now() - since).total_seconds())
        self._current[key] = began
        return now - began
