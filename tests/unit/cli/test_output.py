import json

import pytest

from ai.backend.cli.output import MutedScreen, OutputMode, Screen, cell, decoded, describe_slots, readable_amount, table


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
