import io
from typing import Any

import pytest

from ai.backend.cli.run.renderer import Renderer, decode_media


@pytest.fixture
def streams() -> tuple[io.StringIO, io.StringIO]:
    return io.StringIO(), io.StringIO()


def show(streams: tuple[io.StringIO, io.StringIO], *items: list[Any], prefix: str = "") -> tuple[str, str]:
    renderer = Renderer(prefix=prefix, out=streams[0], err=streams[1])
    for item in items:
        renderer.show([item])
    renderer.finish()
    return streams[0].getvalue(), streams[1].getvalue()


def test_text_goes_where_the_program_sent_it(streams: tuple[io.StringIO, io.StringIO]) -> None:
    assert show(streams, ["stdout", "a"], ["stderr", "b"], ["stdout", "c"]) == ("ac", "b")


def test_parallel_lines_begin_with_their_case(streams: tuple[io.StringIO, io.StringIO]) -> None:
    items = (["stdout", "one\ntw"], ["stdout", "o\nthr"], ["stderr", "e\n"], ["stdout", "ee"])
    assert show(streams, *items, prefix="[1] ") == ("[1] one\n[1] two\n[1] three\n", "[1] e\n")


def test_logs_and_unknown_items_are_shown_too(streams: tuple[io.StringIO, io.StringIO]) -> None:
    items = (["log", ["info", "2026-01-01T00:00:00", "name", "text"]], ["novelty", {"a": 1}])
    assert show(streams, *items) == ("", "info 2026-01-01T00:00:00 name text\n[novelty] {'a': 1}\n")


@pytest.mark.parametrize(
    ("mime", "content", "data"),
    [
        ("image/png", "data:image/png;base64,iVBORw==", b"\x89PNG"),
        ("image/svg+xml", "<svg/>", b"<svg/>"),
        ("x/y", "data:,a%20b", b"a b"),
    ],
)
def test_media(mime: str, content: str, data: bytes) -> None:
    assert decode_media(mime, content) == data
