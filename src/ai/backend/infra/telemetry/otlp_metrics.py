"""Translates Prometheus metrics to OpenTelemetry metrics (specification, "Prometheus compatibility"). Pure."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import inf

from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric

_STARTED_NS = time.time_ns()
_CUMULATIVE = export.AggregationTemporality.CUMULATIVE
_Labels = tuple[tuple[str, str], ...]


def metrics_data(families: Iterable[Metric], resource: Resource) -> export.MetricsData:
    """Returns the present values of all families: counters as sums, histograms with their buckets, others as gauges."""
    now_ns = time.time_ns()
    metrics = [metric for family in families if (metric := _metric(family, now_ns)) is not None]
    scope = export.ScopeMetrics(scope=InstrumentationScope("ai.backend"), metrics=metrics, schema_url="")
    return export.MetricsData([export.ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(family: Metric, now_ns: int) -> export.Metric | None:
    data: export.Sum | export.Gauge | export.Histogram
    if family.type == "histogram":
        data = export.Histogram(_histograms(family, now_ns), _CUMULATIVE)
    else:
        is_counter = family.type == "counter"
        points = [
            export.NumberDataPoint(dict(sample.labels), _STARTED_NS if is_counter else 0, now_ns, sample.value)
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        data = export.Sum(points, _CUMULATIVE, is_monotonic=True) if is_counter else export.Gauge(points)
    if not data.data_points:
        return None
    return export.Metric(name=family.name, description=family.documentation, unit="", data=data)


def _histograms(family: Metric, now_ns: int) -> list[export.HistogramDataPoint]:
    buckets: dict[_Labels, dict[float, float]] = defaultdict(dict)
    sums: dict[_Labels, float] = {}
    for sample in family.samples:
        if sample.name == f"{family.name}_bucket":
            labels = _key({name: value for name, value in sample.labels.items() if name != "le"})
            buckets[labels][float(sample.labels["le"])] = sample.value
        elif sample.name == f"{family.name}_sum":
            sums[_key(sample.labels)] = sample.value
    points: list[export.HistogramDataPoint] = []
    for labels, counts in buckets.items():
        bounds = sorted(counts)
        lower_counts = [0.0, *(counts[bound] for bound in bounds[:-1])]
        points.append(
            export.HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=_STARTED_NS,
                time_unix_nano=now_ns,
                count=int(counts[bounds[-1]]),
                sum=sums.get(labels, 0.0),
                bucket_counts=[
                    int(counts[bound] - lower_count) for bound, lower_count in zip(bounds, lower_counts, strict=True)
                ],
                explicit_bounds=[bound for bound in bounds if bound != inf],
                min=None,  # type: ignore[arg-type]  # Prometheus keeps none, and the field of the protocol is optional
                max=None,  # type: ignore[arg-type]  # as before
            )
        )
    return points


def _key(labels: Mapping[str, str]) -> _Labels:
    return tuple(sorted(labels.items()))
