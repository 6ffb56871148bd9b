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
                answers = await asyncio.gather(*(self._ask(key) for key in keys))
                self._measurements = dict(zip(keys, answers, strict=True))
        return self._measurements

    async def _ask(self, key: str) -> Sequence[Measurement]:
        handle = self._tracker.handle(key)
        if handle is None:
            return ()
        usable = self._filters.setdefault(key, responses.MeasurementFilter())
        usable.begin()
        context = StatContext(at=time.time())
        try:
            answer = await handle.call(
                "gather_node_metrics", methodcaller("gather_node_metrics", context), check=_checked_list
            )
        except BackendError as e:
            log.warning("the devices of %s are not measured: %s", key, e.message)
            return ()
        measurements = usable.filter_measurements(answer, {device.device_id for device in self._tracker.devices(key)})
        handle.complain("statistics", usable.reason and f"statistics: {usable.reason}")
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
            by_device: dict[DeviceId, list[Measurement]] = {}
            for measurement in measurements:
                if measurement.device_id is not None:
                    by_device.setdefault(measurement.device_id, []).append(measurement)
            for device_id, own in by_device.items():
                usage = usage_of(own, self._now())
                if usage is not None and _is_news(self._usage.get((plugin, device_id)), usage):
                    self._usage[plugin, device_id] = usage
                    is_changed = True
        listed = {
            (key, device.device_id) for key in self._tracker.plugin_keys() for device in self._tracker.devices(key)
        }
        for gone in self._usage.keys() - listed:
            del self._usage[gone]
        if is_changed:
            self.changed()


def usage_of(measurements: Iterable[Measurement], at: datetime) -> Usage | None:
    """Returns the use of one device from its measurements. Returns None if no measurement fits ``Usage``."""
    values: dict[str, float] = {}
    for one in measurements:
        if one.unit_hint == "percent" and one.key.endswith("_util") and not one.key.endswith("_mem_util"):
            values["utilization_percent"] = one.value * 100.0 / one.capacity if one.capacity else one.value
        elif one.unit_hint == "bytes" and one.key.endswith("_mem"):
            values["memory_used_bytes"] = one.value
        elif one.unit_hint == "watt":
            values.setdefault("power_watts", one.value)
        elif one.unit_hint == "celsius":
            values["temperature_celsius"] = max(one.value, values.get("temperature_celsius", 0.0))
    if not values:
        return None
    memory = values.pop("memory_used_bytes", None)
    return Usage(
        measured_at=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        memory_used_bytes=None if memory is None else int(min(memory, _MAX_BYTES)),
        **{name: f"{min(value, _MAX_NUMBER):.1f}".removesuffix(".0") for name, value in values.items()},
    )


def _is_news(before: Usage | None, after: Usage) -> bool:
    if before is None:
        return True
    age_s = (datetime.fromisoformat(after.measured_at) - datetime.fromisoformat(before.measured_at)).total_seconds()
    if abs(age_s) >= _REPEAT_S:
        return True
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    for name in old.keys() - {"measured_at"}:
        if (old[name] is None) != (new[name] is None):
            return True
        if old[name] is not None and abs(float(new[name]) - float(old[name])) >= _STEPS.get(name, _DEFAULT_STEP):
            return True
    return False
