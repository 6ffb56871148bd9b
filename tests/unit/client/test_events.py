from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

from ai.backend.client.events import NOW, Event, Parser, follow
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call


def parse(*lines: str) -> list[Event]:
    parser = Parser()
    return [event for line in lines if (event := parser.feed(line)) is not None]


def test_an_event_with_everything() -> None:
    assert parse(": comment", "event: started", "id: 7", "data: {", "data: }", "") == [Event("started", "{\n}", "7")]


def test_fields_without_space_colon_or_name() -> None:
    assert parse("data:x", "") == [Event("message", "x")]
    assert parse("data", "") == [Event("message", "")]
    assert parse("event: nothing", "", "data: a", "") == [Event("message", "a")]
    assert parse("unknown: x", "data: a: b", "") == [Event("message", "a: b")]


def test_the_last_id_stays_and_retry_is_taken() -> None:
    parser = Parser()
    told = [parser.feed(line) for line in ("id: 3", "data: a", "", "retry: 250", "retry: soon", "data: b", "")]
    assert told[-1] == Event("message", "b", "3")
    assert (parser.last_id, parser.retry_s) == ("3", 0.25)


def test_data_that_is_no_object_is_empty() -> None:
    assert Event("x", "[1]").data == {}
    assert Event("x", "no").data == {}
    assert Event("x", '{"a": 1}').data == {"a": 1}


class BrokenStreams:
    """A transport whose first stream breaks after the position; later ones have an event and end."""

    def __init__(self) -> None:
        self.last_ids: list[str | None] = []

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[SimpleNamespace]:
        self.last_ids.append((call.headers or {}).get("Last-Event-ID"))
        read = self._first if len(self.last_ids) == 1 else self._second
        yield SimpleNamespace(content=SimpleNamespace(iter_any=read))

    async def _first(self) -> AsyncIterator[bytes]:
        yield b"retry: 1\nevent: stream_position\nid: 41\ndata: {}\n\n"
        raise ConnectionResetError

    async def _second(self) -> AsyncIterator[bytes]:
        yield b"event: session_started\nid: 42\ndata: {}\n\nevent: server_close\ndata: {}\n\n"


async def test_a_stream_that_breaks_before_its_first_event_resumes_where_it_began() -> None:
    transport = BrokenStreams()
    events = [event async for event in follow(cast(Transport, transport), "/events/session", {}, after=NOW)]
    assert [(event.name, event.id) for event in events] == [("session_started", "42")]
    assert transport.last_ids == ["now", "41"]
