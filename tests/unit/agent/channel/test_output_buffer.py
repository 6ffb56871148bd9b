"""What a run printed until somebody fetches it."""

from __future__ import annotations

from ai.backend.agent.channel.output_buffer import MAX_ITEMS, RICH_LIMIT, STREAM_LIMIT, ConsoleBuffer
from ai.backend.common.states import RunStatus
from ai.backend.common.wire.execution import RunResult

FINISHED = RunResult(run_id="r", status=RunStatus.FINISHED, exit_code=0)


def test_adjacent_text_of_one_stream_is_one_item() -> None:
    buffer = ConsoleBuffer()
    for i, (kind, text) in enumerate([("stdout", "a"), ("stdout", "b"), ("stderr", "c"), ("stdout", "d")]):
        buffer.add(kind, text, i + 1)
    assert buffer.first_seq == 1
    assert buffer.take() == ([["stdout", "ab"], ["stderr", "c"], ["stdout", "d"]], None)
    assert buffer.first_seq is None


def test_rich_items_stand_alone() -> None:
    buffer = ConsoleBuffer()
    buffer.add("media", ["image/png", "data:"], 1)
    buffer.add("media", ["image/png", "data:"], 2)
    buffer.add("html", "<b>", 3)
    assert [item[0] for item in buffer.take()[0]] == ["media", "media", "html"]


def test_each_stream_keeps_its_limit_and_counts_the_rest() -> None:
    buffer = ConsoleBuffer()
    buffer.add("stdout", "x" * (STREAM_LIMIT - 1), 1)
    buffer.add("stdout", "yyy", 2)
    buffer.add("stdout", "zzz", 3)
    buffer.add("stderr", "e" * STREAM_LIMIT, 4)
    items, _ = buffer.take()
    assert [(kind, len(text)) for kind, text in items] == [("stdout", STREAM_LIMIT), ("stderr", STREAM_LIMIT)]
    assert items[0][1].endswith("xy")
    assert buffer.dropped == {"stdout": 5}


def test_the_limit_is_of_one_answer() -> None:
    buffer = ConsoleBuffer()
    buffer.add("stdout", "x" * STREAM_LIMIT, 1)
    buffer.take()
    buffer.add("stdout", "more", 2)
    assert buffer.take()[0] == [["stdout", "more"]]


def test_rich_items_are_bounded_too() -> None:
    buffer = ConsoleBuffer()
    for seq in range(4):
        buffer.add("html", "x" * (RICH_LIMIT // 2), seq + 1)
    assert len(buffer.take()[0]) == 2
    assert buffer.dropped == {"html": 2}


def test_items_without_content_are_bounded() -> None:
    buffer = ConsoleBuffer()
    for seq in range(MAX_ITEMS + 10):
        buffer.add("html", "", seq + 1)
    assert len(buffer.take()[0]) == MAX_ITEMS
    assert buffer.dropped == {"html": 10}


def test_text_that_alternates_between_the_streams_is_bounded() -> None:
    buffer = ConsoleBuffer()
    for seq in range(MAX_ITEMS + 10):
        buffer.add(("stdout", "stderr")[seq % 2], "xy", seq + 1)
    items, _ = buffer.take()
    assert len(items) == MAX_ITEMS
    assert items[-1] == ["stderr", "xy" * 6]
    assert buffer.dropped == {"stdout": 10}


def test_a_mark_ends_an_answer_and_starts_the_limit_anew() -> None:
    buffer = ConsoleBuffer()
    buffer.add("stdout", "b" * STREAM_LIMIT, 1)
    buffer.add_state_change(RunResult(run_id="r", status=RunStatus.BUILD_FINISHED, exit_code=0), 2)
    buffer.add("stdout", "run", 3)
    buffer.add_state_change(FINISHED, 4)
    items, mark = buffer.take()
    assert (len(items[0][1]), mark and mark.status) == (STREAM_LIMIT, RunStatus.BUILD_FINISHED)
    assert buffer.first_seq == 3
    assert buffer.take() == ([["stdout", "run"]], FINISHED)
    assert buffer.next_state_change is None


def test_an_empty_text_is_no_item() -> None:
    buffer = ConsoleBuffer()
    buffer.add("stdout", "", 1)
    assert buffer.take() == ([], None)
