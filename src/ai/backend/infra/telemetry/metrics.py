"""Defines the Prometheus metrics of one daemon.

Labels are bounded: route patterns, statuses and error codes, never ids or user input.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from ai.backend.common.wire.reports import MetricFamily, MetricSample
from ai.backend.infra.telemetry.tracing import is_tracing

T = TypeVar("T", Counter, Gauge, Histogram)
_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


_process_metrics: WeakSet[Metrics] = WeakSet()


def metrics_of_process() -> list[Metrics]:
    """Returns the metrics of all daemons in this process."""
    return list(_process_metrics)


class Metrics:
    """Creates metrics with the prefix ``backendai_<daemon>_``. The same name returns the same metric."""

    def __init__(self, daemon: str) -> None:
        self._registry, self._exposed, self._of_others = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
        self._prefix = f"backendai_{daemon.replace('-', '_')}_"
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}
        self._gauges: Callable[[], Awaitable[Mapping[str, float]]] | None = None
        _process_metrics.add(self)

    def counter(self, name: str, help_: str, labels: Sequence[str] = ()) -> Counter:
        return self._metric(Counter, name, help_, labels)

    def gauge(self, name: str, help_: str, labels: Sequence[str] = ()) -> Gauge:
        return self._metric(Gauge, name, help_, labels, multiprocess_mode="mostrecent")

    def histogram(
        self,
        name: str,
        help_: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float] = _BUCKETS_S,
        is_prefixed: bool = True,
    ) -> Histogram:
        """Creates a histogram, or returns the existing one.

        ``is_prefixed``: False for a name that a convention gives.
        """
        return self._metric(Histogram, name, help_, labels, is_prefixed=is_prefixed, buckets=buckets)

    def _metric(
        self, kind: type[T], name: str, help_: str, labels: Sequence[str], *, is_prefixed: bool = True, **options: Any
    ) -> T:
        full_name = self._prefix + name if is_prefixed else name
        metric = self._metrics.get(full_name)
        if metric is None:
            metric = self._metrics[full_name] = kind(full_name, help_, labels, registry=self._registry, **options)
        if not isinstance(metric, kind):
            raise ValueError(f"{full_name} is a {type(metric).__name__} already")
        return metric

    def expose(self, source: Callable[[], Iterable[MetricFamily]], *, is_of_other_daemons: bool = False) -> None:
        """Registers ``source`` as a source of further metric families, which are exported at each scrape.

        The names of the families are complete, and none begins with our prefix.
        ``is_of_other_daemons``: other daemons measured them, and a scrape may leave them out.
        """
        (self._of_others if is_of_other_daemons else self._exposed).register(FamilyCollector(source))

    def add_computed_gauge(self, name: str, help_: str, source: Callable[[], float]) -> None:
        """Registers a gauge of this process that ``source`` computes at each scrape."""
        full_name = self._prefix + name
        self.expose(
            lambda: [
                MetricFamily(
                    name=full_name, kind="gauge", help=help_, samples=[MetricSample(labels={}, value=source())]
                )
            ]
        )

    def register_gauges(self, gauges: Callable[[], Awaitable[Mapping[str, float]]]) -> None:
        """Registers ``gauges``, which is called before each export and returns the values of gauges by name."""
        self._gauges = gauges

    async def update(self) -> None:
        """Computes the values of the gauges of :meth:`register_gauges` and sets the gauges to the values."""
        if self._gauges is not None:
            for name, value in (await self._gauges()).items():
                self.gauge(name, name.replace("_", " ").capitalize() + ".").set(value)

    def families(self) -> Iterable[Metric]:
        """Yields the metrics that :meth:`exposition` writes."""
        yield from (_shared_registry() or self._registry).collect()
        yield from self._exposed.collect()
        yield from self._of_others.collect()

    @property
    def has_exemplars(self) -> bool:
        """Returns True if observations may have trace ids. Processes that count together have no exemplars."""
        return is_tracing() and _FOLDER_VARIABLE not in os.environ

    def openmetrics_exposition(self, *, with_others: bool = True) -> bytes:
        """Returns all metrics in the OpenMetrics format, which has exemplars: trace ids beside observations."""
        end_marker = b"# EOF\n"
        registry_texts = [
            bytes(openmetrics.generate_latest(registry)).removesuffix(end_marker)  # type: ignore[no-untyped-call]  # theirs
            for registry in (self._registry, *self._exported_registries(with_others=with_others))
        ]
        return b"".join([*registry_texts, end_marker])

    def exposition(self, *, with_others: bool = True) -> bytes:
        """Returns all metrics in Prometheus text format: counts of all processes, and the exported families of this
        process."""
        registries = (_shared_registry() or self._registry, *self._exported_registries(with_others=with_others))
        return b"".join(map(generate_latest, registries))

    def _exported_registries(self, *, with_others: bool) -> tuple[CollectorRegistry, ...]:
        return (self._exposed, self._of_others) if with_others else (self._exposed,)


def count_together(folder: Path, process_number: int) -> None:
    """Lets the processes of one daemon count in files of a shared folder. Call it before creating any :class:`Metrics`.

    ``process_number`` is that of this process; 0 empties the folder, the replacement of a process continues its counts.
    """
    if process_number == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
    os.environ[_FOLDER_VARIABLE] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: process_number)  # type: ignore[no-untyped-call]  # theirs


def _shared_registry() -> CollectorRegistry | None:
    """Returns a registry of all processes that count together. Returns None if this process counts alone."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder is None:
        return None
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]  # theirs
    return registry


class FamilyCollector(Collector):
    """Exports the metric families that a function returns; the function is called at each scrape.

    Stores nothing between two scrapes.
    """

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
