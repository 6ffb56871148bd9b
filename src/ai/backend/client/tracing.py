"""The trace of requests, which servers receive in the header ``traceparent`` (W3C Trace Context).

A program that traces itself with OpenTelemetry has it from its current span; any other one from the variable
``TRACEPARENT``, as build systems and sessions set it. Nothing is imported for it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

_PATTERN = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace_headers() -> Mapping[str, str]:
    """Returns the headers of a request that is part of a trace; none outside of one."""
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        context = api.get_current_span().get_span_context()
        if context.is_valid:
            flags = int(context.trace_flags) & 1
            return {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"}
    parent = os.environ.get("TRACEPARENT", "")
    return {"traceparent": parent} if _PATTERN.fullmatch(parent) else {}
