"""Checks metrics: their units, names and ranges, and that the set of names stays the same."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement, MetricKind, StatContext, responses
from ai.backend.plugin.accelerator.responses import MeasurementFilter
from ai.backend.plugin.testing.accelerator.checks.registry import Checks, NotApplicable, expect
from ai.backend.plugin.testing.accelerator.checks.subject import KERNEL, Subject

CHECKS = Checks()
_METRICS_SOURCE = "spec 00, metrics; Measurement"
_ROUND_TIMES = (1000.0, 1005.0, 1010.0)


def check_measurements(description: str, measurements: Sequence[Measurement], devices: Collection[DeviceId]) -> None:
    """Checks that the agent accepts all measurements. Raises CheckFailed."""
    measurement_filter = MeasurementFilter()
    measurement_filter.filter_measurements(measurements, devices)
    expect(measurement_filter.reason is None, f"{description}: {measurement_filter.reason}")
    seen_metrics: set[tuple[str, DeviceId | None]] = set()
    for measurement in measurements:
        metric_text = f"{description}: {measurement.key}" + (
            f" of {measurement.device_id}" if measurement.device_id else ""
        )
        expect((measurement.key, measurement.device_id) not in seen_metrics, f"{metric_text} is there twice")
        seen_metrics.add((measurement.key, measurement.device_id))
        if measurement.capacity is not None:
            expect(measurement.capacity > 0, f"{metric_text} has the capacity {measurement.capacity}")
            exceeds_capacity = measurement.kind is MetricKind.GAUGE and measurement.value > measurement.capacity * 1.001
            expect(not exceeds_capacity, f"{metric_text} is {measurement.value} of {measurement.capacity}")
    for metric_key in {measurement.key for measurement in measurements}:
        units = {
            (measurement.unit_hint, measurement.kind) for measurement in measurements if measurement.key == metric_key
        }
        expect(len(units) == 1, f"{description}: {metric_key} has several units or kinds: {sorted(units)}")


@CHECKS.add(_METRICS_SOURCE)
async def node_metrics_are_well_formed(subject: Subject) -> None:
    """Names are slugs, units are known, values are finite, from 0 on, and within their capacity."""
    devices = {device.device_id for device in await subject.devices()}
    for round_time in _ROUND_TIMES:
        measurements = await subject.call("gather_node_metrics", StatContext(at=round_time))
        check_measurements("gather_node_metrics", measurements, devices)


@CHECKS.add(_METRICS_SOURCE)
async def the_names_of_metrics_stay(subject: Subject) -> None:
    """From the second round on, each round has the same names: each is a series in a monitoring system."""
    names_by_round = []
    for round_time in _ROUND_TIMES:
        measurements = await subject.call("gather_node_metrics", StatContext(at=round_time))
        names_by_round.append({(measurement.key, measurement.unit_hint) for measurement in measurements})
    _, second_names, third_names = names_by_round
    expect(
        second_names == third_names,
        f"the metrics change from round to round: {sorted(key for key, _ in second_names ^ third_names)}",
    )


@CHECKS.add(_METRICS_SOURCE)
async def workload_metrics_are_of_the_kernels_asked_for(subject: Subject) -> None:
    """Metrics of workloads are only of the requested kernels, and of devices that they hold."""
    allocation = await subject.an_allocation()
    ctx = StatContext(at=1000.0, allocations={KERNEL: allocation})
    measurements_by_kernel = await subject.call("gather_workload_metrics", ctx, [KERNEL])
    expect(
        set(measurements_by_kernel) <= {KERNEL},
        f"gather_workload_metrics tells of {sorted(map(str, measurements_by_kernel))}",
    )
    for measurements in measurements_by_kernel.values():
        check_measurements("gather_workload_metrics", measurements, allocation.device_ids())
    expect(not await subject.call("gather_workload_metrics", ctx, []), "of no kernels, there are metrics")


@CHECKS.add(_METRICS_SOURCE)
async def process_metrics_are_of_the_processes_asked_for(subject: Subject) -> None:
    """With ``process_metrics``, metrics are only of the requested processes; without it, there are none."""
    pid = os.getpid()
    if not subject.plugin.capabilities.process_metrics:
        measurements_by_pid = await subject.call("gather_process_metrics", StatContext(at=1000.0), {pid: KERNEL})
        expect(not measurements_by_pid, "there are metrics of processes, and the flag process_metrics is not set")
        raise NotApplicable("the plugin has no metrics of processes")
    allocation = await subject.an_allocation()
    ctx = StatContext(at=1000.0, allocations={KERNEL: allocation}, pids={KERNEL: (pid,)})
    measurements_by_pid = await subject.call("gather_process_metrics", ctx, {pid: KERNEL})
    expect(set(measurements_by_pid) <= {pid}, f"gather_process_metrics tells of {sorted(measurements_by_pid)}")
    for measurements in measurements_by_pid.values():
        check_measurements("gather_process_metrics", measurements, allocation.device_ids())
    expect(not await subject.call("gather_process_metrics", ctx, {}), "of no processes, there are metrics")


@CHECKS.add("spec 00, get_node_info")
async def node_info_is_text(subject: Subject) -> None:
    """The versions and facts of the node (``get_node_info``) are texts for people, of moderate length."""
    await subject.call_validated("get_node_info", responses.validate_node_info)
