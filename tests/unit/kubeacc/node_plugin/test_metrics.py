"""Metrics of devices and of the pods that hold them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ai.backend.kubeacc.node_plugin.devices import DeviceTracker
from ai.backend.kubeacc.node_plugin.holders import Holders, PodHolder
from ai.backend.kubeacc.node_plugin.measurements import DeviceMeasurements
from ai.backend.kubeacc.node_plugin.metrics import DeviceMetrics
from ai.backend.plugin.accelerator import Measurement
from tests.unit.kubeacc.node_plugin.devices import device, failed


class Plugin:
    """Answers with one good measurement, and one of a device that nobody knows."""

    def __init__(self) -> None:
        self.asked = 0
        self.faults: list[str | None] = []

    async def call(self, _kind: str, _call: Any, *, check: Any) -> list[Measurement]:
        self.asked += 1
        values = {"GPU-1": 40.0, "GPU-unknown": 1.0}
        return [
            Measurement(key="mock_util", value=value, unit_hint="percent", device_id=cast("Any", name))
            for name, value in values.items()
        ]

    def complain(self, _kind: str, reason: str | None) -> None:
        self.faults.append(reason)


def parts(plugin: Plugin) -> tuple[DeviceTracker, Holders, DeviceMeasurements]:
    complete = asyncio.Event()
    complete.set()
    tracker = SimpleNamespace(
        plugin_keys=lambda: ["mock"],
        devices=lambda key: (device("GPU-0"), device("GPU-1"), failed(device("GPU-2"), "Xid")),
        plugin_handle=lambda key: plugin,
        is_complete=complete,
    )
    held = {("mock", "GPU-1"): (PodHolder("lab", 'a"b', "main", "claim"),)}
    made = cast("DeviceTracker", tracker)
    return made, cast("Holders", SimpleNamespace(holders=held)), DeviceMeasurements(made)


async def test_a_device_is_joined_with_the_pod_that_holds_it() -> None:
    plugin = Plugin()
    metrics = DeviceMetrics(*parts(plugin))
    gauges = await metrics.measure()
    assert gauges == {"devices": 3, "healthy_devices": 2, "held_devices": 1}
    families = {family.name: family for family in metrics.families()}
    (measured,) = families["backendai_device_mock_util_ratio"].samples
    (held,) = families["backendai_pod_device"].samples
    assert (measured.labels["device_id"], measured.labels["index"], measured.value) == ("GPU-1", "1", 0.4)
    assert held.labels == {
        "namespace": "lab",
        "pod": 'a"b',
        "container": "main",
        "claim": "claim",
        "device_name": "mock",
        "device_id": "GPU-1",
    }
    assert plugin.faults == ["statistics: mock_util is of the unknown device 'GPU-unknown'"]


async def test_many_readers_ask_the_plugin_once() -> None:
    plugin = Plugin()
    metrics = DeviceMetrics(*parts(plugin))
    await asyncio.gather(*(metrics.measure() for _ in range(20)))
    assert plugin.asked == 1
