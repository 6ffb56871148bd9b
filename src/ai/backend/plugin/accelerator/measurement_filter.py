"""Removes unusable measurements of a source, and reports why."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from numbers import Real
from typing import Any

from ai.backend.plugin.accelerator import STATS, UNITS, Measurement, MetricKind

KEYS_LIMIT = 64
"""Names of metrics that one source may have in its life: each is a series in every monitoring system."""
PER_ANSWER_LIMIT = 8192
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class MeasurementFilter:
    """Checks the measurements of one source. Remembers its keys, so that it cannot invent new ones for ever."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self.reason: str | None = None
        """The first complaint since :meth:`begin`."""

    def begin(self) -> None:
        self.reason = None

    def passed(self, measurements: Iterable[Measurement], devices: Collection[str] | None = None) -> list[Measurement]:
        """Returns the usable measurements. ``devices``: the ids that they may speak of; None: any."""
        good: list[Measurement] = []
        for number, m in enumerate(measurements):
            if number >= PER_ANSWER_LIMIT:
                self.complain(f"more than {PER_ANSWER_LIMIT} measurements in one answer")
                break
            fault = self._fault(m, devices)
            if fault is None:
                good.append(m)
            else:
                self.complain(fault)
        return good

    def complain(self, fault: str) -> None:
        self.reason = self.reason or fault

    def _fault(self, given: object, devices: Collection[str] | None) -> str | None:
        m: Any = given  # what a plugin put into the fields is not what their types say
        if not isinstance(given, Measurement):
            return f"{type(m).__name__} is no measurement"
        if not isinstance(m.stats, frozenset) or not isinstance(m.unit_hint, str):
            return f"{_shown(m.key)} has a malformed unit or malformed stats"
        if (fault := self._fault_of_key(m.key)) is not None:
            return fault
        value = m.value
        if not _is_number(value):
            return f"{m.key} is {_shown(value)}, not a finite number from 0 on"
        if m.capacity is not None and not _is_number(m.capacity):
            return f"the capacity of {m.key} is {_shown(m.capacity)}, not a finite number from 0 on"
        if m.unit_hint not in UNITS:
            return f"{m.key} has the unknown unit {_shown(m.unit_hint)}"
        if m.kind not in _KINDS:
            return f"{m.key} is of the unknown kind {_shown(m.kind)}"
        if not m.stats <= STATS:
            return f"{m.key} wants unknown stats: {', '.join(sorted(map(_shown, m.stats - STATS)))}"
        if devices is not None and m.device_id is not None and m.device_id not in devices:
            return f"{m.key} is of the unknown device {_shown(m.device_id)}"
        return None

    def _fault_of_key(self, key: object) -> str | None:
        if isinstance(key, str) and key in self._keys:
            return None
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            return f"{_shown(key)} is no name for a metric"
        if len(self._keys) >= KEYS_LIMIT:
            return f"more than {KEYS_LIMIT} different metrics; {key} and later ones are left out"
        self._keys.add(key)
        return None


_KINDS = frozenset(MetricKind)
_LARGEST = 1e300


def _is_number(value: Any) -> bool:
    is_real = type(value) in (float, int) or (type(value) is not bool and isinstance(value, Real))
    return bool(is_real and 0 <= value <= _LARGEST)


def _shown(value: object) -> str:
    return repr(value)[:80]
