"""Bad news of a device holds at once, good news once it has lasted."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ai.backend.common.devices import ComputeDevice, DeviceHealth, DeviceSlot
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import DeviceHealthChange
from ai.backend.pluginhost.health import STABLE_FIRST_S, STABLE_MAX_S, DeviceHealthTracker

H, U = DeviceHealth.HEALTHY, DeviceHealth.UNHEALTHY
ID = DeviceId("0")


def device(health: DeviceHealth = H, reason: str = "") -> ComputeDevice:
    slot = DeviceSlot(slot_name=SlotName("x.device"), slot_type=SlotType.COUNT, amount=Decimal(1))
    return ComputeDevice(
        device_name=DeviceName("x"), device_id=ID, hw_location="0", slots=(slot,), health=health, health_reason=reason
    )


def change(health: DeviceHealth, reason: str = "") -> DeviceHealthChange:
    return DeviceHealthChange(device_id=ID, health=health, reason=reason)


def state(
    tracker: DeviceHealthTracker, now: float, *, asked_at: float = 0.0, answered: DeviceHealth = H
) -> tuple[str, str]:
    (found,) = tracker.evaluate([device(answered, "broken" if answered is U else "")], asked_at, now)
    return found.health.value, found.health_reason


def test_news_that_came_after_the_question_are_newer_than_the_answer() -> None:
    tracker = DeviceHealthTracker()
    tracker.on_change(change(U, "Xid 79"), 10.0)
    assert state(tracker, 10.0, asked_at=9.9) == ("unhealthy", "Xid 79")


def test_an_answer_to_a_later_question_is_the_truth() -> None:
    tracker = DeviceHealthTracker()
    tracker.on_change(change(U, "Xid 79"), 10.0)
    assert state(tracker, 10.2, asked_at=10.1) == ("unhealthy", "Xid 79"), "good news must last first"
    assert tracker.due() == 10.2 + STABLE_FIRST_S
    assert state(tracker, 10.2 + STABLE_FIRST_S, asked_at=10.1) == ("healthy", "")
    assert tracker.due() is None


def test_a_device_that_flips_stays_out_until_it_calms_down_with_its_first_reason() -> None:
    tracker = DeviceHealthTracker()
    seen = set()
    for n in range(500):
        now = 10 + n / 100
        tracker.on_change(change(U if n % 2 == 0 else H, f"reason {n}" if n % 2 == 0 else ""), now)
        seen.add(state(tracker, now))
    assert seen == {("unhealthy", "reason 0")}
    assert state(tracker, 14.99 + STABLE_FIRST_S) == ("healthy", "")


def test_relapses_settle_ever_longer_and_a_long_good_time_is_credited() -> None:
    tracker, now, waits = DeviceHealthTracker(), 10.0, []
    for _ in range(10):
        tracker.on_change(change(U, "again"), now)
        tracker.on_change(change(H), now)
        due = tracker.due()
        assert due is not None
        waits.append(due - now)
        now = due
        assert state(tracker, now) == ("healthy", "")
        now += 0.1
    assert waits[:4] == pytest.approx([1, 2, 4, 8])
    assert max(waits) == pytest.approx(STABLE_MAX_S)
    tracker.on_change(change(U, "again"), now + 3600)
    tracker.on_change(change(H), now + 3600)
    assert tracker.due() == pytest.approx(now + 3600 + STABLE_FIRST_S)


def test_a_device_that_is_gone_is_forgotten() -> None:
    tracker = DeviceHealthTracker()
    tracker.on_change(change(U, "Xid 79"), 10.0)
    tracker.retain([])
    assert state(tracker, 10.0) == ("healthy", "")


def test_what_the_plugin_lists_as_failed_needs_no_news() -> None:
    tracker = DeviceHealthTracker()
    assert state(tracker, 1.0, answered=U) == ("unhealthy", "broken")
    assert state(tracker, 2.0) == ("unhealthy", "broken")
    assert state(tracker, 3.0) == ("healthy", "")
