"""Spans and what they carry between daemons, with an exporter in memory."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ai.backend.client.config import APIConfig
from ai.backend.client.wire import Call, prepare_request
from ai.backend.common.errors import NotFound
from ai.backend.common.wire.execution import KernelRef
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.infra.settings.tables import OtelSettings
from ai.backend.infra.telemetry import bind_log_context, log_context, otlp
from ai.backend.infra.telemetry.logs import ContextFilter
from ai.backend.infra.telemetry.metrics import Metrics
from ai.backend.infra.telemetry.otlp_metrics import metrics_data
from ai.backend.infra.telemetry.tracing import (
    child_span,
    current_traceparent,
    exemplar,
    install_tracer,
    record_span,
    span,
    trace_ids,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = PARENT[3:35]


class Collected:
    """What a tracer has made."""

    def __init__(self, sample_ratio: float = 1.0, reads_per_second: float = 100_000) -> None:
        self._spans = InMemorySpanExporter()
        self._logs = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]  # theirs
        settings = OtelSettings(enabled=True, sample_ratio=sample_ratio, reads_per_second=reads_per_second)
        exporters = otlp.Exporters(spans=self._spans, logs=self._logs, metrics=None)
        self.telemetry = otlp.Telemetry(settings, exporters, otlp.resource_of("test"))
        install_tracer(self.telemetry.tracer)

    def all(self) -> list[ReadableSpan]:
        self.telemetry.close()
        return list(self._spans.get_finished_spans())

    def spans(self) -> dict[str, ReadableSpan]:
        return {one.name: one for one in self.all()}

    def logs(self) -> list[Any]:
        self.telemetry.close()
        return [one.log_record for one in self._logs.get_finished_logs()]


@pytest.fixture(autouse=True)
def _without_tracer_at_the_end() -> Iterator[None]:
    yield
    install_tracer(None)


def trace_of(one: ReadableSpan) -> str:
    context = one.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}"


def parent_of(one: ReadableSpan) -> str:
    assert one.parent is not None
    return f"{one.parent.span_id:016x}"


def id_of(one: ReadableSpan) -> str:
    context = one.get_span_context()
    assert context is not None
    return f"{context.span_id:016x}"


def test_without_a_tracer_nothing_is_made_or_imported() -> None:
    with span("a", parent=PARENT) as block:
        block.set({"x": 1})
        assert current_traceparent() is None
        assert trace_ids() == {}
        assert exemplar() is None
    code = (
        "import sys; import ai.backend.manager.main, ai.backend.agent.main, ai.backend.cli.main;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'grpc'))])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_span_goes_below_its_parent_and_fails_by_the_code_of_its_error() -> None:
    collected = Collected()
    with pytest.raises(NotFound), span("outer", parent=PARENT), child_span("inner"):
        raise NotFound("secret of a user")
    spans = collected.spans()
    assert trace_of(spans["inner"]) == trace_of(spans["outer"]) == TRACE
    assert parent_of(spans["outer"]) == PARENT[36:52]
    assert parent_of(spans["inner"]) == id_of(spans["outer"])
    assert spans["inner"].status.description == "not-found"
    assert "secret" not in spans["inner"].to_json()


@pytest.mark.parametrize("parent", ["", "x", "00-0-0-00", f"{PARENT}\r\nX: y", f"00-{0:032x}-b7ad6b7169203331-01"])
def test_a_malformed_parent_begins_a_trace(parent: str) -> None:
    collected = Collected()
    with span("a", parent=parent), span("b", parent=parent):
        pass
    spans = collected.spans()
    assert spans["a"].parent is None
    assert parent_of(spans["b"]) == id_of(spans["a"]), "it counts as none: the parent is the current span"


def test_the_end_does_not_wait_for_a_collector_that_hangs() -> None:
    hangs = threading.Event()

    class Hanging(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            hangs.wait(30)

    exporters = otlp.Exporters(spans=Hanging(), logs=None, metrics=None)
    settings = OtelSettings(enabled=True, timeout_s=0.1, queue_size=16)
    telemetry = otlp.Telemetry(settings, exporters, otlp.resource_of("test"))
    install_tracer(telemetry.tracer)
    before = time.monotonic()
    for _ in range(1000):
        with span("a"):
            pass
    telemetry.close()
    assert time.monotonic() - before < 5
    hangs.set()


def test_periodic_work_begins_no_trace() -> None:
    collected = Collected()
    with child_span("round"):
        assert current_traceparent() is None
    assert collected.spans() == {}


def test_the_ratio_decides_by_the_trace_and_not_by_the_flag_of_a_client() -> None:
    collected = Collected(sample_ratio=0.0)
    with span("asked for", parent=PARENT):
        assert exemplar() is None
    assert collected.spans() == {}
    collected = Collected(sample_ratio=1.0)
    with span("refused", parent=f"{PARENT[:-2]}00"):
        pass
    with span("kept", parent=PARENT):
        assert exemplar() == {"trace_id": TRACE}
    assert list(collected.spans()) == ["kept"]


def test_reads_have_a_limit_that_no_traceparent_lifts() -> None:
    collected = Collected(reads_per_second=0.0)
    for parent in (None, PARENT, "malformed", ""):
        with span("GET", kind="server", parent=parent) as read, child_span("below"):
            assert not read.is_recording
            assert (trace_ids()["trace_id"] == TRACE) == (parent == PARENT)
            read.name(f"read of {parent}")
    with span("POST", kind="server", parent=PARENT):
        pass
    assert set(collected.spans()) == {"POST"}


def test_reads_with_a_traceparent_leave_the_others_their_room() -> None:
    collected = Collected(reads_per_second=5.0)
    for parent in (PARENT, None):
        for number in range(100):
            with span("GET", kind="server", parent=parent) as read:
                read.name(f"{number} of {parent}")
    kept = [one.name for one in collected.all()]
    # A read or two more where the loop takes a noticeable part of a second.
    assert 5 <= sum(name.endswith(f"of {PARENT}") for name in kept) <= 7
    assert 5 <= sum(name.endswith("of None") for name in kept) <= 7


def test_what_a_client_has_recorded_counts_as_its_reads_do() -> None:
    collected = Collected(reads_per_second=1.0)
    began = datetime(2026, 1, 2, tzinfo=UTC)
    for _ in range(50):
        record_span("app GET", began, began, parent=PARENT, is_limited=True)
    record_span("session RUNNING", began, began, parent=PARENT)
    names = [one.name for one in collected.all()]
    assert 1 <= names.count("app GET") <= 3  # more where the loop takes seconds
    assert names.count("session RUNNING") == 1


def test_a_probe_with_a_malformed_parent_begins_no_trace() -> None:
    collected = Collected()
    with child_span("GET", kind="server", parent="malformed"):
        assert current_traceparent() is None
    assert collected.spans() == {}


def test_a_read_that_is_not_exported_has_ids_for_logs_and_other_daemons() -> None:
    collected = Collected(reads_per_second=0.0)
    with span("GET", kind="server") as read:
        assert not read.is_recording
        read.set({"x": 1})
        parent = current_traceparent()
        with child_span("below", attributes={"x": 1}), span("deeper"):
            assert current_traceparent() == parent
            assert exemplar() is None
        assert trace_ids()["trace_id"] in (parent or "")
        with span("of a session's trace", parent=PARENT), child_span("of it too"):
            assert trace_ids()["trace_id"] == TRACE
        assert current_traceparent() == parent
    assert current_traceparent() is None
    assert parent is not None
    assert parent.endswith("-00")
    with span("from another daemon", parent=parent):
        pass
    spans = collected.spans()
    assert parent_of(spans["of it too"]) == id_of(spans["of a session's trace"])
    assert len(spans) == 2


def test_all_daemons_keep_the_same_traces() -> None:
    collected = Collected(sample_ratio=0.25)
    for _ in range(400):
        with span("GET", kind="server"):
            pass
    kept = [int(trace_of(one)[16:], 16) / 2**64 for one in collected.all()]
    assert 50 < len(kept) < 160
    assert max(kept) < 0.25, "a daemon that decides by the id keeps each of them"


@pytest.mark.parametrize(("reads_per_second", "kept"), [(0.1, 1), (5.0, 5), (30.0, 30)])
def test_reads_are_exported_at_a_limited_rate(
    reads_per_second: float, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    collected = Collected(reads_per_second=reads_per_second)
    for _ in range(100):
        with span("GET", kind="server"):
            pass
    now += 10.5
    with span("HEAD", kind="server"), child_span("below"):
        pass
    monkeypatch.undo()
    names = [one.name for one in collected.all()]
    assert (names.count("GET"), names.count("HEAD"), names.count("below")) == (kept, 1, 1)


async def test_work_that_outlasts_its_request_stays_in_its_trace() -> None:
    collected = Collected()
    is_over = asyncio.Event()

    async def work() -> None:
        await is_over.wait()
        with child_span("after"):
            pass

    with span("POST", kind="server"):
        task = asyncio.create_task(work())
    is_over.set()
    await task
    spans = collected.spans()
    assert parent_of(spans["after"]) == id_of(spans["POST"])


def test_what_is_over_is_recorded_with_its_times_and_links() -> None:
    collected = Collected()
    began = datetime(2026, 1, 2, tzinfo=UTC)
    with span("cause"):
        cause = current_traceparent()
    record_span("wait", began, began + timedelta(seconds=9), parent=PARENT, links=[cause, None, "bad"], failure="why")
    record_span("of no trace", began, began, parent=None)
    spans = collected.spans()
    wait = spans["wait"]
    assert wait.start_time is not None
    assert wait.end_time is not None
    assert wait.end_time - wait.start_time == 9_000_000_000
    assert [f"{link.context.trace_id:032x}" for link in wait.links] == [trace_of(spans["cause"])]
    assert wait.status.description == "why"
    assert "of no trace" not in spans


def test_a_log_has_the_ids_of_its_span_and_not_those_of_the_sdk() -> None:
    collected = Collected()
    (handler,) = collected.telemetry.handlers()
    handler.addFilter(ContextFilter())
    records = [
        logging.LogRecord(name, logging.WARNING, "", 1, "session %s", ("s",), None)
        for name in ("ai.backend.test", "opentelemetry.sdk")
    ]
    for record in records:
        with span("a", parent=PARENT), bind_log_context(session_id="s"):
            handler.handle(record)
    (log,) = collected.logs()
    assert (log.body, log.attributes["session_id"]) == ("session s", "s")
    assert f"{log.trace_id:032x}" == TRACE
    assert records[0].__dict__["ids"]["trace_id"] == TRACE


def test_a_log_that_is_no_utf8_costs_no_batch() -> None:
    """The encoder of OTLP raises an error for such characters, and what was to be sent with them is lost."""
    collected = Collected()
    (handler,) = collected.telemetry.handlers()
    handler.addFilter(ContextFilter())
    with bind_log_context(request_id="r-\udcff"):
        handler.handle(logging.LogRecord("ai.backend", logging.WARNING, "", 1, "file %s", ("\udcff",), None))
    (log,) = collected.logs()
    assert (log.body, log.attributes["request_id"]) == ("file \\udcff", "r-\\udcff")


async def test_a_call_to_an_agent_is_part_of_the_trace_and_of_the_request() -> None:
    collected = Collected()
    seen: dict[str, Any] = {}

    class Commands:
        async def interrupt(self, req: KernelRef) -> None:
            seen.update(log_context(), trace=current_traceparent())

    link = MemoryLink()
    await link.manager.start(cast(Any, SimpleNamespace()))
    await link.agent_endpoint("a1").start(cast(Any, Commands()))
    with span("request", parent=PARENT), bind_log_context(request_id="r-1"):
        await link.manager.agent("a1").interrupt(KernelRef(kernel_id="k-1"))
    await link.manager.agent("a1").interrupt(KernelRef(kernel_id="k-2"))
    await link.manager.stop()
    spans = collected.spans()
    calls = [one for one in collected.all() if one.name == "interrupt"]
    assert seen["kernel_id"] == "k-2"
    assert len(calls) == 2, "a call outside of any trace is no span"
    assert {trace_of(one) for one in calls} == {TRACE}
    client, server = sorted(calls, key=lambda one: one.kind.name)
    assert parent_of(server) == id_of(client)
    assert parent_of(client) == id_of(spans["request"])


def test_a_client_sends_the_trace_of_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    config = APIConfig(endpoint="http://127.0.0.1:1", access_key="a", secret_key="s")
    monkeypatch.setenv("TRACEPARENT", "no trace\r\n")
    assert "traceparent" not in prepare_request(config, Call(method="GET", path="/"))[1]
    monkeypatch.setenv("TRACEPARENT", PARENT)
    assert prepare_request(config, Call(method="GET", path="/"))[1]["traceparent"] == PARENT
    Collected()
    with span("program"):
        assert prepare_request(config, Call(method="GET", path="/"))[1]["traceparent"] == current_traceparent()


def test_metrics_are_translated_with_their_buckets() -> None:
    metrics = Metrics("test")
    metrics.counter("done", "Done.", ["kind"]).labels("x").inc(3)
    metrics.histogram("took", "Took.", buckets=(1.0, 2.0)).observe(1.5)
    metrics.gauge("now", "Now.").set(7)
    document = json.loads(metrics_data(metrics.families(), otlp.resource_of("test")).to_json())
    found = {one["name"]: one["data"] for one in document["resource_metrics"][0]["scope_metrics"][0]["metrics"]}
    assert found["backendai_test_done"]["data_points"][0]["value"] == 3
    assert found["backendai_test_done"]["is_monotonic"] is True
    assert found["backendai_test_now"]["data_points"][0]["value"] == 7
    histogram = found["backendai_test_took"]["data_points"][0]
    assert (histogram["bucket_counts"], histogram["explicit_bounds"], histogram["count"]) == ([0, 1, 0], [1.0, 2.0], 1)
