"""Keeps the recent metrics of sessions and agents in bounded memory: an hour by 5 seconds and a day by minutes.

The history is this process's own: it begins anew with the manager, and another manager has that of its own agents.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from pydantic import Field, SecretStr

from ai.backend.infra.settings import Settings

Span = Literal["hour", "day"]
RING_SIZES: Mapping[Span, tuple[int, int]] = {"hour": (5, 720), "day": (60, 1440)}
"""The length of a step in seconds, and the number of steps that are kept."""
BYTES_OF_SERIES = sum(steps for _, steps in RING_SIZES.values()) * 4
_MAX_METRICS = 64
"""The maximum number of metrics of one kernel or agent; further metrics are not kept."""
_MAX_NAME_LENGTH = 128
_ACTIVE_SERIES_S = 120.0
"""Seconds since its last report within which a series is not replaced by a new series."""
_NO_VALUE = float("nan")


class _Ring:
    """Holds the values of one metric over time: for each step, the last value that was reported in that step.

    Steps without a value are gaps.
    """

    __slots__ = ("newest", "step_s", "steps", "values")

    def __init__(self, step_s: int, steps: int) -> None:
        self.step_s = step_s
        self.steps = steps
        self.newest = -1
        self.values = array("f")

    def put(self, at_s: float, value: float) -> None:
        step = int(at_s // self.step_s)
        if self.newest < 0 or step - self.newest >= self.steps:
            self.values = array("f", [value])
        elif step > self.newest:
            self.values.extend([_NO_VALUE] * (step - self.newest - 1) + [value])
            if len(self.values) > self.steps + self.steps // 8:
                del self.values[: len(self.values) - self.steps]
        elif self.newest - step < len(self.values):
            self.values[len(self.values) - 1 - (self.newest - step)] = value
            return
        else:
            return  # older than everything that is kept
        self.newest = step

    def read(self, now_s: float) -> list[float | None]:
        """Returns the values of all steps up to now, the oldest first; the last value may still change."""
        last_step = int(now_s // self.step_s)
        values: list[float | None] = [None] * self.steps
        last_index = self.steps - 1 - (last_step - self.newest)
        for steps_back, value in enumerate(reversed(self.values)):
            index = last_index - steps_back
            if 0 <= index < self.steps:
                values[index] = None if math.isnan(value) else value
        return values


@dataclass(slots=True)
class _SubjectHistory:
    """Holds the values of the metrics of one kernel or agent, by the name of the metric and the span."""

    updated_s: float = 0.0
    series: dict[str, dict[Span, _Ring]] = field(default_factory=dict)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the values of all metrics of one kernel or agent, with one value for each step of ``step_s`` seconds.

    ``end_s`` is the end of the last step in seconds since the epoch; a value is None where nothing was reported.
    """

    step_s: int
    end_s: int
    metrics: Mapping[str, Sequence[float | None]]


class MetricHistory:
    """Keeps the recent values of the metrics of kernels and agents, in at most ``max_bytes`` of memory.

    If there is no room, the series that was silent for longest is dropped; if all series are in use, new ones are not
    kept.
    """

    def __init__(self, *, max_bytes: int = 64 << 20, wall_clock: Callable[[], float] = time.time) -> None:
        self._max_series = max(1, max_bytes // BYTES_OF_SERIES)
        self._wall_clock = wall_clock
        self._subjects: dict[str, _SubjectHistory] = {}
        self._count = 0

    def put(self, subject_id: str, values: Mapping[str, float]) -> None:
        """Records the present value of each metric of a kernel or agent.

        ``values`` has the values by the names of the metrics.
        """
        now_s = self._wall_clock()
        subject = self._subjects.pop(subject_id, None) or _SubjectHistory()
        for name, value in values.items():
            rings = subject.series.get(name)
            if rings is None:
                if len(subject.series) >= _MAX_METRICS or not self._has_room(now_s):
                    continue
                rings = subject.series[name] = {span: _Ring(*ring_size) for span, ring_size in RING_SIZES.items()}
                self._count += 1
            for ring in rings.values():
                ring.put(now_s, value)
        if subject.series:
            subject.updated_s = now_s
            self._subjects[subject_id] = subject  # at the end: the first is the one that was silent for longest

    def _has_room(self, now_s: float) -> bool:
        while self._count >= self._max_series and self._subjects:
            oldest_id = next(iter(self._subjects))
            if now_s - self._subjects[oldest_id].updated_s < _ACTIVE_SERIES_S:
                return False
            self._count -= len(self._subjects.pop(oldest_id).series)
        return self._count < self._max_series

    def read(self, subject_id: str, span: Span) -> Series:
        """Returns the history of a kernel or agent, which has no metrics if nothing was recorded."""
        step_s, _ = RING_SIZES[span]
        now_s = self._wall_clock()
        subject = self._subjects.get(subject_id)
        series = subject.series if subject is not None else {}
        return Series(
            step_s=step_s,
            end_s=(int(now_s // step_s) + 1) * step_s,
            metrics={name: rings[span].read(now_s) for name, rings in sorted(series.items())},
        )


def numbers_of(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields the name and the current value of each metric; metrics without a finite number are left out."""
    for name, metric in metrics.items():
        try:
            value = float(metric["current"])
        except (KeyError, TypeError, ValueError):
            continue
        if math.isfinite(value) and len(prefix) + len(name) <= _MAX_NAME_LENGTH:
            yield prefix + name, value


def numbers_of_agent(node: Mapping[str, Any], devices: Mapping[str, Any]) -> dict[str, float]:
    """Returns the present values of a node and of its devices; a value of a device is named ``metric/device``."""
    values = dict(numbers_of(node))
    for name, metric_of_device in devices.items():
        if isinstance(metric_of_device, Mapping):
            for device, metric in metric_of_device.items():
                values.update(numbers_of({f"{name}/{device}": metric}))
    return values


class MetricSettings(Settings):
    """The history of sessions and agents, which is kept in memory, and what Prometheus may ask for."""

    history_mib: int = Field(
        64,
        ge=1,
        le=65_536,
        description="Memory for the last day of sessions and agents, in MiB; one metric takes 9 kB.",
    )
    targets_token: SecretStr | None = Field(
        None, description="The bearer token with which Prometheus lists what it scrapes; unset: nobody does."
    )
