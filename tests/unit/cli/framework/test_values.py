"""Values as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ai.backend.cli.framework.values import (
    SlotDisplays,
    describe_slots,
    format_cell,
    parse_if_json,
    readable_amount,
    readable_metric,
    readable_size,
    relative_time,
    shorten_id,
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
    assert format_cell(value) == text


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
    assert format_cell(value) == text


def test_encoded_values() -> None:
    assert parse_if_json('{"a": 1}') == {"a": 1}
    assert parse_if_json("not json") == "not json"
    assert parse_if_json(None) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (4 << 30, "4.0 GiB"), (5 << 60, "5120.0 PiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert readable_size(size) == text


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ({"current": "12", "unit_hint": "msec"}, "12 ms"),
        ({"current": "10485760", "unit_hint": "bytes"}, "10.0 MiB"),
        ({"current": 2048, "unit_hint": "bps"}, "2.0 KiB/s"),
        ({"current": "12.5", "unit_hint": "percent"}, "12.5%"),
        ({"current": "3", "unit_hint": "widgets\x1b"}, "3 widgets\\x1b"),
        ({"current": "none", "unit_hint": "count"}, "none"),
        ({}, "-"),
        (None, "-"),
    ],
)
def test_metrics(metric: dict[str, object] | None, text: str) -> None:
    assert readable_metric(metric) == text


NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(0), "0s ago"),
        (timedelta(seconds=-4), "4s ago"),
        (timedelta(seconds=59), "59s ago"),
        (timedelta(minutes=59, seconds=59), "59m ago"),
        (timedelta(hours=47), "47h ago"),
        (timedelta(hours=48), "2d ago"),
        (timedelta(days=59), "59d ago"),
        (timedelta(days=60), "2026-09-23"),
        (timedelta(minutes=-90), "in 1h"),
    ],
)
def test_times_are_relative(age: timedelta, text: str) -> None:
    assert relative_time((NOW - age).isoformat(), now=NOW) == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), ("never\x1b", "never\\x1b"), ("2026-11-22", "2026-11-22")])
def test_what_is_no_time_stays(value: str | None, text: str) -> None:
    assert relative_time(value, now=NOW) == text


def test_short_ids() -> None:
    assert shorten_id("8c8c9921-10a9-4c94-a57c-f27e9a75b735") == "8c8c9921"
    assert shorten_id(None) == "-"
