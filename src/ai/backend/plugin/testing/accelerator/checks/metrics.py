"""Metrics: units, names, ranges, and a set of names that stays."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement, MetricKind, StatContext, responses
from ai.backend.plugin.accelerator.responses import MeasurementFilter
from ai.backend.plugin.testing.accelerator.checks.registry import Checks, NotApplicable, expect
from ai.backend.plugin.testing.accelerator.checks.subject import KERNEL, Subject

CHECKS = Checks()
_METRICS = "spec 00, metrics; Measurement"
_ROUNDS = (1000.0, 1005.0, 1010.0)


def check_measurements(where: str, measurements: Sequence[Measurement], devices: Collection[DeviceId]) -> None:
    """Checks that the agent takes all measurements. Raises CheckFailed."""
    sieve = MeasurementFilter()
    sieve.passed(measurements, devices)
    expect(sieve.reason is None, f"{where}: {sieve.reason}")
    seen: set[tuple[str, DeviceId | None]] = set()
    for m in measurements:
        of = f"{where}: {m.key}" + (f" of {m.device_id}" if m.device_id else "")
        expect((m.key, m.device_id) not in seen, f"{of} is there twice")
        seen.add((m.key, m.device_id))
        if m.capacity is not None:
            expect(m.capacity > 0, f"{of} has the capacity {m.capacity}")
            is_over = m.kind is MetricKind.GAUGE and m.value > m.capacity * 1.001
            expect(not is_over, f"{of} is {m.value} of {m.capacity}")
    for key in {m.key for m in measurements}:
        units = {(m.unit_hint, m.kind) for m in measurements if m.key == key}
        expect(len(units) == 1, f"{where}: {key} has several units or kinds: {sorted(units)}")


@CHECKS.add(_METRICS)
async def node_metrics_are_well_formed(subject: Subject) -> None:
    """Names are slugs, units are known, values are finite, from 0 on, and within their capacity."""
    devices = {d.device_id for d in await subject.devices()}
    for at in _ROUNDS:
        measurements = await subject.call("gather_node_metrics", StatContext(at=at))
        check_measurements("gather_node_metrics", measurements, devices)


@CHECKS.add(_METRICS)
async def the_names_of_metrics_stay(subject: Subject) -> None:
    """From the second round on, each round has the same names: each is a series in a monitoring system."""
    rounds = []
    for at in _ROUNDS:
        measurements = await subject.call("gather_node_metrics", StatContext(at=at))
        rounds.append({(m.key, m.unit_hint) for m in measurements})
    _, second, third = rounds
    expect(second == third, f"the metrics change from round to round: {sorted(key for key, _ in second ^ third)}")


@CHECKS.add(_METRICS)
async def workload_metrics_are_of_the_kernels_asked_for(subject: Subject) -> None:
    """Only of those kernels, and only of devices that they hold."""
    allocation = await subject.an_allocation()
    ctx = StatContext(at=1000.0, allocations={KERNEL: allocation})
    by_kernel = await subject.call("gather_workload_metrics", ctx, [KERNEL])
    expect(set(by_kernel) <= {KERNEL}, f"gather_workload_metrics tells of {sorted(map(str, by_kernel))}")
    for measurements in by_kernel.values():
        check_measurements("gather_workload_metrics", measurements, allocation.device_ids())
    expect(not await subject.call("gather_workload_metrics", ctx, []), "of no kernels, there are metrics")


@CHECKS.add(_METRICS)
async def process_metrics_are_of_the_processes_asked_for(subject: Subject) -> None:
    """With ``process_metrics``, only of those processes; without it, none."""
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
