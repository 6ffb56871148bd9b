"""Prometheus metrics of one daemon.

A registry per daemon, not the global one: the embedded cluster runs several daemons in one process. Labels are bounded:
route patterns, statuses and error codes, never ids or user input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ai.backend.common.wire.agent import MetricFamily

T = TypeVar("T", Counter, Gauge, Histogram)
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Names are prefixed ``backendai_<daemon>_``; asking for the same name again returns the same metric."""

    def __init__(self, daemon: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix = f"backendai_{daemon.replace('-', '_')}_"
        self._made: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, help_: str, labels: Sequence[str] = ()) -> Counter:
        return self._make(Counter, name, lambda full: Counter(full, help_, labels, registry=self.registry))

    def gauge(self, name: str, help_: str, labels: Sequence[str] = ()) -> Gauge:
        return self._make(Gauge, name, lambda full: Gauge(full, help_, labels, registry=self.registry))

    def histogram(
        self, name: str, help_: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = _BUCKETS
    ) -> Histogram:
        return self._make(
            Histogram, name, lambda full: Histogram(full, help_, labels, registry=self.registry, buckets=buckets)
        )

    def _make(self, kind: type[T], name: str, make: Callable[[str], T]) -> T:
        full = self._prefix + name
        made = self._made.get(full)
        if made is None:
            made = self._made[full] = make(full)
        if not isinstance(made, kind):
            raise ValueError(f"{full} is a {type(made).__name__} already")
        return made

    def expose(self, source: Callable[[], Iterable[MetricFamily]]) -> None:
        """Show what the source has at each scrape. Its names are whole, and none of them begins like ours."""
        self.registry.register(_Told(source))

    def exposition(self) -> bytes:
        """The text format for ``/metrics``."""
        return generate_latest(self.registry)


class _Told(Collector):
    """Families that somebody else made; nothing of them is kept between two scrapes."""

    def __init__(self, source: Callable[[], Iterable[MetricFamily]]) -> None:
        self._source = source

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        for family in self._source():
            name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
            metric = Metric(name, family.help, family.kind)
            for sample in family.samples:
                metric.add_sample(family.name, sample.labels, sample.value)
            yield metric
