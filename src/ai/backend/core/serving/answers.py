"""Reads model, prompt and token counts from requests and responses of OpenAI's interface while they pass.

Engines name the tokens of a stream only if they are asked to, so that they are; a client that has not asked does not
get that event. Nothing that an engine sends is believed to be well formed.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ai.backend.core.serving.usage import Cost

BYTES_PER_TOKEN = 4
DEFAULT_OUTPUT_TOKENS = 256
"""The number of tokens that a response is assumed to have if the request names no maximum."""
MAX_SCAN_BYTES = 64 * 1024
"""The number of bytes at the end of a response that are searched for its token counts."""
MAX_EVENT_BYTES = 1 << 18
_MAX_TOKENS = 2**31
_USAGE_PATTERN = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_EVENT_END_BYTES = 4
_ASK = b'"stream_options":{"include_usage":true},'
_SPACES = b" \t\r\n"


class _Body(msgspec.Struct):
    """Holds the parts of a request body that are read. All other parts may have any form."""

    model: Any = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    stream: Any = False
    stream_options: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    cache_salt: Any = None
    user: Any = None


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a request to a model.

    ``prompt`` is the JSON text of its input, ``body`` is what the engine gets. ``strips_usage``: the client has not
    asked for the tokens of its stream. ``max_output`` is None if it names no maximum.
    """

    model: str
    prompt: bytes
    body: bytes
    is_stream: bool = False
    strips_usage: bool = False
    max_output: int | None = None
    salt: str = ""
    prompt_tokens: int = 0


def read_request(body: bytes) -> ModelRequest:
    """Reads the body of a request to a model.

    Raises ValueError, with a message for the client, unless it is a JSON object.
    """
    try:
        parsed_body = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise ValueError("The body must be a JSON object.") from None
    prompt = bytes(parsed_body.messages) or bytes(parsed_body.prompt) or bytes(parsed_body.input)
    is_stream = parsed_body.stream is True
    strips_usage = is_stream and parsed_body.stream_options is None and bool(parsed_body.messages or parsed_body.prompt)
    if strips_usage and b'"stream_options"' in body:  # null, or given twice: leave it as it is
        strips_usage = False
    max_tokens = [
        token_count
        for token_count in (parsed_body.max_completion_tokens, parsed_body.max_tokens)
        if _is_count(token_count)
    ]
    return ModelRequest(
        model=parsed_body.model if isinstance(parsed_body.model, str) else "",
        prompt=prompt,
        body=_request_usage(body) if strips_usage else body,
        is_stream=is_stream,
        strips_usage=strips_usage,
        max_output=max_tokens[0] if max_tokens else None,
        salt=parsed_body.cache_salt if isinstance(parsed_body.cache_salt, str) else "",
        prompt_tokens=len(prompt) // BYTES_PER_TOKEN,
    )


def _request_usage(body: bytes) -> bytes:
    """Returns a request's body with an added member that asks the engine to report token counts.

    The added member is the first one.

    The body must be an object with other members.
    """
    member_start = body.index(b"{") + 1
    return body[:member_start] + _ASK + body[member_start:]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_TOKENS


def cost_of(usage: object) -> Cost | None:
    """Returns the token counts that an engine reports. Returns None if the counts are missing or impossible."""
    if not isinstance(usage, dict):
        return None
    prompt_tokens, output_tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    if not (_is_count(prompt_tokens) and _is_count(output_tokens)) or not (prompt_tokens or output_tokens):
        return None
    prompt_details = usage.get("prompt_tokens_details")
    cached_tokens = prompt_details.get("cached_tokens", 0) if isinstance(prompt_details, dict) else 0
    return Cost(
        prompt=prompt_tokens,
        output=output_tokens,
        cached=min(cached_tokens, prompt_tokens) if _is_count(cached_tokens) else 0,
    )


class AnswerReader:
    """Counts the tokens of one response while the response passes to the client.

    ``feed`` returns what the client gets of a piece.

    Only events that were asked for on behalf of the proxy are left out, which needs whole events; any other answer
    passes as it comes.
    """

    def __init__(self, request: ModelRequest, *, is_events: bool, is_encoded: bool = False) -> None:
        self._request = request
        self._is_events = is_events and not is_encoded
        self._strips = request.strips_usage and self._is_events
        self._rest = b""
        self._tail = b""
        self._named: Cost | None = None
        self._events = 0
        self._bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Receives a piece of the answer's body."""
        self._bytes += len(data)
        if not self._is_events:
            self._tail = (self._tail + data)[-MAX_SCAN_BYTES:]
            return data
        buffered_data, event_start = self._rest + data, 0
        passed_events: list[bytes] = []
        for match in _EVENT_END.finditer(buffered_data, max(0, len(self._rest) - _EVENT_END_BYTES + 1)):
            event = buffered_data[event_start : match.end()]
            event_start = match.end()
            if not (self._read_event(event) and self._strips):
                passed_events.append(event)
        self._rest = buffered_data[event_start:]
        if len(self._rest) > MAX_EVENT_BYTES:  # this is no stream of events
            passed_events.append(self._rest)
            self._rest, self._is_events, was_stripping = b"", False, self._strips
            self._strips = False
            return b"".join(passed_events) if was_stripping else data
        return b"".join(passed_events) if self._strips else data

    def finish(self) -> bytes:
        """Returns the bytes that were held back, when the response has ended."""
        held_bytes, self._rest = self._rest, b""
        if held_bytes and self._is_events:
            self._read_event(held_bytes)
        return held_bytes if self._strips else b""

    def _read_event(self, event: bytes) -> bool:
        """Returns True if an event holds only the token counts of the whole stream."""
        has_data = event.startswith(b"data:") or b"\ndata:" in event
        if not has_data or event.strip(_SPACES).endswith(b"[DONE]"):
            return False
        self._events += 1
        if b'"usage"' not in event:
            return False
        data = b"".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
        try:
            event_data = msgspec.json.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return False
        if not isinstance(event_data, dict):
            return False
        cost = cost_of(event_data.get("usage"))
        if cost is not None:
            self._named = cost
        return cost is not None and event_data.get("choices") == []

    @property
    def cost(self) -> Cost:
        """Returns the token counts that the engine reported, or an estimate from the passed data."""
        if self._named is not None:
            return self._named
        if not self._is_events:
            for match in reversed(list(_USAGE_PATTERN.finditer(self._tail))):
                try:
                    reported_cost = cost_of(msgspec.json.decode(match[1]))
                except (msgspec.MsgspecError, RecursionError, UnicodeError):
                    reported_cost = None
                if reported_cost is not None:
                    return reported_cost
        output_tokens = self._events if self._is_events else self._bytes // BYTES_PER_TOKEN
        return Cost(prompt=self._request.prompt_tokens, output=output_tokens, is_estimated=True)
