"""Makes spans of requests and of the work that they cause, if a tracer is installed.

Without a tracer nothing is imported or allocated here: a caller pays one comparison. The context of a span is told to
other daemons as a ``traceparent`` (W3C Trace Context, level 1); ``tracestate`` and baggage are not passed on, since
their senders cannot be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Literal, Protocol, Self, TypeAlias

HEADER = "traceparent"
MAX_LENGTH = 55
"""Characters of a ``traceparent`` of version 00, the only one that is written here."""
SpanKind = Literal["internal", "server", "client", "producer", "consumer"]
Value: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, Value]


class Span(Protocol):
    """Represents a span that has not ended.

    An exception that leaves its block, other than a cancellation, marks it as failed.
    """

    @property
    def is_recording(self) -> bool:
        """Returns False if the span is not exported, so that callers need not compute its attributes."""

    def name(self, name: str) -> None:
        """Replaces the name."""

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""

    def fail(self, reason: str) -> None:
        """Marks the span as failed."""

    def link(self, traceparent: str | None) -> None:
        """Links the span with a span of another trace. None and malformed texts are ignored."""


class Tracer(Protocol):
    """Makes spans. No method blocks or raises."""

    def span(
        self, name: str, kind: SpanKind, parent: str | None, attributes: Attributes, links: Sequence[str]
    ) -> AbstractContextManager[Span]:
        """Starts a span and makes it the current one. Without ``parent``, the current span is its parent."""

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
        """Records a span that has ended, and returns its ``traceparent``.

        Returns None if ``parent`` is malformed, or if ``is_limited`` and the limit of reads with a ``traceparent`` is
        reached.
        """

    def current(self) -> str | None:
        """Returns the ``traceparent`` of the current span. Returns None if there is no current span."""

    def has_parent(self, parent: str | None) -> bool:
        """Returns True if ``parent`` is well-formed, or there is a current span."""

    def is_sampled(self) -> bool:
        """Returns True if the current span is exported."""


class _NoSpan:
    """Implements a span that records nothing, for work whose spans are not exported."""

    __slots__ = ()
    is_recording = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def name(self, name: str) -> None:
        pass

    def set(self, attributes: Attributes) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass

    def link(self, traceparent: str | None) -> None:
        pass


NO_SPAN = _NoSpan()
_NO_ATTRIBUTES: Attributes = {}
_tracer: Tracer | None = None


def install_tracer(tracer: Tracer | None) -> None:
    """Sets the tracer that makes all spans of this process. The tracer None turns tracing off."""
    global _tracer  # noqa: PLW0603  # of the process, as its loggers are
    _tracer = tracer


def is_tracing() -> bool:
    """Returns True if this process has a tracer."""
    return _tracer is not None


def span(
    name: str,
    *,
    kind: SpanKind = "internal",
    parent: str | None = None,
    attributes: Attributes = _NO_ATTRIBUTES,
    links: Sequence[str] = (),
) -> AbstractContextManager[Span]:
    """Returns a context manager that starts a span and makes the span current while the block runs.

    The parent of the span is ``parent`` (a ``traceparent``), else the current span, else none.
    A malformed ``parent`` counts as none. Without a tracer the block has no span.
    """
    return _tracer.span(name, kind, parent, attributes, links) if _tracer is not None else NO_SPAN


def child_span(
    name: str, *, kind: SpanKind = "internal", parent: str | None = None, attributes: Attributes = _NO_ATTRIBUTES
) -> AbstractContextManager[Span]:
    """Returns a block with a span if ``parent`` or a current span exists. Periodic work thus begins no traces."""
    if _tracer is None or not _tracer.has_parent(parent):
        return NO_SPAN
    return _tracer.span(name, kind, parent, attributes, ())


def record_span(
    name: str,
    started_at: datetime,
    ended_at: datetime,
    *,
    parent: str | None,
    attributes: Attributes = _NO_ATTRIBUTES,
    links: Sequence[str | None] = (),
    failure: str | None = None,
    is_limited: bool = False,
) -> str | None:
    """Records a span that has ended, below ``parent``, and returns its ``traceparent``. Does nothing without a parent.

    ``is_limited``: ``parent`` is from a client, and the span counts towards the limit of reads with one.
    """
    if _tracer is None or parent is None:
        return None
    existing_links = [link for link in links if link]
    return _tracer.record(
        name, started_at, ended_at, parent, attributes, existing_links, failure, is_limited=is_limited
    )


def current_traceparent() -> str | None:
    """Returns the ``traceparent`` of the current span. Returns None if nothing is traced."""
    return _tracer.current() if _tracer is not None else None


def trace_ids() -> Mapping[str, str]:
    """Returns ``trace_id`` and ``span_id`` of the current span, for logs. The result is empty if nothing is traced."""
    traceparent = _tracer.current() if _tracer is not None else None
    return {"trace_id": traceparent[3:35], "span_id": traceparent[36:52]} if traceparent is not None else {}


def exemplar() -> dict[str, str] | None:
    """Returns the label for an observation's exemplar. Returns None unless the current span is exported."""
    if _tracer is None or not _tracer.is_sampled():
        return None
    traceparent = _tracer.current()
    return {"trace_id": traceparent[3:35]} if traceparent is not None else None
