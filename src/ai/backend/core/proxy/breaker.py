"""Excludes routes that cannot be reached, for growing periods, and never more than half of the routes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ai.backend.core.proxy.routing import RouteKey

FAILURES_TO_EJECT = 3
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0


@dataclass(slots=True)
class _Record:
    failures: int = 0
    ejections: int = 0
    ejected_until: float = 0.0


@dataclass(slots=True)
class Breaker:
    """Counts consecutive failures of each route of a circuit. Only a served response resets the count."""

    _records: dict[RouteKey, _Record] = field(default_factory=dict)

    def record_success(self, key: RouteKey) -> None:
        self._records.pop(key, None)

    def record_failure(self, key: RouteKey, now: float) -> None:
        """Counts a failure of a route.

        The third consecutive failure ejects the route for some time. After the route's return, each further failure
        ejects it again.
        """
        record = self._records.setdefault(key, _Record())
        record.failures += 1
        if record.failures >= FAILURES_TO_EJECT and record.ejected_until <= now:
            record.ejected_until = now + min(FIRST_BACKOFF_S * 2**record.ejections, MAX_BACKOFF_S)
            record.ejections = min(record.ejections + 1, 16)

    def ejected_keys(self, route_count: int, now: float) -> frozenset[RouteKey]:
        """Returns the ejected routes, at most half of ``route_count``: those that failed most often."""
        if not self._records:
            return frozenset()
        ejected_keys = [key for key, record in self._records.items() if record.ejected_until > now]
        ejected_keys.sort(key=lambda key: -self._records[key].failures)
        return frozenset(ejected_keys[: route_count // 2])

    def retain(self, keys: frozenset[RouteKey]) -> None:
        """Keeps the records of the given routes, and drops all other records."""
        self._records = {key: record for key, record in self._records.items() if key in keys}
