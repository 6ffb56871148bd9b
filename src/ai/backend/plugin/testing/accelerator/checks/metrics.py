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


def check_measurements(where: str, measurements: Sequence[Measurement], devices: Collection[DeviceId]) -> None:
    """Checks that the agent accepts all measurements. Raises CheckFailed."""
    measurement_filter = MeasurementFilter()
    measurement_filter.passed(measurements, devices)
    expect(measurement_filter.reason is None, f"{where}: {measurement_filter.reason}")
    seen: set[tuple[str, DeviceId | None]] = set()
    for measurement in measurements:
        described = f"{where}: {measurement.key}" + (f" of {measurement.device_id}" if measurement.device_id else "")
        expect((measurement.key, measurement.device_id) not in seen, f"{described} is there twice")
        seen.add((measurement.key, measurement.device_id))
        if measurement.capacity is not None:
            expect(measurement.capacity > 0, f"{described} has the capacity {measurement.capacity}")
            exceeds_capacity = measurement.kind is MetricKind.GAUGE and measurement.value > measurement.capacity * 1.001
            expect(not exceeds_capacity, f"{described} is {measurement.value} of {measurement.capacity}")
    for key in {measurement.key for measurement in measurements}:
        units = {(measurement.unit_hint, measurement.kind) for measurement in measurements if measurement.key == key}
        expect(len(units) == 1, f"{where}: {key} has several units or kinds: {sorted(units)}")


@CHECKS.add(_METRICS_SOURCE)
async def node_metrics_are_well_formed(subject: Subject) -> None:
    """Names are slugs, units are known, values are finite, from 0 on, and within their capacity."""
    devices = {device.device_id for device in await subject.devices()}
    for time in _ROUND_TIMES:
        measurements = await subject.call("gather_node_metrics", StatContext(at=time))
        check_measurements("gather_node_metrics", measurements, devices)


@CHECKS.add(_METRICS_SOURCE)
async def the_names_of_metrics_stay(subject: Subject) -> None:
    """From the second round on, each round has the same names: each is a series in a monitoring system."""
    names_by_round = []
    for time in _ROUND_TIMES:
        measurements = await subject.call("gather_node_metrics", StatContext(at=time))
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
    by_kernel = await subject.call("gather_workload_metrics", ctx, [KERNEL])
    expect(set(by_kernel) <= {KERNEL}, f"gather_workload_metrics tells of {sorted(map(str, by_kernel))}")
    for measurements in by_kernel.values():
        check_measurements("gather_workload_metrics", measurements, allocation.device_ids())
    expect(not await subject.call("gather_workload_metrics", ctx, []), "of no kernels, there are metrics")


@CHECKS.add(_METRICS_SOURCE)
async def process_metrics_are_of_the_processes_asked_for(subject: Subject) -> None:
    """With ``process_metrics``, metrics are only of the requested processes; without it, there are none."""
    pid = os.getpid()
    if not subject.plugin.capabilities.process_metrics:
        by_pid = await subject.call("gather_process_metrics", StatContext(at=1000.0), {pid: KERNEL})
        expect(not by_pid, "there are metrics of processes, and the flag process_metrics is not set")
        raise NotApplicable("the plugin has no metrics of processes")
    allocation = await subject.an_allocation()
    ctx = StatContext(at=1000.0, allocations={KERNEL: allocation}, pids={KERNEL: (pid,)})
    by_pid = await subject.call("gather_process_metrics", ctx, {pid: KERNEL})
    expect(set(by_pid) <= {pid}, f"gather_process_metrics tells of {sorted(by_pid)}")
    for measurements in by_pid.values():
        check_measurements("gather_process_metrics", measurements, allocation.device_ids())
    expect(not await subject.call("gather_process_metrics", ctx, {}), "of no processes, there are metrics")


@CHECKS.add("spec 00, get_node_info")
async def node_info_is_text(subject: Subject) -> None:
    """Versions and facts for people, of moderate length."""
    await subject.validated("get_node_info", responses.info)
