"""Determines which devices count as healthy: a failure counts at once, a recovery only after it has lasted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.common.ids import DeviceId
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import DeviceHealthChange

STABLE_FIRST_S, STABLE_MAX_S = 1.0, 60.0
_RELAPSE_FACTOR = 10
"""A failure within this many settling times after a recovery doubles the settling time."""


@dataclass(slots=True)
class _Failure:
    """Holds the health state of a device that has failed.

    ``recovers_at`` is when it counts as healthy again if it stays so, ``recovered_at`` when it recovered.
    """

    reason: str
    stable_s: float
    recovers_at: float | None = None
    recovered_at: float | None = None


class DeviceHealthTracker:
    """Tracks the health of one plugin's devices. Times are arguments, in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._failures: dict[DeviceId, _Failure] = {}
        self._changes: dict[DeviceId, tuple[float, DeviceHealthChange]] = {}

    def on_change(self, change: DeviceHealthChange, now_s: float) -> None:
        """Records a change of a device's health that the plugin reported.

        The change counts until the devices are listed later. :meth:`retain` drops it if the device is not listed.
        """
        self._changes[change.device_id] = (now_s, change)
        self._record_health(change.device_id, change.health, change.reason, now_s)

    def evaluate(
        self, listed_devices: Iterable[ComputeDevice], listed_at: float, now: float
    ) -> tuple[ComputeDevice, ...]:
        """Returns the listed devices with their effective health.

        Health changes that were reported after ``listed_at`` override the listed health.
        """
        evaluated_devices = []
        for device in listed_devices:
            changed_at, change = self._changes.get(device.device_id, (listed_at, None))
            health, reason = device.health, device.health_reason
            if change is not None and changed_at >= listed_at:
                health, reason = change.health, change.reason
            self._record_health(device.device_id, health, reason, now)
            evaluated_devices.append(self._with_effective_health(device, now))
        return tuple(evaluated_devices)

    def retain(self, listed_ids: Iterable[DeviceId]) -> None:
        """Drops the health state of all devices except the listed ones."""
        device_ids = frozenset(listed_ids)
        self._failures = {
            device_id: failure for device_id, failure in self._failures.items() if device_id in device_ids
        }
        self._changes = {device_id: change for device_id, change in self._changes.items() if device_id in device_ids}

    def due(self) -> float | None:
        """Returns the time at which the next device may recover; None if no device is recovering."""
        if not self._failures:
            return None
        return min(
            (failure.recovers_at for failure in self._failures.values() if failure.recovers_at is not None),
            default=None,
        )

    def _record_health(self, device_id: DeviceId, health: DeviceHealth, reason: str, now: float) -> None:
        failure = self._failures.get(device_id)
        if health is DeviceHealth.HEALTHY:
            if failure is not None and failure.recovers_at is None and failure.recovered_at is None:
                failure.recovers_at = now + failure.stable_s
            return
        if failure is None:
            self._failures[device_id] = _Failure(reason, STABLE_FIRST_S)
        elif failure.recovered_at is not None:
            is_relapse = now - failure.recovered_at < _RELAPSE_FACTOR * failure.stable_s
            stable_s = min(2 * failure.stable_s, STABLE_MAX_S) if is_relapse else STABLE_FIRST_S
            self._failures[device_id] = _Failure(reason, stable_s)
        else:
            failure.recovers_at = None
            failure.reason = failure.reason or reason

    def _with_effective_health(self, device: ComputeDevice, now: float) -> ComputeDevice:
        failure = self._failures.get(device.device_id)
        if failure is not None and failure.recovers_at is not None and now >= failure.recovers_at:
            failure.recovers_at, failure.recovered_at = None, now
        if failure is None or failure.recovered_at is not None:
            health, reason = DeviceHealth.HEALTHY, ""
        else:
            health, reason = DeviceHealth.UNHEALTHY, failure.reason
        if (device.health, device.health_reason) == (health, reason):
            return device
        return replace(device, health=health, health_reason=reason)
