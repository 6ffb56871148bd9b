"""How long things have been as they are, whatever is done to the wall clock meanwhile."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime

from ai.backend.manager.ports.world import Clock


class Ages:
    """Ages on the monotonic clock, for deadlines whose beginnings were noted by the wall clock, since they are kept in
    the database.

    At the first look at a beginning the wall clock is believed, a beginning in the future having just happened. From
    then on only the monotonic clock counts: a wall clock that is set forward by a day ends nobody's session.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: dict[tuple[Hashable, datetime], float] = {}
        self._looked: dict[tuple[Hashable, datetime], float] = {}

    def next_round(self) -> None:
        """Forget what was not looked at since the last round."""
        self._began, self._looked = self._looked, {}

    def of(self, thing: Hashable, since: datetime) -> float:
        """Seconds since the beginning."""
        key, now = (thing, since), self._clock.monotonic()
        began = self._looked.get(key, self._began.get(key))
        if began is None:
            began = now - max(0.0, (self._clock.now() - since).total_seconds())
        self._looked[key] = began
        return now - began
