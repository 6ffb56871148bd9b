"""Measures the devices of plugins without a running agent, for `backend.ai accelerator top`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from operator import methodcaller

from ai.backend.agent.devices.kinds import DeviceKind
from ai.backend.agent.metrics.series import Metric, Series
from ai.backend.common.errors import BackendError
from ai.backend.plugin.accelerator import MetricKind, StatContext, responses
from ai.backend.pluginhost.handle import PluginHandle

SECOND_READING_DELAY_S = 0.5


async def device_metrics(handle: PluginHandle, kind: DeviceKind) -> Mapping[str, Mapping[str, Metric]]:
    """Returns the present metrics of each device of a plugin: device -> key -> metric, empty if the plugin fails.

    Where a metric is a rate, or accumulates, the plugin is asked twice.
    """
    device_ids = {str(device.device_id) for device in kind.devices}
    series: dict[tuple[str, str], Series] = {}
    metrics: dict[str, dict[str, Metric]] = {}
    measurements_filter = responses.MeasurementFilter()
    for _ in range(2):
        context, now = StatContext(at=time.time()), time.monotonic()
        try:
            answer = await handle.call("gather_node_metrics", methodcaller("gather_node_metrics", context))
        except BackendError:
            return metrics
        measurements = [
            measurement
            for measurement in measurements_filter.filter_measurements(answer, device_ids)
            if measurement.device_id is not None
        ]
        for measurement in measurements:
            device_id = str(measurement.device_id)
            metric = series.setdefault((device_id, measurement.key), Series()).add(measurement, now)
            metrics.setdefault(device_id, {})[measurement.key] = metric
        if all(measurement.kind is MetricKind.GAUGE for measurement in measurements):
            break
        await asyncio.sleep(SECOND_READING_DELAY_S)
    handle.complain("statistics", measurements_filter.reason and f"statistics: {measurements_filter.reason}")
    return metrics
