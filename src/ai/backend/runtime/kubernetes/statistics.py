"""Measures sessions in pods by the reports that their first process sends over the relay, without the API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from ai.backend.node.workload.statistics import accumulated, gauge, rate
from ai.backend.plugin.accelerator import Measurement
from ai.backend.runtime.kubernetes.records import PodRecord

_AVG_MAX_STATS, _MAX_STATS = frozenset({"avg", "max"}), frozenset({"max"})
MAX_PIDS = 4096
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Pid = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the values of a frame ``stats``, by which a pod's relay reports the resource use of its session.

    A program of the user's image can write it, so each number is bounded: a number that cannot be computed with would
    end the measuring of all sessions of the node.
    """

    cpu_ms: _Milliseconds | None = None
    mem: _Bytes | None = None
    io_read: _Bytes | None = None
    io_write: _Bytes | None = None
    net_rx: _Bytes | None = None
    net_tx: _Bytes | None = None
    pids: Annotated[list[_Pid], msgspec.Meta(max_length=MAX_PIDS)] = []


class Sample(msgspec.Struct, frozen=True):
    """Holds one report of a pod's resource use, with the CPU use since the previous sample and the time of arrival.

    ``arrived_at_s`` is by our monotonic clock.
    """

    report: Report
    cpu_percent: float
    arrived_at_s: float


def read_sample(message: Mapping[str, Any], previous_sample: Sample | None, now: float) -> Sample | None:
    """Returns the sample in a frame of a relay, or None for a frame of another form."""
    try:
        report = msgspec.convert(message, Report)
    except msgspec.ValidationError:
        return None
    cpu_percent = 0.0
    if (
        previous_sample is not None
        and report.cpu_ms is not None
        and previous_sample.report.cpu_ms is not None
        and now > previous_sample.arrived_at_s
    ):
        cpu_percent = max(
            0.0, (report.cpu_ms - previous_sample.report.cpu_ms) / (now - previous_sample.arrived_at_s) / 10
        )
    return Sample(report, cpu_percent, now)


def measurements_of(sample: Sample, record: PodRecord) -> Sequence[Measurement]:
    """Returns the measurements of a workload from one sample; values that the pod did not report are left out."""
    report = sample.report
    measurements: list[Measurement] = []
    if report.cpu_ms is not None:
        cpu_limit_percent = None if record.cpu_limit is None else record.cpu_limit * 100
        measurements.append(accumulated("cpu_used", report.cpu_ms, "msec"))
        measurements.append(gauge("cpu_util", sample.cpu_percent, "percent", cpu_limit_percent, _AVG_MAX_STATS))
    if report.mem is not None:
        measurements.append(gauge("mem", report.mem, "bytes", record.memory_bytes, _AVG_MAX_STATS))
    for metric, value in (("io_read", report.io_read), ("io_write", report.io_write)):
        if value is not None:
            measurements.append(accumulated(metric, value, "bytes"))
    for metric, value in (("net_rx", report.net_rx), ("net_tx", report.net_tx)):
        if value is not None:
            measurements.append(rate(metric, value, "bps"))
    if report.pids:
        measurements.append(gauge("pids", len(report.pids), "count", None, _MAX_STATS))
    return measurements
