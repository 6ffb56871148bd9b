"""The use of devices that Accelerators show."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from ai.backend.common.ids import DeviceId
from ai.backend.kubeacc.crd.accelerators import Usage
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker
from ai.backend.kubeacc.node_plugin.measurements import DeviceMeasurements, UsageMeter, usage_of
from ai.backend.plugin.accelerator import Measurement
from tests.unit.kubeacc.node_plugin.devices import device

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def measured(key: str, value: float, unit: str, capacity: float | None = None) -> Measurement:
    return Measurement(key=key, value=value, unit_hint=unit, capacity=capacity, device_id=DeviceId("GPU-0"))


def test_a_use_is_what_the_plugin_measures_within_the_limits_of_the_resource() -> None:
    values = [
        measured("cuda_util", 75.0, "percent", 150.0),
        measured("cuda_mem_util", 9.0, "percent", 100.0),
        measured("cuda_mem", 2.0**60, "bytes"),
        measured("cuda_power", 251.26, "watt"),
        measured("cuda_temperature", 60.0, "celsius"),
        measured("cuda_hotspot", 81.0, "celsius"),
    ]
    usage = usage_of(values, NOW)
    assert usage == Usage(
        measured_at="2026-11-23T12:00:00Z",
        utilization_percent="50",
        memory_used_bytes=(1 << 53) - 1,
        power_watts="251.3",
        temperature_celsius="81",
    )
    msgspec.convert(msgspec.to_builtins(usage), Usage)  # raises beyond a limit
    assert usage_of([measured("other_reads", 1.0, "count")], NOW) is None


class Node:
    """Measures one device; ``utilization`` None: the plugin says nothing."""

    def __init__(self) -> None:
        self.utilization: float | None = 10.0
        self.now = NOW
        self.devices = [device("GPU-0")]
        self.changes = 0
        complete = asyncio.Event()
        complete.set()
        tracker = SimpleNamespace(plugin_keys=lambda: ["cuda"], devices=lambda key: self.devices, is_complete=complete)
        self.meter = UsageMeter(cast("DeviceTracker", tracker), cast("DeviceMeasurements", self), now=lambda: self.now)
        self.meter.changed = self._count

    def _count(self) -> None:
        self.changes += 1

    async def current(self) -> dict[str, Any]:
        if self.utilization is None:
            return {"cuda": ()}
        return {"cuda": [measured("cuda_util", self.utilization, "percent", 100.0)]}

    async def after(self, seconds: float, utilization: float | None) -> Usage | None:
        self.now += timedelta(seconds=seconds)
        self.utilization = utilization
        await self.meter.once()
        return self.meter.usage(("cuda", DeviceId("GPU-0")))


@pytest.fixture
def node() -> Node:
    return Node()


async def test_a_use_is_written_where_it_has_changed_and_now_and_then(node: Node) -> None:
    first = await node.after(0, 10.0)
    assert first is not None
    assert await node.after(60, 12.0) is first  # no write of the cluster for that
    second = await node.after(60, 90.0)
    assert second is not None
    assert second.utilization_percent == "90"
    third = await node.after(600, 90.0)
    assert third is not None
    assert third.measured_at == "2026-11-23T12:12:00Z"
    assert node.changes == 3


async def test_a_device_that_is_not_measured_keeps_its_last_use_until_it_is_gone(node: Node) -> None:
    first = await node.after(0, 10.0)
    assert await node.after(60, None) is first
    node.devices.clear()
    assert await node.after(60, None) is None
