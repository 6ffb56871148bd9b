"""Makes spans of HTTP requests to other daemons, and sends the ``traceparent`` with each request."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import aiohttp

from ai.backend.infra.telemetry import log_context
from ai.backend.infra.telemetry.tracing import HEADER, Span, child_span, current_traceparent, is_tracing

_REQUEST_ID_HEADER = "X-Request-ID"


def client_traces() -> list[aiohttp.TraceConfig]:
    """Returns the trace configurations of an HTTP session to daemons of this installation. The list is empty without a
    tracer.

    Not for sessions that send elsewhere: they would tell strangers the ids of traces and requests.
    """
    if not is_tracing():
        return []
    config = aiohttp.TraceConfig()
    config.on_request_start.append(_on_start)
    config.on_request_end.append(_on_end)
    config.on_request_exception.append(_on_exception)
    return [config]


async def _on_start(
    _: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestStartParams
) -> None:
    span_block: AbstractContextManager[Span] = child_span(
        params.method,
        kind="client",
        attributes={
            "http.request.method": params.method,
            "server.address": params.url.host or "",
            "server.port": params.url.port or 0,
            "url.path": params.url.path,
        },
    )
    context.block, context.span = span_block, span_block.__enter__()
    traceparent = current_traceparent()
    if traceparent is not None:
        params.headers[HEADER] = traceparent
    request_id = log_context().get("request_id")
    if request_id is not None:
        params.headers.setdefault(_REQUEST_ID_HEADER, request_id)


async def _on_end(_: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
    context.span.set({"http.response.status_code": params.response.status})
    if params.response.status >= 500:
        context.span.fail(str(params.response.status))
    context.block.__exit__(None, None, None)


async def _on_exception(_: Any, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams) -> None:
    context.block.__exit__(type(params.exception), params.exception, None)
