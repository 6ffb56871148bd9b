"""Measures the devices of this node through their plugins."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import methodcaller
from typing import Any

import msgspec

from ai.backend.common.errors import BackendError
from ai.backend.common.ids import DeviceId
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.kubeacc.crd.accelerators import Usage
from ai.backend.kubeacc.node_plugin.devices import DeviceKey, DeviceTracker
from ai.backend.plugin.accelerator import Measurement, StatContext, responses
from ai.backend.plugin.accelerator.shapes import InvalidResponse

log = logging.getLogger(__name__)
_FRESH_S = 5.0
"""The least seconds between two queries of a plugin, no matter how often the measurements are read."""
_REPEAT_S = 600.0
"""A use that stays the same is reported anew after so long, so that its time tells whether it is still measured."""
_MAX_BYTES, _MAX_NUMBER = (1 << 53) - 1, 1e12
_STEPS = {"utilization_percent": 5.0, "memory_used_bytes": float(64 << 20), "power_watts": 5.0}
_DEFAULT_STEP = 2.0
"""Smaller changes of a value are not reported: each report is a write of the cluster."""


class DeviceMeasurements:
    """Queries all plugins for the measurements of their devices."""

    def __init__(self, tracker: DeviceTracker) -> None:
        self._tracker = tracker
        self._filters: dict[str, responses.MeasurementFilter] = {}
        self._measurements: dict[str, Sequence[Measurement]] = {}
        self._measured_at = float("-inf")
        self._measuring = asyncio.Lock()

    @property
    def last(self) -> Mapping[str, Sequence[Measurement]]:
        """Returns the last measurements by plugin."""
        return self._measurements

    async def current(self) -> Mapping[str, Sequence[Measurement]]:
        """Returns the measurements of devices by plugin. Queries the plugins unless the last answers are fresh."""
        async with self._measuring:
            now = asyncio.get_running_loop().time()
            if now - self._measured_at >= _FRESH_S:
                self._measured_at = now
                keys = self._tracker.plugin_keys()
                answers = await asyncio.gather(*(self._query_plugin(key) for key in keys))
                self._measurements = dict(zip(keys, answers, strict=True))
        return self._measurements

    async def _query_plugin(self, key: str) -> Sequence[Measurement]:
        plugin_handle = self._tracker.plugin_handle(key)
        if plugin_handle is None:
            return ()
        measurement_filter = self._filters.setdefault(key, responses.MeasurementFilter())
        measurement_filter.begin()
        context = StatContext(at=time.time())
        try:
            answer = await plugin_handle.call(
                "gather_node_metrics", methodcaller("gather_node_metrics", context), check=_checked_list
            )
        except BackendError as e:
            log.warning("the devices of %s are not measured: %s", key, e.message)
            return ()
        measurements = measurement_filter.filter_measurements(
            answer, {device.device_id for device in self._tracker.devices(key)}
        )
        plugin_handle.complain("statistics", measurement_filter.reason and f"statistics: {measurement_filter.reason}")
        return [measurement for measurement in measurements if measurement.device_id is not None]


def _checked_list(answer: Any) -> Sequence[Any]:
    if not isinstance(answer, list | tuple):
        raise InvalidResponse(f"no list of measurements: {answer!r:.100}")
    return answer


class UsageMeter(PeriodicLoop):
    """Tracks the use of each device for its Accelerator, which ``kubectl accelerators top`` shows (decision 0548).

    A use is replaced where a value has changed noticeably; ``changed`` is called then. A device that its plugin does
    not measure any more keeps the last use, whose time tells its age."""

    period_s = 60.0

    def __init__(
        self,
        tracker: DeviceTracker,
        measurements: DeviceMeasurements,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._tracker, self._measurements, self._now = tracker, measurements, now
        self._usage: dict[DeviceKey, Usage] = {}
        self.changed: Callable[[], None] = lambda: None

    def usage(self, key: DeviceKey) -> Usage | None:
        """Returns the last measured use of a device. Returns None if it was not measured since the start."""
        return self._usage.get(key)

    async def once(self) -> None:
        await self._tracker.is_complete.wait()
        is_changed = False
        for plugin, measurements in (await self._measurements.current()).items():
            measurements_by_device: dict[DeviceId, list[Measurement]] = {}
            for measurement in measurements:
                if measurement.device_id is not None:
                    measurements_by_device.setdefault(measurement.device_id, []).append(measurement)
            for device_id, device_measurements in measurements_by_device.items():
                usage = usage_of(device_measurements, self._now())
                if usage is not None and _is_reportable(self._usage.get((plugin, device_id)), usage):
                    self._usage[plugin, device_id] = usage
                    is_changed = True
        listed_keys = {
            (key, device.device_id) for key in self._tracker.plugin_keys() for device in self._tracker.devices(key)
        }
        for removed_key in self._usage.keys() - listed_keys:
            del self._usage[removed_key]
        if is_changed:
            self.changed()


def usage_of(measurements: Iterable[Measurement], measured_at: datetime) -> Usage | None:
    """Returns the use of one device from its measurements. Returns None if no measurement fits ``Usage``."""
    usage_values: dict[str, float] = {}
    for measurement in measurements:
        if (
            measurement.unit_hint == "percent"
            and measurement.key.endswith("_util")
            and not measurement.key.endswith("_mem_util")
        ):
            usage_values["utilization_percent"] = (
                measurement.value * 100.0 / measurement.capacity if measurement.capacity else measurement.value
            )
        elif measurement.unit_hint == "bytes" and measurement.key.endswith("_mem"):
            usage_values["memory_used_bytes"] = measurement.value
        elif measurement.unit_hint == "watt":
            usage_values.setdefault("power_watts", measurement.value)
        elif measurement.unit_hint == "celsius":
            usage_values["temperature_celsius"] = max(measurement.value, usage_values.get("temperature_celsius", 0.0))
    if not usage_values:
        return None
    memory = usage_values.pop("memory_used_bytes", None)
    return Usage(
        measured_at=measured_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        memory_used_bytes=None if memory is None else int(min(memory, _MAX_BYTES)),
        **{name: f"{min(value, _MAX_NUMBER):.1f}".removesuffix(".0") for name, value in usage_values.items()},
    )


def _is_reportable(last_usage: Usage | None, new_usage: Usage) -> bool:
    if last_usage is None:
        return True
    age_s = (
        datetime.fromisoformat(new_usage.measured_at) - datetime.fromisoformat(last_usage.measured_at)
    ).total_seconds()
    if abs(age_s) >= _REPEAT_S:
        return True
    old_values, new_values = msgspec.structs.asdict(last_usage), msgspec.structs.asdict(new_usage)
    for name in old_values.keys() - {"measured_at"}:
        if (old_values[name] is None) != (new_values[name] is None):
            return True
        if old_values[name] is not None and abs(float(new_values[name]) - float(old_values[name])) >= _STEPS.get(
            name, _DEFAULT_STEP
        ):
            return True
    return False
