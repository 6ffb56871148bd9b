"""Converts measurements of v1."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement, MetricKind
from ai.backend.plugin.accelerator.shapes import InvalidResponse

log = logging.getLogger(__name__)

KINDS = {
    "GAUGE": MetricKind.GAUGE,
    "USAGE": MetricKind.GAUGE,
    "UTILIZATION": MetricKind.GAUGE,
    "RATE": MetricKind.RATE,
    "ACCUMULATED": MetricKind.ACCUMULATED,
}
"""A v1 ``MetricTypes`` -> what it is here."""
UNITS = {"c": "celsius", "w": "watt", "watts": "watt", "j": "joule", "joules": "joule", "hz": "hertz", "ms": "msec"}
"""Units that v1 plugins write otherwise, in lower case."""

_hooked: set[str] = set()


def measurement(metric: Any, value: Any, device: DeviceId | None = None) -> Measurement | None:
    """Converts a value of a v1 metric; None for one that only a hook of the plugin can read.

    Raises:
        InvalidResponse: it is no measurement.
    """
    try:
        key, kind = str(metric.key), KINDS[metric.type.name]
        unit = str(metric.unit_hint or "count").lower()
        stats = frozenset(map(str, metric.stats_filter or ()))
        number, capacity = value.value, value.capacity
    except (AttributeError, KeyError, TypeError) as e:
        raise InvalidResponse(f"{metric!r:.60} is no measurement of v1: {type(e).__name__}: {e}") from None
    if metric.current_hook is not None and kind is not MetricKind.RATE:
        if key not in _hooked:
            _hooked.add(key)
            log.warning("the metric %s has a current_hook, which cannot be called here: it is left out", key)
        return None
    return Measurement(
        key=key,
        value=_number(key, number),
        unit_hint=UNITS.get(unit, unit),
        capacity=None if not capacity else _number(key, capacity),
        kind=kind,
        stats=stats,
        device_id=device,
    )


def of_node(metrics: Sequence[Any]) -> Iterator[Measurement]:
    """Yields the total of a metric, and its parts by device. Raises InvalidResponse."""
    for metric in metrics:
        parts = _values(metric, "per_device")
        for device, value in [(None, getattr(metric, "per_node", None)), *parts]:
            if value is not None and (made := measurement(metric, value, device)) is not None:
                yield made


def of_each(metrics: Sequence[Any], field: str) -> Iterator[tuple[Any, Measurement]]:
    """Yield ``(container or process, measurement)`` of ``per_container`` or ``per_process``. Raises InvalidResponse."""
    for metric in metrics:
        for name, value in _values(metric, field):
            if (made := measurement(metric, value)) is not None:
                yield name, made


def _values(metric: Any, field: str) -> list[tuple[Any, Any]]:
    try:
        return list(dict(getattr(metric, field)).items())
    except (AttributeError, TypeError, ValueError):
        raise InvalidResponse(f"{metric!r:.60} is no measurement of v1: {field} is no mapping") from None


def _number(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidResponse(f"{key} is {value!r:.60}, which is no number") from None
