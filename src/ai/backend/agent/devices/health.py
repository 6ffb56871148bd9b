"""Which devices count as healthy: bad news holds at once, good news only once it has lasted.

A device that flips many times a second is therefore one failure and, when it has calmed down, one recovery: what is
told to the manager, the scheduler and the users does not grow with the number of flips.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ai.backend.common.devices import ComputeDevice, DeviceHealth
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import DeviceHealthChange

SETTLE_FIRST_S, SETTLE_MAX_S = 1.0, 60.0
_RELAPSE = 10
"""A failure within so many settling times after a recovery doubles the settling time."""


@dataclass(slots=True)
class _Case:
    """A device that failed. ``back_at``: when it is given back if it stays well; None while it is bad.

    ``returned_at``: when it was given back; None while it is withheld. ``reason`` is the first of this failure.
    """

    reason: str
    settle_s: float
    back_at: float | None = None
    returned_at: float | None = None


class DeviceHealthTracker:
    """The health of one plugin's devices over time. Pure: times are arguments, in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._cases: dict[DeviceId, _Case] = {}
        self._heard: dict[DeviceId, tuple[float, DeviceHealthChange]] = {}

    def hear(self, change: DeviceHealthChange, now: float) -> None:
        """Note news of a device. Call only with ids that :meth:`judge` sees: they are kept."""
        self._heard[change.device_id] = (now, change)
        self._see(change.device_id, change.health, change.reason, now)

    def judge(self, answered: Iterable[ComputeDevice], asked_at: float, now: float) -> tuple[ComputeDevice, ...]:
        """The devices as they are to be treated.

        Args:
            answered: what ``list_devices`` said.
            asked_at: when it was asked; news that came after that are newer than the answer.
            now: the time.
        """
        judged = []
        for device in answered:
            at, change = self._heard.get(device.device_id, (asked_at, None))
            health, reason = device.health, device.health_reason
            if change is not None and at >= asked_at:
                health, reason = change.health, change.reason
            self._see(device.device_id, health, reason, now)
            judged.append(self._treated(device, now))
        return tuple(judged)

    def forget_others(self, known: Iterable[DeviceId]) -> None:
        """Drop what is known of devices that are gone."""
        kept = frozenset(known)
        self._cases = {i: c for i, c in self._cases.items() if i in kept}
        self._heard = {i: h for i, h in self._heard.items() if i in kept}

    def due(self) -> float | None:
        """When the next device may be given back; None if none is waiting for that."""
        return min((c.back_at for c in self._cases.values() if c.back_at is not None), default=None)

    def _see(self, device_id: DeviceId, health: DeviceHealth, reason: str, now: float) -> None:
        case = self._cases.get(device_id)
        if health is DeviceHealth.HEALTHY:
            if case is not None and case.back_at is None and case.returned_at is None:
                case.back_at = now + case.settle_s
            return
        if case is None:
            self._cases[device_id] = _Case(reason, SETTLE_FIRST_S)
        elif case.returned_at is not None:
            is_relapse = now - case.returned_at < _RELAPSE * case.settle_s
            settle_s = min(2 * case.settle_s, SETTLE_MAX_S) if is_relapse else SETTLE_FIRST_S
            self._cases[device_id] = _Case(reason, settle_s)
        else:
            case.back_at = None
            case.reason = case.reason or reason

    def _treated(self, device: ComputeDevice, now: float) -> ComputeDevice:
        case = self._cases.get(device.device_id)
        if case is not None and case.back_at is not None and now >= case.back_at:
            case.back_at, case.returned_at = None, now
        if case is None or case.returned_at is not None:
            health, reason = DeviceHealth.HEALTHY, ""
        else:
            health, reason = DeviceHealth.UNHEALTHY, case.reason
        if (device.health, device.health_reason) == (health, reason):
            return device
        return replace(device, health=health, health_reason=reason)
