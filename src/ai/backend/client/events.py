"""Parses Server-Sent Events, and follows a stream across lost connections (client wire contract 1.8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from ai.backend.client.exceptions import EndpointUnreachable
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call

CLOSING_EVENT = "server_close"
POSITION_EVENT = "stream_position"
"""Has only an id: that of the last event before the stream."""
NOW = "now"
"""Stands for the id of the last event where none is known: the stream then begins with its position."""
_MAX_LINE_BYTES = 1024 * 1024
_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class Event:
    """Holds the name of an event, its data as text, and its id if the server sent one."""

    name: str
    text: str
    id: str | None = None

    @property
    def data(self) -> dict[str, Any]:
        """Returns the decoded data. Returns an empty object if the data is not a JSON object."""
        try:
            value = json.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


class Parser:
    """Parses events from lines. The lines have no line ends."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.retry_s = _RETRY_S
        self._name = ""
        self._data: list[str] = []

    def feed(self, line: str) -> Event | None:
        """Reads a line. After an empty line, returns the event that the lines before it describe."""
        if not line:
            event = Event(self._name or "message", "\n".join(self._data), self.last_id) if self._data else None
            self._name, self._data = "", []
            return event
        field_name, _, field_value = line.partition(":")
        field_value = field_value.removeprefix(" ")
        if field_name == "event":
            self._name = field_value
        elif field_name == "data":
            self._data.append(field_value)
        elif field_name == "id":
            self.last_id = field_value
        elif field_name == "retry" and field_value.isdecimal():
            self.retry_s = int(field_value) / 1000
        return None


async def _read_lines(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    unfinished_line = b""
    async for chunk in content.iter_any():
        *lines, unfinished_line = (unfinished_line + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")
        if len(unfinished_line) > _MAX_LINE_BYTES:
            unfinished_line = b""


async def follow(
    transport: Transport,
    path: str,
    params: Mapping[str, str],
    *,
    after: str | None = None,
    opened: Callable[[], None] = lambda: None,
) -> AsyncIterator[Event]:
    """Yields the events of ``path`` until the server says that no more will come.

    A lost connection is made again and resumed after the last received event, or after ``after`` as long as there was
    none. ``opened`` is called for every connection once the server listens.

    Raises:
        BackendAPIError: the server refuses the stream.
        EndpointUnreachable: no endpoint answers.
    """
    parser = Parser()
    while True:
        headers = {"Accept": "text/event-stream"}
        last_id = parser.last_id or after
        if last_id:
            headers["Last-Event-ID"] = last_id
        call = Call(method="GET", path=path, params=params, repeatable=True, headers=headers)
        try:
            async with transport.stream(call) as response:
                opened()
                async for line in _read_lines(response.content):
                    event = parser.feed(line)
                    if event is None:
                        continue
                    if event.name == CLOSING_EVENT:
                        return
                    if event.name != POSITION_EVENT:
                        yield event
        except EndpointUnreachable:
            raise
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            pass  # the connection was lost: it is made again
        await asyncio.sleep(parser.retry_s)
