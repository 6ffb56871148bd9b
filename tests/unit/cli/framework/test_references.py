"""Short ids stand for one object, or are refused with the names of all that they may mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import pytest

from ai.backend.cli.framework.references import find_id, is_short_id, resolve

FIRST, SECOND = "8c8c9921-10a9-4c94-a57c-f27e9a75b735", "8c8c9ab0-10a9-4c94-a57c-f27e9a75b735"
ROWS: list[dict[str, Any]] = [{"id": FIRST, "name": "data"}, {"id": SECOND, "name": None}]


@pytest.mark.parametrize("text", ["8c8c", "8C8C9921", "8c8c9921-10a9", FIRST[:31]])
def test_beginnings_of_ids(text: str) -> None:
    assert is_short_id(text)


@pytest.mark.parametrize("text", ["8c8", "data", "-8c8c", "8c8c/..", FIRST, FIRST.replace("-", ""), "ann@lab", ""])
def test_anything_else_is_a_name(text: str) -> None:
    assert not is_short_id(text)


@pytest.mark.parametrize("text", ["8c8c992", "8C8C9921", "8c8c9921-10a9", "8c8c992110a9"])
def test_one_id_begins_so(text: str) -> None:
    assert find_id(text, ROWS, kind="folder") == FIRST


def test_what_no_id_begins_with_stays() -> None:
    assert find_id("beef", ROWS, kind="folder") == "beef"


def test_a_name_wins() -> None:
    assert find_id("8c8c", [*ROWS, {"id": "1", "name": "8c8c"}], kind="folder") == "8c8c"


def test_several_are_named() -> None:
    with pytest.raises(click.ClickException) as refused:
        find_id("8c8c", ROWS, kind="folder")
    assert f"data ({FIRST})" in refused.value.message
    assert SECOND in refused.value.message


def test_many_are_counted() -> None:
    with pytest.raises(click.ClickException, match="and 40 more"):
        find_id("8c8c", [{"id": f"8c8c{number:04}", "name": ""} for number in range(50)], kind="folder")


async def test_nothing_is_loaded_for_whole_ids_and_names() -> None:
    async def load() -> Sequence[dict[str, Any]]:
        raise AssertionError("a request too many")

    assert await resolve("data", load, kind="folder") == "data"
    assert await resolve(FIRST, load, kind="folder") == FIRST
