"""Calls methods of v1 plugins, and converts their settings, values and measurements."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Integral
from typing import Any

from ai.backend.common.errors import CreationDenied, InvalidInput
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement, MetricKind
from ai.backend.plugin.accelerator.shapes import InvalidResponse


def require_collection(method: str, answer: Any) -> Sequence[Any]:
    """Returns the answer of a method as a sequence. Raises InvalidResponse for anything but a collection."""
    if not hasattr(answer, "__iter__") or isinstance(answer, str | bytes):
        raise InvalidResponse(f"{method} returned {answer!r:.60} instead of a list")
    return list(answer)


def require_mapping(method: str, answer: Any) -> Mapping[Any, Any]:
    """Returns the answer of a method if it is a mapping. Raises InvalidResponse for anything else."""
    if not isinstance(answer, Mapping):
        raise InvalidResponse(f"{method} returned {answer!r:.60} instead of a mapping".lstrip())
    return answer


def texts_of(method: str, answer: Any) -> dict[str, str]:
    """Returns the answer of a method as a mapping of texts. Raises InvalidResponse for anything but a mapping."""
    try:
        text_by_key = dict(answer)
    except (TypeError, ValueError):
        raise InvalidResponse(f"{method} returned {answer!r:.60} instead of a mapping") from None
    return {str(key): str(value) for key, value in text_by_key.items()}


def to_decimal(value: object, description: str) -> Decimal:
    """Returns a finite Decimal unchanged, and a whole number of any type as Decimal.

    Raises InvalidResponse for any other value; ``description`` names the value.
    """
    match value:
        case bool():
            pass
        case Decimal() if value.is_finite():
            return value
        case Integral():
            return Decimal(int(value))
        case float() if value.is_integer():
            return Decimal(int(value))
        case float():
            raise InvalidResponse(f"{description} is the float {value!r:.40}; quantities with fractions are Decimal")
    raise InvalidResponse(f"{description} is {value!r:.60}, which is no quantity")


class V1CallFailed(Exception):
    """Raised when a method of a v1 plugin raised an error. The message begins with the method's name."""


async def ask(plugin: object, method: str, *arguments: Any) -> Any:
    """Calls a method of a v1 plugin, awaits the result if the method is a coroutine, and returns the result.

    Raises CreationDenied if the plugin used a missing feature, V1CallFailed for anything else that it raised.
    """
    try:
        answer = getattr(plugin, method)(*arguments)
        return await answer if inspect.isawaitable(answer) else answer
    except CreationDenied:
        raise
    except Exception as e:
        raise V1CallFailed(f"{method} raised {type(e).__name__}: {e}") from e


_CONFIG_SECTIONS = ("agent", "container", "resource", "debug", "plugins", "container-logs", "kernel-lifecycles")


class LocalConfig(dict[str, Any]):
    """The agent's configuration as a v1 plugin gets it: only the table ``local-config`` of the plugin's settings.

    Access to a missing key raises KeyError with the key's whole name.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        empty_sections: dict[str, Any] = {key: {} for key in _CONFIG_SECTIONS} if not path else {}
        super().__init__(
            {
                key: LocalConfig(value, f"{path}{key}.") if isinstance(value, Mapping) else value
                for key, value in {**empty_sections, **values}.items()
            }
        )
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"{self._path}{key} of the local configuration: set it in local-config of the plugin's settings")


def settings_as_texts(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Converts settings to texts, as v1 plugins read them from etcd.

    Raises InvalidInput for a value that has no text.
    """
    text_by_key: dict[str, Any] = {}
    for key, value in values.items():
        match value:
            case Mapping():
                text_by_key[key] = settings_as_texts(value, f"{path}.{key}")
            case bool():
                text_by_key[key] = "true" if value else "false"
            case str() | int() | float():
                text_by_key[key] = str(value)
            case _:
                problem = "a v1 plugin takes texts, numbers and tables"
                raise InvalidInput(f"{path}.{key}: {problem}", data={f"{path}.{key}": problem})
    return text_by_key


log = logging.getLogger(__name__)

KINDS = {
    "GAUGE": MetricKind.GAUGE,
    "USAGE": MetricKind.GAUGE,
    "UTILIZATION": MetricKind.GAUGE,
    "RATE": MetricKind.RATE,
    "ACCUMULATED": MetricKind.ACCUMULATED,
}
"""Maps each v1 ``MetricTypes`` to the kind of metric here."""
UNITS = {"c": "celsius", "w": "watt", "watts": "watt", "j": "joule", "joules": "joule", "hz": "hertz", "ms": "msec"}
"""Maps units as v1 plugins write them, in lower case, to the units here."""

_hook_metrics: set[str] = set()


def measurement(metric: Any, value: Any, device: DeviceId | None = None) -> Measurement | None:
    """Converts a value of a v1 metric to a measurement.

    Returns None for a metric that only a hook of the plugin can read. Raises InvalidResponse: it is no
    measurement.
    """
    try:
        key, metric_kind = str(metric.key), KINDS[metric.type.name]
        unit = str(metric.unit_hint or "count").lower()
        statistics = frozenset(map(str, metric.stats_filter or ()))
        metric_value, capacity = value.value, value.capacity
    except (AttributeError, KeyError, TypeError) as e:
        raise InvalidResponse(f"{metric!r:.60} is no measurement of v1: {type(e).__name__}: {e}") from None
    if metric.current_hook is not None and metric_kind is not MetricKind.RATE:
        if key not in _hook_metrics:
            _hook_metrics.add(key)
            log.warning("the metric %s has a current_hook, which cannot be called here: it is left out", key)
        return None
    return Measurement(
        key=key,
        value=_number_of(key, metric_value),
        unit_hint=UNITS.get(unit, unit),
        capacity=None if not capacity else _number_of(key, capacity),
        kind=metric_kind,
        stats=statistics,
        device_id=device,
    )


def node_measurements(metrics: Sequence[Any]) -> Iterator[Measurement]:
    """Yields each metric's measurements: the total of the node, then each device. Raises InvalidResponse."""
    for metric in metrics:
        device_values = _entries_of(metric, "per_device")
        for device, value in [(None, getattr(metric, "per_node", None)), *device_values]:
            if value is not None and (node_measurement := measurement(metric, value, device)) is not None:
                yield node_measurement


def keyed_measurements(metrics: Sequence[Any], field_name: str) -> Iterator[tuple[Any, Measurement]]:
    """Yields each measurement of ``per_container`` or ``per_process`` with the id of its container or process.

    Raises InvalidResponse.
    """
    for metric in metrics:
        for owner_id, value in _entries_of(metric, field_name):
            if (keyed_measurement := measurement(metric, value)) is not None:
                yield owner_id, keyed_measurement


def _entries_of(metric: Any, field_name: str) -> list[tuple[Any, Any]]:
    try:
        return list(dict(getattr(metric, field_name)).items())
    except (AttributeError, TypeError, ValueError):
        raise InvalidResponse(f"{metric!r:.60} is no measurement of v1: {field_name} is no mapping") from None


def _number_of(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidResponse(f"{key} is {value!r:.60}, which is no number") from None
