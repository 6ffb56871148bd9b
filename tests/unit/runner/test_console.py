from __future__ import annotations

from ai.backend.runner.console import (
    MAX_BACKGROUND_CHARS,
    MAX_FRAME_BYTES,
    MAX_ITEM_BYTES,
    MAX_RICH_CHARS,
    MAX_UNSENT_CHARS,
    MAX_UNSENT_ITEMS,
    Console,
)


def open_console() -> Console:
    console = Console()
    console.limit = MAX_UNSENT_CHARS
    return console


def everything(console: Console) -> list[list[str]]:
    items: list[list[str]] = []
    while taken := console.take_items():
        items += taken
    return items


def test_adjacent_text_of_one_stream_is_one_item() -> None:
    console = open_console()
    for stream, text in [("stdout", "a"), ("stdout", "b"), ("stderr", "c"), ("stdout", "d"), ("stdout", "")]:
        console.add_text(stream, text)
    assert everything(console) == [["stdout", "ab"], ["stderr", "c"], ["stdout", "d"]]
    assert console.is_empty


def test_rich_items_without_content_count() -> None:
    console = open_console()
    for _ in range(200_000):
        console.add_rich("html", "", 0)
    taken = console.take_items()
    assert len(taken) <= MAX_FRAME_BYTES // 256 + 1
    assert len(taken) + len(everything(console)) <= MAX_UNSENT_ITEMS + 1


def test_a_character_in_two_reads_is_one_character() -> None:
    console = open_console()
    for byte in "\u20ac".encode():
        console.feed("stdout", bytes([byte]))
    console.feed("stdout", b"\xff")
    console.feed("stderr", b"\xe2\x82")
    console.end_of_text()
    console.feed("stderr", b"\xac")
    assert everything(console) == [["stdout", "\u20ac\ufffd"], ["stderr", "\ufffd\ufffd"]]


def test_items_and_frames_have_a_size() -> None:
    console = open_console()
    console.add_text("stdout", "\U0001f600" * 900_000)
    frames = []
    while taken := console.take_items():
        frames.append(taken)
    assert all(len(text.encode()) <= MAX_ITEM_BYTES for frame in frames for _, text in frame)
    assert all(sum(len(text.encode()) for _, text in frame) <= MAX_FRAME_BYTES + MAX_ITEM_BYTES for frame in frames)
    assert "".join(text for frame in frames for _, text in frame) == "\U0001f600" * 900_000


def test_what_is_dropped_is_counted_by_stream() -> None:
    console = open_console()
    console.add_text("stdout", "x" * (MAX_UNSENT_CHARS + 10))
    console.add_text("stdout", "y" * 5)
    console.add_text("stderr", "still")
    assert sum(len(text) for _, text in everything(console)) == MAX_UNSENT_CHARS + 5
    assert console.take_dropped() == {"stdout": 15}
    assert console.take_dropped() == {}
    console.add_text("stdout", "again")
    assert everything(console) == [["stdout", "again"]]


def test_background_output_has_a_smaller_limit() -> None:
    console = Console()
    console.add_text("stdout", "x" * MAX_UNSENT_CHARS)
    assert sum(len(text) for _, text in everything(console)) == MAX_BACKGROUND_CHARS


def test_many_tiny_items_are_bounded() -> None:
    console = open_console()
    for n in range(100_000):
        console.add_text("stderr" if n % 2 else "stdout", "z")
    items = everything(console)
    assert len(items) <= 20_000
    kept = sum(len(text) for _, text in items)
    assert kept + sum(console.take_dropped().values()) == 100_000


def test_rich_items_keep_their_place_and_are_bounded() -> None:
    console = open_console()
    console.add_text("stdout", "a")
    console.add_rich("html", "<b/>", 4)
    console.add_text("stdout", "b")
    console.add_rich("html", "<huge/>", MAX_RICH_CHARS)
    items = everything(console)
    assert items[:3] == [["stdout", "a"], ["html", "<b/>"], ["stdout", "b"]]
    assert items[3][0] == "stderr"
    console.add_rich("html", "<now it fits/>", MAX_RICH_CHARS - 1024)
    assert everything(console) == [["html", "<now it fits/>"]]


def test_hidden_text_can_be_revealed() -> None:
    console = open_console()
    console.hide()
    console.add_text("stdout", "log" * 100_000)
    console.add_text("stderr", "why")
    assert console.is_empty
    console.reveal(is_shown=True)
    items = everything(console)
    assert items[-1] == ["stderr", "why"]
    assert sum(len(text) for _, text in items) <= 2 * MAX_ITEM_BYTES
    console.hide()
    console.add_text("stdout", "log")
    console.reveal(is_shown=False)
    assert console.is_empty
