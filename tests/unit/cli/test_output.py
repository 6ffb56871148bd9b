import json

import pytest

from ai.backend.cli.lifecycle import describe_devices
from ai.backend.cli.output import (
    MutedScreen,
    OutputMode,
    Screen,
    SlotDisplays,
    cell,
    decoded,
    describe_slots,
    readable_amount,
    table,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        ({}, "-"),
        (0, "0"),
        (False, "no"),
        (True, "yes"),
        ("a\n b", "a b"),
        ("\x1b[31mred\x07 \u202e", "\\x1b[31mred\\x07 \\u202e"),
        ([1, "x"], "1, x"),
        ({"a": 1, "b": None}, "a=1, b=-"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


def test_no_terminal_obeys_what_others_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    screen, text = Screen(), "a\x1b]0;b\x07\r\nc\x9b1m"
    screen.say(text)
    screen.note(text)
    screen.facts([("name", text)])
    screen.error(text)
    printed = "".join(capsys.readouterr())
    assert "\\x1b]0;b\\x07" in printed
    assert all(char.isprintable() for char in printed.replace("\n", ""))


def test_devices_are_told_on_one_line() -> None:
    devices = json.dumps({"npu": [{"device_id": "n\nname  forged", "model_name": "\x1b[31mN"}]})
    assert describe_devices([{"attached_devices": devices}]) == "npu: \\x1b[31mN (n name forged)"
    assert describe_slots({"npu.device": "1"}, {"npu.device": {"display_unit": "U\nx\x07"}}) == "npu.device=1 U x\\x07"


def test_columns_are_aligned_also_for_wide_characters() -> None:
    lines = table(["Name", "N"], [["한국", "1"], ["abcdefgh", "2"]]).splitlines()
    assert lines == ["Name      N", "────────  ─", "한국      1", "abcdefgh  2"]


@pytest.mark.parametrize(
    ("slot", "amount", "text"),
    [
        ("mem", "268435456", "256m"),
        ("mem", 1024, "1k"),
        ("mem", "1000", "1000"),
        ("mem", "0", "0"),
        ("mem", "25275916288", "23.5g"),
        ("mem", "1234567890", "1.1g"),
        ("mem", "Infinity", "Infinity"),
        ("cpu", "4", "4"),
        ("cuda.shares", "0.5", "0.5"),
    ],
)
def test_amounts(slot: str, amount: object, text: str) -> None:
    assert readable_amount(slot, amount) == text


def test_slots_in_words() -> None:
    assert describe_slots({"cpu": "1", "mem": "134217728"}) == "cpu=1, mem=128m"


@pytest.mark.parametrize(
    ("slot", "amount", "text"),
    [
        ("cuda.shares", "0.5", "cuda.shares=0.50 FGPU"),
        ("cuda.shares", "4", "cuda.shares=4.00 FGPU"),
        ("cuda.shares", "Infinity", "cuda.shares=Infinity FGPU"),
        ("cuda.shares", "a lot", "cuda.shares=a lot FGPU"),
        ("cuda.device", "0.125", "cuda.device=0.125 GPU"),
        ("tpu.hbm", "34359738368", "tpu.hbm=32g"),
        ("mem", "134217728", "mem=128m"),
        ("new.slot", "7", "new.slot=7"),
    ],
)
def test_slots_in_the_words_of_their_plugins(slot: str, amount: str, text: str) -> None:
    displays: SlotDisplays = {
        "cuda.shares": {"display_unit": "FGPU", "number_format": {"binary": False, "round_length": 2}},
        "cuda.device": {"display_unit": "GPU", "number_format": {"binary": False, "round_length": 0}},
        "tpu.hbm": {"display_unit": "GiB", "number_format": {"binary": True, "round_length": 0}},
    }
    assert describe_slots({slot: amount}, displays) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026-11-21T18:33:27.875362+09:00", "2026-11-21 09:33:27Z"),
        ("v7.20230615", "v7.20230615"),
        ("20260101", "20260101"),
        ({"mock": {"version": 1, "healthy": True}, "cpu": {}}, "mock (version=1, healthy=yes), cpu=-"),
    ],
)
def test_cells_for_people(value: object, text: str) -> None:
    assert cell(value) == text


def test_encoded_values() -> None:
    assert decoded('{"a": 1}') == {"a": 1}
    assert decoded("not json") == "not json"
    assert decoded(None) is None


def test_people_and_programs_get_different_things(capsys: pytest.CaptureFixture[str]) -> None:
    person, program = Screen(), Screen(OutputMode.JSON)
    person.say("result")
    person.note("meanwhile")
    program.say("result")
    program.note("meanwhile")
    program.json({"a": 1})
    printed = capsys.readouterr()
    assert printed.err == "meanwhile\n"
    assert printed.out.startswith("result\n")
    assert json.loads(printed.out.removeprefix("result\n")) == {"a": 1}


def test_an_error_is_one_line_and_a_document_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(OutputMode.JSON).error("it is\nbroken", code="not-found", status=404)
    printed = capsys.readouterr()
    assert printed.err == "backend.ai: it is broken\n"
    assert json.loads(printed.out) == {"error": {"code": "not-found", "message": "it is broken", "status": 404}}


def test_a_muted_screen_still_tells_results(capsys: pytest.CaptureFixture[str]) -> None:
    screen = MutedScreen()
    screen.note("meanwhile")
    screen.say("result")
    assert capsys.readouterr() == ("result\n", "")
    assert screen.is_quiet


ROWS = [["first", "8c8c9921-10a9-4c94-a57c-f27e9a75b735", "cpu, memory, pids, cpuset"], ["b", "x", "-"]]


def test_a_table_that_is_too_wide_folds_its_widest_columns() -> None:
    assert table(["Name", "ID", "Enforced"], ROWS, room=70) == table(["Name", "ID", "Enforced"], ROWS)
    assert table(["Name", "ID", "Enforced"], ROWS, room=41).splitlines() == [
        "Name   ID                Enforced",
        "─────  ────────────────  ────────────────",
        "first  8c8c9921-10a9-4c  cpu, memory,",
        "       94-a57c-f27e9a75  pids, cpuset",
        "       b735",
        "b      x                 -",
    ]


def test_a_cell_is_folded_to_a_few_lines() -> None:
    lines = table(["Command"], [["word " * 30]], room=20).splitlines()
    assert lines[2:] == ["word word word word"] * 3 + ["word word word word…"]
    assert table(["N"], [["한국" * 4]], room=12).splitlines() == ["N", "─" * 12, "한국한국한국", "한국"]


def test_where_columns_would_be_too_narrow_each_row_is_a_block() -> None:
    assert table(["Name", "ID", "Enforced"], ROWS, room=30).splitlines() == [
        "Name      first",
        "ID        8c8c9921-10a9-4c94-a57c-f27e9a75b735",
        "Enforced  cpu, memory, pids, cpuset",
        "",
        "Name      b",
        "ID        x",
        "Enforced  -",
    ]


def test_what_is_no_terminal_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().table([{"a": "x" * 500}], [("a", "A")])
    assert "x" * 500 in capsys.readouterr().out
