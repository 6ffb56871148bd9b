"""The spans of a run: what its runner may say about them, and what it may not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ai.backend.agent.channel.run_spans import read_phases
from ai.backend.common.states import RunMode
from ai.backend.infra.settings.tables import OtelSettings
from ai.backend.infra.telemetry import otlp
from ai.backend.infra.telemetry.tracing import install_tracer, span
from tests.unit.agent.channel.test_runs import Desk

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ASKED_AT, ENDED_AT = 1000.0, 1010.0


@pytest.fixture
def telemetry() -> Iterator[tuple[otlp.Telemetry, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    exporters = otlp.Exporters(spans=exporter, logs=None, metrics=None)
    made = otlp.Telemetry(OtelSettings(enabled=True), exporters, otlp.resource_of("test"))
    install_tracer(made.tracer)
    yield made, exporter
    install_tracer(None)


def _times(one: ReadableSpan) -> tuple[float, float]:
    return (one.start_time or 0) / 1e9, (one.end_time or 0) / 1e9


async def _run(phases: Any) -> Desk:
    desk = Desk()
    await desk.channel.connect()
    times = [ASKED_AT]
    desk.book.wall_clock = lambda: times[0]
    desk.book.span_attributes = {"backendai.session_id": "s"}
    with span("request", parent=PARENT):
        answer = asyncio.create_task(desk.step(RunMode.QUERY, code="1", wait_s=60))
        await desk.settle()
    desk.runner.say(t="started", id="r")
    await desk.settle()
    times[0] = ENDED_AT
    desk.runner.say(t="finished", id="r", exitCode=3, phases=phases)
    await answer
    desk.book.close()
    await desk.channel.close()
    return desk


async def test_a_run_is_a_span_with_its_phases_below(telemetry: tuple[otlp.Telemetry, InMemorySpanExporter]) -> None:
    desk = await _run([["compile", 1001.0, 1004.0], ["exec", 1004.5, 1009.0]])
    telemetry[0].close()
    spans = {one.name: one for one in telemetry[1].get_finished_spans()}
    run, request = spans["run"], spans["request"]
    context = request.get_span_context()
    assert context is not None
    assert desk.runner.sent[0]["trace"] == f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
    assert run.parent is not None
    assert run.parent.span_id == context.span_id
    assert _times(run) == (ASKED_AT, ENDED_AT)
    assert dict(run.attributes or {}) == {
        "backendai.session_id": "s",
        "backendai.run_id": "r",
        "process.exit.code": 3,
    }
    assert _times(spans["run compile"]) == (1001.0, 1004.0)
    assert _times(spans["run exec"]) == (1004.5, 1009.0)
    ids = {one.parent.span_id for name, one in spans.items() if name.startswith("run ") and one.parent is not None}
    assert [f"{span_id:016x}" for span_id in ids] == [f"{(run.get_span_context() or context).span_id:016x}"]


async def test_without_a_trace_the_runner_is_told_of_none() -> None:
    desk = await _run([["exec", 1001.0, 1002.0]])
    assert "trace" not in desk.runner.sent[0]
    assert desk.saved[-1].runs == []


async def test_the_trace_of_a_run_is_stored_for_an_agent_that_is_restarted(
    telemetry: tuple[otlp.Telemetry, InMemorySpanExporter],
) -> None:
    desk = await _run([])
    assert (desk.saved[0].runs[0].trace or "")[3:35] == PARENT[3:35]
    assert desk.saved[0].runs[0].asked_at == ASKED_AT


@pytest.mark.parametrize(
    "reported",
    [
        None,
        "phases",
        {"exec": [1, 2]},
        [["exec", 1.0]],
        ["exec"],
        [None, 5, [["exec"], 1.0, 2.0]],
        [["a name of the session's", 1001.0, 1002.0]],
        [["exec", "1001", "1002"], ["exec", True, 1002.0], ["exec", 10**400, 1002.0]],
        [["exec", float("nan"), 1002.0], ["exec", 1001.0, float("inf")]],
    ],
)
def test_what_is_no_phase_makes_no_span(reported: Any) -> None:
    assert read_phases(reported, ASKED_AT, ENDED_AT) == []


@pytest.mark.parametrize(
    ("since", "until", "shown"),
    [
        (0.0, 1e18, (ASKED_AT, ENDED_AT)),
        (-1e18, -1e17, (ASKED_AT, ASKED_AT)),
        (1e17, 1e18, (ENDED_AT, ENDED_AT)),
        (1005.0, 1001.0, (1005.0, 1005.0)),
    ],
)
def test_no_time_lies_outside_what_the_agent_saw(since: float, until: float, shown: tuple[float, float]) -> None:
    assert read_phases([["exec", since, until]], ASKED_AT, ENDED_AT) == [("exec", *shown)]


def test_the_number_of_phases_is_bounded() -> None:
    assert len(read_phases([["exec", 1001.0, 1002.0]] * 100_000, ASKED_AT, ENDED_AT)) == 8


def test_a_clock_that_was_set_back_makes_no_negative_time() -> None:
    assert read_phases([["exec", 1001.0, 1002.0]], ASKED_AT, ASKED_AT - 60) == [("exec", ASKED_AT, ASKED_AT)]
