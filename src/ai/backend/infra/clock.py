"""Defines interfaces of time and of random ids, and implements the interfaces."""

from __future__ import annotations

import secrets
import time
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID, uuid4

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class Clock(Protocol):
    """Defines the interface of clocks, which return the present time; a simulation has a virtual clock."""

    def now(self) -> datetime:
        """Returns the wall clock time, aware and in UTC."""

    def monotonic(self) -> float:
        """Returns monotonic seconds since an arbitrary moment."""


class IdGenerator(Protocol):
    """Creates ids."""

    def uuid(self) -> UUID: ...
    def token(self, length: int) -> str:
        """Returns a text of random letters and digits from a cryptographic source."""


class SystemClock:
    """The system's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class RandomIds:
    """Creates random ids from the operating system."""

    def uuid(self) -> UUID:
        return uuid4()

    def token(self, length: int) -> str:
        return "".join(secrets.choice(_ALPHABET) for _ in range(length))


class Ages:
    """Measures how much time has passed since stored wall clock times, by the monotonic clock.

    The wall clock counts at the first call for a moment only, so setting it forward by a day ends nobody's session. A
    moment in the future counts as the present.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._previous: dict[tuple[Hashable, datetime], float] = {}
        self._current: dict[tuple[Hashable, datetime], float] = {}

    def next_round(self) -> None:
        """Forgets the moments that were not queried since the last call."""
        self._previous, self._current = self._current, {}

    def of(self, subject: Hashable, moment: datetime) -> float:
        """Returns the seconds since a moment."""
        subject_moment, now_s = (subject, moment), self._clock.monotonic()
        began_s = self._current.get(subject_moment, self._previous.get(subject_moment))
        if began_s is None:
            began_s = now_s - max(0.0, (self._clock.now() - moment).total_seconds())
        self._current[subject_moment] = began_s
        return now_s - began_s
