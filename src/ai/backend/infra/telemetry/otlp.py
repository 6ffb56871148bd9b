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
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import datetime
from random import getrandbits
from typing import Any

import msgspec
from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ai.backend.common.release import release_version
from ai.backend.infra.settings.tables import OtelSettings
from ai.backend.infra.telemetry.recent import escape_unencodable, message_of
from ai.backend.infra.telemetry.tracing import HEADER, NO_SPAN, Attributes, Span, SpanKind

_INSTRUMENTATION_SCOPE = "ai.backend"
_SDK_LOGGER = "opentelemetry"
_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}
_LIMITS = SpanLimits(max_attributes=32, max_links=32, max_events=8, max_attribute_length=256)
_SAMPLED_METHODS = frozenset({"GET", "HEAD"})
_BATCH = 512
_SEND_INTERVAL_MS = 1000
_CLOSE_S = 2.0
"""Seconds for which the end of a daemon waits for the collector."""
_COMPLAINT_INTERVAL_S = 60.0
"""Seconds between two warnings of one logger of the SDK that a collector does not take what is sent."""
_propagator = TraceContextTextMapPropagator()


class Exporters(msgspec.Struct, frozen=True):
    """Holds the exporters of spans, logs and metrics. An exporter of None means that this kind is not exported."""

    spans: SpanExporter | None
    logs: LogRecordExporter | None
    metrics: MetricExporter | None


def exporters_of(settings: OtelSettings) -> Exporters:
    """Returns the exporters for the endpoint of the settings, by gRPC or HTTP."""
    options: dict[str, Any] = {
        "timeout": settings.timeout_s,
        "headers": {name.lower(): value.get_secret_value() for name, value in settings.headers.items()} or None,
    }
    if settings.uses_http:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans

        base_url = settings.endpoint.rstrip("/")
        if settings.ca_file is not None:
            options["certificate_file"] = str(settings.ca_file)
        return Exporters(
            spans=HttpSpans(f"{base_url}/v1/traces", **options) if "traces" in settings.signals else None,
            logs=HttpLogs(f"{base_url}/v1/logs", **options) if "logs" in settings.signals else None,
            metrics=HttpMetrics(f"{base_url}/v1/metrics", **options) if "metrics" in settings.signals else None,
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
    """Adapts a span of the SDK to :class:`ai.backend.infra.telemetry.tracing.Span`."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def is_recording(self) -> bool:
        return self._span.is_recording()

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


class _ReadLimit:
    """Permits a number of reads a second, as a leaky bucket of one second."""

    def __init__(self, reads_per_second: float) -> None:
        self._reads_per_second = reads_per_second
        self._until = 0.0
        """The time for which the reads so far count at the allowed rate."""

    def has_room(self) -> bool:
        """Returns True if one more read is permitted, and counts the read."""
        if not self._reads_per_second:
            return False
        now = time.monotonic()
        busy_until = max(self._until, now) + 1 / self._reads_per_second
        if busy_until > now + max(1.0, 1 / self._reads_per_second) + 1e-6:  # sums of floats
            return False
        self._until = busy_until
        return True


class _RequestSampler:
    """Decides if the first span of a trace in this process is exported.

    The ratio decides, and for reading requests also a limit per second.
    An idle installation has a trace of every request, and a busy one pays for no more than it can read. Whoever sends a
    ``traceparent`` may be any client: the reads with one have a limit too, of their own, so that no client takes the
    room of those without.
    """

    def __init__(self, ratio: TraceIdRatioBased, reads_per_second: float) -> None:
        self._ratio = ratio
        self._begun, self._continued = _ReadLimit(reads_per_second), _ReadLimit(reads_per_second)

    def should_sample(self, trace_id: int, name: str, kind: SpanKind, *, is_continued: bool) -> bool:
        """Returns True if the trace of a request is exported. An exported read counts towards the limit of reads."""
        if trace_id & TraceIdRatioBased.TRACE_ID_LIMIT >= self._ratio.bound:
            return False
        if kind != "server" or name not in _SAMPLED_METHODS:
            return True
        return (self._continued if is_continued else self._begun).has_room()


class _SpanBlock:
    """Runs a block inside a span of the SDK.

    It is a class, because each request enters several and generators cost twice as much.
    """

    __slots__ = ("_arguments", "_context", "_span", "_token", "_tracer", "_unsampled")

    def __init__(self, tracer: trace.Tracer, context: Context | None, arguments: tuple[Any, ...]) -> None:
        self._tracer, self._context, self._arguments = tracer, context, arguments
        self._span: trace.Span
        self._token: Token[Context]
        self._unsampled: Token[_UnsampledBlock | None]

    def __enter__(self) -> _Span:
        self._span = self._tracer.start_span(*self._arguments)
        self._unsampled = _unsampled.set(None)
        self._token = attach(trace.set_span_in_context(self._span, self._context))
        return _Span(self._span)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            # The text of an exception may have what users sent; its code or type has not.
            self._span.set_status(Status(StatusCode.ERROR, str(getattr(error, "code", type(error).__name__))))
        detach(self._token)
        _unsampled.reset(self._unsampled)
        self._span.end()


class _PresetTraceIds(RandomIdGenerator):
    """Generates trace ids. A thread may set the id of the thread's next trace; all other traces get random ids."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def set_next_id(self, trace_id: int) -> None:
        self._of_thread.drawn = trace_id

    def generate_trace_id(self) -> int:
        return self._of_thread.__dict__.pop("drawn", 0) or super().generate_trace_id()


class _UnsampledBlock:
    """Runs a block inside the first local span of a trace that is not exported. The span only provides ids for logs and
    daemons.

    The SDK has no part in it, since making its objects costs more than all else of the block.
    """

    __slots__ = ("_token", "_trace_id", "_traceparent")

    def __init__(self, trace_id: int) -> None:
        self._trace_id = trace_id
        self._traceparent = ""
        self._token: Token[_UnsampledBlock | None]

    def __enter__(self) -> Span:
        self._token = _unsampled.set(self)
        return NO_SPAN

    def __exit__(self, *_: object) -> None:
        _unsampled.reset(self._token)

    def traceparent(self) -> str:
        """Returns the ids of the span. Each call returns the same ids."""
        if not self._traceparent:
            self._traceparent = f"00-{self._trace_id:032x}-{getrandbits(64) or 1:016x}-00"
        return self._traceparent


_unsampled: ContextVar[_UnsampledBlock | None] = ContextVar("unsampled", default=None)
"""The current block if it is not exported; the current span of the SDK is then of no account."""


class OtelTracer:
    """Makes spans with the SDK; implements :class:`ai.backend.infra.telemetry.tracing.Tracer`.

    The SDK is called only for spans that are exported: most requests read, and most of their traces are not exported.
    """

    def __init__(self, provider: TracerProvider, id_generator: _PresetTraceIds, sampler: _RequestSampler) -> None:
        self._tracer = provider.get_tracer(_INSTRUMENTATION_SCOPE)
        self._ids, self._sampler = id_generator, sampler

    def span(
        self, name: str, kind: SpanKind, parent: str | None, attributes: Attributes, links: Sequence[str]
    ) -> AbstractContextManager[Span]:
        context: Context | None = None
        if (parent_context := _context_of(parent)) is not None:
            should_sample = self._sampler.should_sample
            if not parent_context.trace_flags.sampled or not should_sample(
                parent_context.trace_id, name, kind, is_continued=True
            ):
                return _UnsampledBlock(parent_context.trace_id)
            context = _parent_of(parent)
        else:
            if _unsampled.get() is not None:
                return NO_SPAN  # as its parent; logs have the ids of that one
            current_span = trace.get_current_span()
            if current_span is trace.INVALID_SPAN:
                trace_id = getrandbits(128) or 1
                if not self._sampler.should_sample(trace_id, name, kind, is_continued=False):
                    return _UnsampledBlock(trace_id)
                self._ids.set_next_id(trace_id)
            elif not current_span.get_span_context().trace_flags.sampled:
                return NO_SPAN
        return _SpanBlock(self._tracer, context, (name, context, _KINDS[kind], dict(attributes), _links(links)))

    def record(
        self,
        name: str,
        started_at: datetime,
        ended_at: datetime,
        parent: str,
        attributes: Attributes,
        links: Sequence[str],
        failure: str | None,
        *,
        is_limited: bool,
    ) -> str | None:
        if (parent_context := _context_of(parent)) is None:
            return None
        if is_limited and not self._sampler.should_sample(parent_context.trace_id, "GET", "server", is_continued=True):
            return None
        span = self._tracer.start_span(
            name,
            _parent_of(parent),
            trace.SpanKind.INTERNAL,
            dict(attributes),
            _links(links),
            start_time=_nanoseconds(started_at),
        )
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(_nanoseconds(max(started_at, ended_at)))
        return _traceparent_of(span.get_span_context())

    def current(self) -> str | None:
        if (unsampled_block := _unsampled.get()) is not None:
            return unsampled_block.traceparent()
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        return _traceparent_of(context)

    def has_parent(self, parent: str | None) -> bool:
        if _context_of(parent) is not None:
            return True
        return _unsampled.get() is not None or trace.get_current_span() is not trace.INVALID_SPAN

    def is_sampled(self) -> bool:
        return _unsampled.get() is None and trace.get_current_span().get_span_context().trace_flags.sampled


def _parent_of(traceparent: str | None) -> Context:
    return _propagator.extract({HEADER: traceparent or ""}, context=Context())


def _context_of(traceparent: str | None) -> SpanContext | None:
    """Returns the span context that a ``traceparent`` describes.

    Returns None if the ``traceparent`` is missing or malformed.
    """
    if traceparent is None:
        return None
    context = trace.get_current_span(_parent_of(traceparent)).get_span_context()
    return context if context.is_valid else None


def _traceparent_of(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"


def _links(traceparents: Sequence[str]) -> list[Link]:
    return [Link(context) for traceparent in traceparents if (context := _context_of(traceparent)) is not None]


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1e9)


class _OtlpHandler(logging.Handler):
    """Sends log records by OTLP, with the ids of their context as attributes.

    Records of the SDK itself are never sent.
    """

    def __init__(self, provider: LoggerProvider, level: str) -> None:
        super().__init__(level)
        self._provider = provider

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == _SDK_LOGGER:
            return
        try:
            ids = getattr(record, "ids", {})
            attributes: dict[str, Any] = {name: escape_unencodable(value) for name, value in ids.items()}
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
    """Returns the severity number of OTLP for a level of ``logging``."""
    for lowest_level, number in (
        (logging.CRITICAL, SeverityNumber.FATAL),
        (logging.ERROR, SeverityNumber.ERROR),
        (logging.WARNING, SeverityNumber.WARN),
        (logging.INFO, SeverityNumber.INFO),
    ):
        if level >= lowest_level:
            return number
    return SeverityNumber.DEBUG


class _ComplaintLimit(logging.Filter):
    """Passes one record per minute of each logger of the SDK, because the SDK warns about every refused batch."""

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
    """Holds the tracer, the log handler and the metrics exporter of this process."""

    settings: OtelSettings
    exporters: Exporters
    resource: Resource
    tracer: OtelTracer | None = field(default=None, init=False)
    _closers: list[Callable[[], object]] = field(default_factory=list, init=False)
    _handler: _OtlpHandler | None = field(default=None, init=False)
    _filter: _ComplaintLimit = field(default_factory=_ComplaintLimit, init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        if self.exporters.spans is not None:
            ratio_sampler = TraceIdRatioBased(settings.sample_ratio)
            # The flag of a sender is not obeyed, only its refusal: what is kept follows from the id of the trace, so
            # that all daemons with one ratio keep the same traces.
            sampler = ParentBased(
                ratio_sampler, remote_parent_sampled=ratio_sampler, remote_parent_not_sampled=ALWAYS_OFF
            )
            id_generator = _PresetTraceIds()
            tracer_provider = TracerProvider(
                sampler=sampler,
                resource=self.resource,
                id_generator=id_generator,
                span_limits=_LIMITS,
                shutdown_on_exit=False,
            )
            span_processor = BatchSpanProcessor(
                self.exporters.spans,
                max_queue_size=settings.queue_size,
                schedule_delay_millis=_SEND_INTERVAL_MS,
                max_export_batch_size=min(_BATCH, settings.queue_size),
            )
            tracer_provider.add_span_processor(span_processor)
            self.tracer = OtelTracer(
                tracer_provider, id_generator, _RequestSampler(ratio_sampler, settings.reads_per_second)
            )
            self._closers.append(tracer_provider.shutdown)
        if self.exporters.logs is not None:
            log_provider = LoggerProvider(resource=self.resource, shutdown_on_exit=False)
            log_provider.add_log_record_processor(
                BatchLogRecordProcessor(
                    self.exporters.logs,
                    max_queue_size=settings.queue_size,
                    schedule_delay_millis=_SEND_INTERVAL_MS,
                    max_export_batch_size=min(_BATCH, settings.queue_size),
                )
            )
            self._handler = _OtlpHandler(log_provider, settings.log_level)
            self._closers.append(log_provider.shutdown)
        if self.exporters.metrics is not None:
            self._closers.append(self.exporters.metrics.shutdown)

    def handlers(self) -> list[logging.Handler]:
        """Returns the handler of the root logger that sends records."""
        return [self._handler] if self._handler is not None else []

    def limit_warnings(self, handlers: Sequence[logging.Handler]) -> None:
        """Limits the number of the SDK's warnings that the given handlers write."""
        for handler in handlers:
            handler.addFilter(self._filter)

    def close(self) -> None:
        """Sends the queued records for at most two seconds, and drops the remaining records."""
        threads = [threading.Thread(target=close_exporter, daemon=True) for close_exporter in self._closers]
        for thread in threads:
            thread.start()
        ends_at = time.monotonic() + min(self.settings.timeout_s, _CLOSE_S)
        for thread in threads:
            thread.join(max(0.0, ends_at - time.monotonic()))


def resource_of(daemon: str) -> Resource:
    """Returns the attributes of a daemon's process, extended by ``OTEL_RESOURCE_ATTRIBUTES``."""
    return Resource.create(
        {
            "service.namespace": "backendai",
            "service.name": f"backendai-{daemon}",
            "service.version": release_version(),
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
    )
