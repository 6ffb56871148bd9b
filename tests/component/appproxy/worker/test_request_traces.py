"""Requests to apps in the traces of those who send them."""

from __future__ import annotations

from collections.abc import Iterator

import aiohttp
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ai.backend.appproxy.worker.planes.embedded.plane import EmbeddedPlane
from ai.backend.core.proxy.changes import Changes
from ai.backend.infra.settings.tables import OtelSettings
from ai.backend.infra.telemetry import otlp
from ai.backend.infra.telemetry.tracing import install_tracer
from tests.component.appproxy.worker.conftest import PlaneFactory
from tests.support.proxy_apps import FakeApp, circuit_to, route_to

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def telemetry() -> Iterator[tuple[otlp.Telemetry, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    exporters = otlp.Exporters(spans=exporter, logs=None, metrics=None)
    made = otlp.Telemetry(OtelSettings(enabled=True, reads_per_second=5.0), exporters, otlp.resource_of("test"))
    install_tracer(made.tracer)
    yield made, exporter
    install_tracer(None)


async def test_a_request_is_in_the_trace_that_its_sender_names(
    start_plane: PlaneFactory,
    app: FakeApp,
    ports: list[int],
    telemetry: tuple[otlp.Telemetry, InMemorySpanExporter],
) -> None:
    plane: EmbeddedPlane = await start_plane()
    await plane.apply(Changes(version=1, circuits=(circuit_to(route_to(app.port), port=ports[0]),)))
    url, status = f"http://127.0.0.1:{ports[0]}/", 0
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        for headers in ({}, {"traceparent": "malformed"}, *[{"traceparent": PARENT}] * 40):
            async with http.post(url, headers=headers) as reply:
                status = reply.status
    telemetry[0].close()
    spans = telemetry[1].get_finished_spans()
    assert {one.name for one in spans} == {"app POST"}
    assert 5 <= len(spans) <= 15, "any client can send a trace: their number has a limit"
    for one in spans:
        assert one.parent is not None
        assert f"{one.parent.span_id:016x}" == PARENT[36:52]
        assert dict(one.attributes or {}) == {"http.request.method": "POST", "http.response.status_code": status}
        assert (one.start_time or 0) < (one.end_time or 0)
