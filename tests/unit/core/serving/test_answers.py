"""Requests and answers as they pass: what is asked for is left out again, and nothing an engine sends is believed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.core.serving.answers import MAX_EVENT_BYTES, AnswerReader, ModelRequest, read_request
from ai.backend.core.serving.usage import Cost

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def request(**other: Any) -> ModelRequest:
    return read_request(json.dumps({**CHAT, **other}).encode())


def events(*objects: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in objects) + b"data: [DONE]\n\n"


DELTAS = [{"choices": [{"delta": {"content": text}}]} for text in ("one", 'two "usage"', "three")]
LAST = {"choices": [], "usage": USAGE}


def test_requests_are_read() -> None:
    read = request(max_tokens=7, cache_salt="s", stream=False)
    assert (read.model, read.max_output, read.salt, read.is_stream, read.strips_usage) == ("m", 7, "s", False, False)
    assert read.prompt == b'[{"role": "user", "content": "hello"}]'
    assert read.prompt_tokens == len(read.prompt) // 4
    assert read_request(b'{"input": ["a"], "model": 4}').model == ""
    assert request(max_tokens=-1, max_completion_tokens=True).max_output is None


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'"x"', b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="JSON object"):
        read_request(body)


def test_the_tokens_of_a_stream_are_asked_for_unless_the_client_says_anything_about_them() -> None:
    read = request(stream=True)
    assert read.strips_usage
    assert json.loads(read.body) == {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    for options in ({"include_usage": True}, {"include_usage": False}, {}, None, 5):
        given_by_client = request(stream=True, stream_options=options)
        assert not given_by_client.strips_usage
        assert json.loads(given_by_client.body)["stream_options"] == options
    assert not read_request(b'{"input": "a", "stream": true}').strips_usage


def feed(reader: AnswerReader, data: bytes, cuts: list[int]) -> bytes:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    return b"".join([*map(reader.feed, pieces), reader.finish()])


@given(st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_a_stream_passes_whole_but_for_what_was_asked_for(cuts: list[int], asked: bool) -> None:
    read = request(stream=True, **({"stream_options": {"include_usage": True}} if asked else {}))
    reader = AnswerReader(read, is_events=True)
    passed = feed(reader, events(*DELTAS, LAST), cuts)
    assert passed == (events(*DELTAS, LAST) if asked else events(*DELTAS))
    assert reader.cost == Cost(prompt=12, output=3, cached=8)


@given(st.binary(max_size=3000), st.lists(st.integers(0, 3000), max_size=6), st.booleans(), st.booleans())
def test_garbage_passes_unchanged_and_costs_an_estimate(
    garbage: bytes, cuts: list[int], streams: bool, is_events: bool
) -> None:
    reader = AnswerReader(request(stream=streams), is_events=is_events)
    assert feed(reader, garbage, cuts) == garbage
    assert reader.cost.is_estimated


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5, "completion_tokens": 1},
        {"prompt_tokens": 1, "completion_tokens": 10**30},
        {"prompt_tokens": "9", "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 0, "completion_tokens": 0},
        [],
        None,
    ],
)
@pytest.mark.parametrize("is_events", [True, False])
def test_a_replica_that_lies_about_its_tokens_is_estimated(usage: Any, is_events: bool) -> None:
    reader = AnswerReader(request(stream=is_events), is_events=is_events)
    answer = {"choices": [], "usage": usage}
    data = events(*DELTAS, answer) if is_events else json.dumps(answer).encode()
    assert feed(reader, data, []) == data
    assert reader.cost.is_estimated


def test_a_plain_answer_names_its_tokens_at_its_end() -> None:
    content = {"content": 'a text with "usage": {"prompt_tokens": 999, "completion_tokens": 999}'}
    body = json.dumps({"choices": [{"message": content}], "usage": USAGE}).encode()
    reader = AnswerReader(request(), is_events=False)
    assert feed(reader, body, [5, 50]) == body
    assert reader.cost == Cost(prompt=12, output=3, cached=8)


def test_what_has_no_events_is_not_held_for_ever() -> None:
    reader = AnswerReader(request(stream=True), is_events=True)
    data = b"data: " + b"x" * (MAX_EVENT_BYTES + 10)
    assert reader.feed(data) == data
    assert reader.feed(b"y") == b"y"


def test_an_encoded_answer_is_not_read() -> None:
    reader = AnswerReader(request(stream=True), is_events=True, is_encoded=True)
    data = events(*DELTAS, LAST)
    assert feed(reader, data, []) == data
