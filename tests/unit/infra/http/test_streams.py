from __future__ import annotations

from ai.backend.infra.http.streams import SERVER_CLOSE, SseEvent


def test_an_event_on_the_wire() -> None:
    assert SseEvent("a", {"x": "l1\nl2"}, "7").encode() == b'id: 7\nevent: a\ndata: {"x":"l1\\nl2"}\n\n'
    assert SseEvent("a", None).encode() == b"event: a\ndata: null\n\n"


def test_every_line_has_a_colon_and_the_last_event_has_json() -> None:
    for line in SERVER_CLOSE.encode().decode().split("\n"):
        assert not line or ":" in line
    assert b"data: {}" in SERVER_CLOSE.encode()
