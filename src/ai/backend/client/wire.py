"""Represents requests and their signed headers before a connection exists.

This module does without the HTTP library, whose import costs more than most calls.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendAPIError, BackendClientError, UnusableReply
from ai.backend.client.urls import host_of, raw_target
from ai.backend.common.signing import SignedParts, authorization, media_type, sign

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
TOKEN_HEADER = "X-BackendAI-Client-Token"
PROOF_HEADER = "X-BackendAI-Proof"


@dataclass(frozen=True, slots=True)
class Reply:
    """Holds a whole answer with a 2xx or 3xx status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the decoded body.

        Returns an empty object if there is no body. Raises UnusableReply if it is not JSON.
        """
        if not self.body:
            return {}
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise UnusableReply(f"the server's answer is not JSON: {self.body[:80]!r}") from error

    def object(self) -> dict[str, Any]:
        """Returns the decoded body, an object. Raises UnusableReply if the body is something else."""
        value = self.json()
        if not isinstance(value, dict):
            raise UnusableReply(f"the server's answer is not an object: {self.body[:80]!r}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Represents a request before it has an endpoint, a date and a signature.

    ``json`` is encoded if it is not None; ``form`` (a factory, because a form can be sent once) makes a multipart body.
    """

    method: str
    path: str
    params: Mapping[str, str] | None = None
    json: Any = None
    content: bytes | None = None
    content_type: str | None = None
    form: Any = None
    signed: bool = True
    repeatable: bool = False
    token: str | None = None
    headers: Mapping[str, str] | None = None


@contextmanager
def refusing_surrogates() -> Iterator[None]:
    """Raises BackendClientError for a text that has no UTF-8, such as the name of a file in another encoding."""
    try:
        yield
    except UnicodeEncodeError as error:
        excerpt = error.object[max(0, error.start - 20) : error.end + 20]
        raise BackendClientError(f"{excerpt!r} cannot be written in UTF-8") from None


def encode_segment(text: str) -> str:
    """Encodes a part of a path as the spec requires (03-07, "Parameters in URI").

    Raises BackendClientError if the text cannot be written in UTF-8.
    """
    with refusing_surrogates():
        return quote(text, safe="~()*!.'")


def new_token() -> str:
    """Returns a client token, which identifies one change, however often it is sent."""
    return uuid.uuid4().hex


def call_url(endpoint: str, path: str, params: Mapping[str, str] | None) -> str:
    return f"{endpoint.rstrip('/')}{path}{'?' + urlencode(params) if params else ''}"


def sign_headers(config: APIConfig, method: str, url: str, content_type: str | None) -> dict[str, str]:
    """Returns the headers that identify the caller of a request with this media type (None: without the header)."""
    date = datetime.now(UTC).isoformat()
    headers = {"Date": date, "X-BackendAI-Version": config.version, "X-BackendAI-Domain": config.domain}
    if config.is_anonymous:
        return headers
    access_key, secret_key = config.access_key, config.secret_key
    signed_parts = SignedParts(
        method=method,
        raw_target=raw_target(url),
        date=date,
        host=host_of(url),
        content_type=media_type(content_type),
        version=config.version,
    )
    signature = sign(signed_parts, secret_key, hash_name=config.hash_type)
    headers["Authorization"] = authorization(access_key, signature, hash_name=config.hash_type)
    return headers


def prepare_request(config: APIConfig, call: Call) -> tuple[str, dict[str, str], Any]:
    """Returns the request of a call to the endpoint in use, dated now: its URL, its headers and its body.

    Raises BackendClientError if a text of the call cannot be written in UTF-8.
    """
    with refusing_surrogates():
        url = call_url(config.endpoint_url, call.path, call.params)
        body, content_type = _encode_body(call)
    headers = {"User-Agent": config.user_agent, **trace_headers(), **(call.headers or {})}
    if call.token:
        headers[TOKEN_HEADER] = call.token
    if call.signed:
        headers |= sign_headers(config, call.method, url, content_type)
        if config.proof:
            headers[PROOF_HEADER] = config.proof
    if content_type and call.form is None:
        headers["Content-Type"] = content_type
    return url, headers, body


def _encode_body(call: Call) -> tuple[Any, str | None]:
    """Returns the body of a call and its media type. Raises UnicodeEncodeError for a text that has no UTF-8."""
    if call.form is not None:
        return call.form(), "multipart/form-data"
    if call.json is not None:
        return json.dumps(call.json, ensure_ascii=False).encode(), "application/json"
    if call.content is not None:
        return call.content, call.content_type or "application/octet-stream"
    return None, "text/plain"


def api_error_of(status: int, reason: str, body: bytes) -> BackendAPIError:
    """Returns the exception for an answer with a status of 400 or more."""
    body_text = body.decode(errors="replace")
    try:
        problem_document = json.loads(body_text)
    except ValueError:
        problem_document = None
    if not isinstance(problem_document, dict):
        problem_document = {"msg": body_text[:200].strip()} if body_text.strip() else {}
    return BackendAPIError(status, reason, problem_document)


def trace_headers() -> Mapping[str, str]:
    """Returns the header ``traceparent`` (W3C Trace Context) of a traced request. Returns no header outside of a trace.

    A program that traces itself with OpenTelemetry has it from its current span; any other one from the variable
    ``TRACEPARENT``, as build systems and sessions set it. Nothing is imported for it.
    """
    trace_api = sys.modules.get("opentelemetry.trace")
    if trace_api is not None:
        span_context = trace_api.get_current_span().get_span_context()
        if span_context.is_valid:
            flags = int(span_context.trace_flags) & 1
            return {"traceparent": f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{flags:02x}"}
    traceparent = os.environ.get("TRACEPARENT", "")
    return {"traceparent": traceparent} if _TRACEPARENT.fullmatch(traceparent) else {}
