"""What is kept of the metrics of the last day."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import msgspec

from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.wire.reports import StatReport
from ai.backend.manager.metrics.history import BYTES_OF_SERIES, MetricHistory, numbers_of, numbers_of_agent
from ai.backend.manager.metrics.live import LiveMetrics


class Clock:
    def __init__(self) -> None:
        self.now = 960_000.0

    def __call__(self) -> float:
        return self.now


def test_an_hour_has_every_step_and_gaps() -> None:
    clock = Clock()
    history = MetricHistory(wall_clock=clock)
    for value in (1.0, 2.0, 3.0):
        history.put("k", {"cpu": value})
        clock.now += 5
    clock.now += 5
    history.put("k", {"cpu": 9.0})
    series = history.read("k", "hour")
    assert (series.step_s, len(series.metrics["cpu"])) == (5, 720)
    assert series.metrics["cpu"][-6:] == [None, 1.0, 2.0, 3.0, None, 9.0]
    assert series.end_s == (clock.now // 5 + 1) * 5
    clock.now += 10
    assert history.read("k", "hour").metrics["cpu"][-3:] == [9.0, None, None]
    day = history.read("k", "day")
    assert (day.step_s, [value for value in day.metrics["cpu"] if value is not None]) == (60, [9.0])


def test_what_is_older_than_the_span_is_dropped() -> None:
    clock = Clock()
    history = MetricHistory(wall_clock=clock)
    for step in range(2_000):
        history.put("k", {"cpu": float(step)})
        clock.now += 5
    clock.now -= 5
    hour = history.read("k", "hour").metrics["cpu"]
    assert (hour[0], hour[-1], len(hour)) == (1_280.0, 1_999.0, 720)
    clock.now += 100_000
    assert set(history.read("k", "hour").metrics["cpu"]) == {None}
    history.put("k", {"cpu": 1.0})
    assert [value for value in history.read("k", "day").metrics["cpu"] if value is not None] == [1.0]


def test_a_clock_that_is_set_back_loses_nothing_new() -> None:
    clock = Clock()
    history = MetricHistory(wall_clock=clock)
    history.put("k", {"cpu": 1.0})
    clock.now -= 10
    history.put("k", {"cpu": 2.0})
    clock.now += 10
    assert history.read("k", "hour").metrics["cpu"][-1] == 1.0


def test_memory_is_bounded_and_the_silent_make_room() -> None:
    clock = Clock()
    history = MetricHistory(max_bytes=2 * BYTES_OF_SERIES, wall_clock=clock)
    history.put("a", {"cpu": 1.0})
    history.put("b", {"cpu": 1.0, "mem": 1.0})
    assert list(history.read("b", "hour").metrics) == ["cpu"], "a is in use"
    clock.now += 300
    history.put("b", {"cpu": 2.0})
    history.put("c", {"cpu": 1.0})
    assert not history.read("a", "hour").metrics
    assert list(history.read("c", "hour").metrics) == ["cpu"]
    history.put("d", {f"m{number}": 1.0 for number in range(500)})
    assert not history.read("d", "hour").metrics


def test_numbers_are_taken_from_what_agents_report() -> None:
    metrics = {"cpu_util": {"current": "12.5"}, "odd": "text", "none": {"current": None}, "inf": {"current": "inf"}}
    assert dict(numbers_of(metrics)) == {"cpu_util": 12.5}
    devices = {"cuda_util": {"0": {"current": "50"}, "1": {}}, "odd": 3}
    assert numbers_of_agent({"mem": {"current": "7"}}, devices) == {"mem": 7.0, "cuda_util/0": 50.0}


def test_reports_are_kept_by_kernel_and_agent() -> None:
    live = LiveMetrics(cast("Any", None), clock=lambda: 0.0)
    kernel_id = KernelId(UUID(int=1))
    stats = msgspec.Raw(msgspec.msgpack.encode({"mem": {"current": "5"}}))
    report = StatReport(agent_id="i-1", at=0.0, node={"cpu": {"current": "1"}}, kernels={"k": stats})
    live.put(report, {"k": kernel_id})
    assert live.history_of_kernel(kernel_id, "hour").metrics["mem"][-1] == 5.0
    assert live.history_of_agent(AgentId("i-1"), "day").metrics["cpu"][-1] == 1.0
    live.forget([kernel_id])
    assert live.history_of_kernel(kernel_id, "hour").metrics, "it stays for those who ask why it ended"
