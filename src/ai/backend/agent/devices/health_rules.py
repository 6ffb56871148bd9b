"""Cordons devices that fail again and again, so that sessions are not put onto them each time they recover."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from ai.backend.agent.config.settings import DeviceCordonSettings
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import DeviceId
from ai.backend.common.wire.agent import OperateDevice

log = logging.getLogger(__name__)
_MAX_DEVICES = 4096
Key = tuple[str, DeviceId]


class HealthRules:
    """Counts failures of devices, and cordons a device that fails as often as the settings allow within some time."""

    def __init__(
        self, settings: DeviceCordonSettings, operations: DeviceOperations, *, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._operations = operations
        self._clock = clock
        self._failures: dict[Key, deque[float]] = {}

    def on_failure(self, plugin_key: str, device_id: DeviceId) -> None:
        """Records the time at which a device has failed."""
        if not self._settings.failures:
            return
        if len(self._failures) >= _MAX_DEVICES:
            self._failures.clear()
        failure_times = self._failures.setdefault((plugin_key, device_id), deque(maxlen=self._settings.failures))
        failure_times.append(self._clock())

    async def apply(self) -> None:
        """Cordons each device whose failures have reached the limit of the settings, and then counts its failures from
        zero.
        """
        cordon_settings, now = self._settings, self._clock()
        failing_devices = [
            key
            for key, failure_times in self._failures.items()
            if len(failure_times) == cordon_settings.failures and now - failure_times[0] <= cordon_settings.within
        ]
        for plugin_key, device_id in failing_devices:
            if self._operations.is_cordoned(plugin_key, device_id):  # an operator's cordon has no end of ours
                continue
            failure_times = self._failures[plugin_key, device_id]
            reason = f"failed {cordon_settings.failures} times within {failure_times[-1] - failure_times[0]:.0f} s"
            log.warning("the device %s of %s is cordoned: it has %s", device_id, plugin_key, reason)
            operation = OperateDevice(
                device_name=plugin_key,
                device_id=device_id,
                action="cordon",
                argument=reason,
                expires_after_s=cordon_settings.duration,
            )
            try:
                await self._operations.operate(operation)
            except BackendError as e:
                log.warning("the device %s of %s is not cordoned: %s", device_id, plugin_key, e.message)
            else:
                self._failures.pop((plugin_key, device_id), None)
