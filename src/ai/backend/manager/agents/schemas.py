"""Defines requests and replies about histories of metrics."""

from __future__ import annotations

from typing import TypedDict

from ai.backend.infra.http.routes import Schema
from ai.backend.manager.metrics.history import Series, Span


class HistoryQuery(Schema, frozen=True):
    """Selects the span of a metric history: ``hour`` is the last hour by 5 seconds, ``day`` the last day by minutes."""

    span: Span = "hour"


class MetricSeries(TypedDict):
    """Values by metric, the oldest first, ``step_s`` seconds apart, null where nothing was reported. ``end_s``: the end
    of the last step, in seconds since the epoch."""

    step_s: int
    end_s: int
    metrics: dict[str, list[float | None]]


def metric_series(series: Series) -> MetricSeries:
    """Returns a history in the form of the API."""
    return {
        "step_s": series.step_s,
        "end_s": series.end_s,
        "metrics": {name: list(values) for name, values in series.metrics.items()},
    }
