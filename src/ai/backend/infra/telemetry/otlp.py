"""Sends spans, logs and metrics by OTLP with the SDK of OpenTelemetry, which only this package imports.

Everything is queued in memory and sent by threads of the SDK: a collector that is away, slow or refuses costs the
oldest of what waits; it delays no request, and the end of a daemon by two seconds at most.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import Token
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ai.backend.common.release import release_version
from ai.backend.infra.settings.tables import OtelSettings
from ai.backend.infra.telemetry.records import encodable, message_of
from ai.backend.infra.telemetry.tracing import HEADER, Attributes, SpanKind

_SCOPE = "ai.backend"
_SDK_LOGGER = "opentelemetry"
_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}
_LIMITS = SpanLimits(max_attributes=32, max_links=32, max_events=8, max_attribute_length=256)
_READS = frozenset({"GET", "HEAD"})
_BATCH = 512
_SEND_INTERVAL_MS = 1000
_CLOSE_S = 2.0
"""Seconds for which the end of a daemon waits for the collector."""
_COMPLAINT_INTERVAL_S = 60.0
"""Seconds between two warnings of one logger of the SDK that a collector does not take what is sent."""
_propagator = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Exporters:
    """The exporters of spans, logs and metrics; a kind whose exporter is None is not made."""

    spans: SpanExporter | None
    logs: LogRecordExporter | None
    metrics: MetricExporter | None


def exporters_of(settings: OtelSettings) -> Exporters:
    """Returns the exporters for the endpoint of the settings, by gRPC or HTTP."""
    options: dict[str, Any] = {
        "timeout": settings.timeout_s,
        "headers": {name.lower(): value.get_secret_value() for name, value in settings.headers.items()} or None,
    }
    if settings.by_http:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans

        base = settings.endpoint.rstrip("/")
        if settings.ca_file is not None:
            options["certificate_file"] = str(settings.ca_file)
        return Exporters(
            spans=HttpSpans(f"{base}/v1/traces", **options) if "traces" in settings.signals else None,
            logs=HttpLogs(f"{base}/v1/logs", **options) if "logs" in settings.signals else None,
            metrics=HttpMetrics(f"{base}/v1/metrics", **options) if "metrics" in settings.signals else None,
        )
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans

    options["insecure"] = not settings.endpoint.startswith("https://")
    if settings.ca_file is not None:
        from grpc import ssl_channel_credentials

        options["credentials"] = ssl_channel_credentials(settings.ca_file.read_bytes())
    return Exporters(
        spans=GrpcSpans(settings.endpoint, **options) if "traces" in settings.signals else None,
        logs=GrpcLogs(settings.endpoint, **options) if "logs" in settings.signals else None,
        metrics=GrpcMetrics(settings.endpoint, **options) if "metrics" in settings.signals else None,
    )


class _Span:
    """A span of the SDK in the words of :class:`ai.backend.infra.telemetry.tracing.Span`."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def name(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(dict(attributes))

    def fail(self, reason: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, reason))

    def link(self, traceparent: str | None) -> None:
        context = _context_of(traceparent)
        if context is not None:
            self._span.add_link(context)


class _ByRequest(Sampler):
    """Decides by the id of a trace: with one ratio for those that begin with a reading request, and one for others."""

    def __init__(self, others: Sampler, reads: Sampler) -> None:
        self._others, self._reads = others, reads

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: trace.SpanKind | None = None,
        *rest: Any,
        **options: Any,
    ) -> SamplingResult:
        is_read = kind is trace.SpanKind.SERVER and name in _READS
        sampler = self._reads if is_read else self._others
        return sampler.should_sample(parent_context, trace_id, name, kind, *rest, **options)

    def get_description(self) -> str:
        return f"ByRequest({self._others.get_description()}, {self._reads.get_description()})"


class _Block:
    """A block with a span of the SDK; a class, since a request enters several and generators cost twice as much."""

    __slots__ = ("_arguments", "_context", "_span", "_token", "_tracer")

    def __init__(self, tracer: trace.Tracer, context: Context | None, arguments: tuple[Any, ...]) -> None:
        self._tracer, self._context, self._arguments = tracer, context, arguments
        self._span: trace.Span
        self._token: Token[Context]

    def __enter__(self) -> _Span:
        self._span = self._tracer.start_span(*self._arguments)
        self._token = attach(trace.set_span_in_context(self._span, self._context))
        return _Span(self._span)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            # The text of an exception may have what users sent; its code or type has not.
            self._span.set_status(Status(StatusCode.ERROR, str(getattr(error, "code", type(error).__name__))))
        detach(self._token)
        self._span.end()


class OtelTracer:
    """Makes spans with the SDK; implements :class:`ai.backend.infra.telemetry.tracing.Tracer`."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(_SCOPE)

    def span(
        self, name: str, kind: SpanKind, parent: str | None, attributes: Attributes, links: Sequence[str]
    ) -> _Block:
        context = _parent_of(parent) if parent is not None else None
        return _Block(self._tracer, context, (name, context, _KINDS[kind], dict(attributes), _links(links)))

    def record(
        self,
        name: str,
        started: datetime,
        ended: datetime,
        parent: str,
        attributes: Attributes,
        links: Sequence[str],
        failure: str | None,
    ) -> None:
        context = _parent_of(parent)
        if _context_of(parent) is None:
            return
        span = self._tracer.start_span(
            name, context, trace.SpanKind.INTERNAL, dict(attributes), _links(links), start_time=_nanoseconds(started)
        )
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(_nanoseconds(max(started, ended)))

    def current(self) -> str | None:
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"

    def is_sampled(self) -> bool:
        return trace.get_current_span().get_span_context().trace_flags.sampled


def _parent_of(traceparent: str | None) -> Context:
    return _propagator.extract({HEADER: traceparent or ""}, context=Context())


def _context_of(traceparent: str | None) -> SpanContext | None:
    context = trace.get_current_span(_parent_of(traceparent)).get_span_context()
    return context if context.is_valid else None


def _links(traceparents: Sequence[str]) -> list[Link]:
    return [Link(context) for text in traceparents if (context := _context_of(text)) is not None]


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1e9)


class _OtlpHandler(logging.Handler):
    """Sends records as logs of OTLP, with the ids of their context as attributes; never those of the SDK itself."""

    def __init__(self, provider: LoggerProvider, level: str) -> None:
        super().__init__(level)
        self._provider = provider

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == _SDK_LOGGER:
            return
        try:
            ids = getattr(record, "ids", {})
            attributes: dict[str, Any] = {name: encodable(value) for name, value in ids.items()}
            for name in ("trace_id", "span_id"):  # fields of their own in OTLP
                attributes.pop(name, None)
            if record.exc_info and record.exc_info[0] is not None:
                attributes["exception.type"] = record.exc_info[0].__name__
            self._provider.get_logger(record.name).emit(
                LogRecord(
                    timestamp=int(record.created * 1e9),
                    observed_timestamp=time.time_ns(),
                    severity_text=record.levelname,
                    severity_number=_severity(record.levelno),
                    body=message_of(record),
                    attributes=attributes,
                )
            )
        except Exception:  # noqa: BLE001  # as every handler does: what is logged must not fail
            self.handleError(record)


def _severity(level: int) -> SeverityNumber:
    """Returns the number of OTLP for a level of ``logging``."""
    for lowest, number in (
        (logging.CRITICAL, SeverityNumber.FATAL),
        (logging.ERROR, SeverityNumber.ERROR),
        (logging.WARNING, SeverityNumber.WARN),
        (logging.INFO, SeverityNumber.INFO),
    ):
        if level >= lowest:
            return number
    return SeverityNumber.DEBUG


class _FewComplaints(logging.Filter):
    """Passes one record of each logger in a minute: the SDK warns of every batch that a collector does not take."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_SDK_LOGGER):
            return True
        now = time.monotonic()
        if now - self._last.get(record.name, -_COMPLAINT_INTERVAL_S) < _COMPLAINT_INTERVAL_S:
            return False
        self._last[record.name] = now
        return True


@dataclass(eq=False)
class Telemetry:
    """The tracer, the log handler and the exporter of metrics of this process."""

    settings: OtelSettings
    exporters: Exporters
    resource: Resource
    tracer: OtelTracer | None = field(default=None, init=False)
    _closers: list[Callable[[], object]] = field(default_factory=list, init=False)
    _handler: _OtlpHandler | None = field(default=None, init=False)
    _filter: _FewComplaints = field(default_factory=_FewComplaints, init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        if self.exporters.spans is not None:
            ratio = TraceIdRatioBased(settings.sample_ratio)
            root = _ByRequest(ratio, TraceIdRatioBased(settings.sample_ratio * settings.read_ratio))
            # The flag of a sender is not obeyed, only its refusal: what is kept follows from the id of the trace, so
            # that all daemons with one ratio keep the same traces.
            sampler = ParentBased(root, remote_parent_sampled=ratio, remote_parent_not_sampled=ALWAYS_OFF)
            provider = TracerProvider(
                sampler=sampler, resource=self.resource, span_limits=_LIMITS, shutdown_on_exit=False
            )
            processor = BatchSpanProcessor(
                self.exporters.spans,
                max_queue_size=settings.queue_size,
                schedule_delay_millis=_SEND_INTERVAL_MS,
                max_export_batch_size=min(_BATCH, settings.queue_size),
            )
            provider.add_span_processor(processor)
            self.tracer = OtelTracer(provider)
            self._closers.append(provider.shutdown)
        if self.exporters.logs is not None:
            logs = LoggerProvider(resource=self.resource, shutdown_on_exit=False)
            logs.add_log_record_processor(
                BatchLogRecordProcessor(
                    self.exporters.logs,
                    max_queue_size=settings.queue_size,
                    schedule_delay_millis=_SEND_INTERVAL_MS,
                    max_export_batch_size=min(_BATCH, settings.queue_size),
                )
            )
            self._handler = _OtlpHandler(logs, settings.log_level)
            self._closers.append(logs.shutdown)
        if self.exporters.metrics is not None:
            self._closers.append(self.exporters.metrics.shutdown)

    def handlers(self) -> list[logging.Handler]:
        """Returns the handler of the root logger that sends records."""
        return [self._handler] if self._handler is not None else []

    def quieten(self, handlers: Sequence[logging.Handler]) -> None:
        """Limits the warnings of the SDK that these handlers write."""
        for handler in handlers:
            handler.addFilter(self._filter)

    def close(self) -> None:
        """Sends the queued records for at most two seconds; drops the others."""
        threads = [threading.Thread(target=close, daemon=True) for close in self._closers]
        for thread in threads:
            thread.start()
        ends_at = time.monotonic() + min(self.settings.timeout_s, _CLOSE_S)
        for thread in threads:
            thread.join(max(0.0, ends_at - time.monotonic()))


def resource_of(daemon: str) -> Resource:
    """Returns the attributes of a daemon's process, with those of ``OTEL_RESOURCE_ATTRIBUTES``."""
    return Resource.create(
        {
            "service.namespace": "backendai",
            "service.name": f"backendai-{daemon}",
            "service.version": release_version(),
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
    )
