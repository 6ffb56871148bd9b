"""Announcements come beside commands and never in their way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ai.backend.cli.framework import announcements
from ai.backend.client.exceptions import BackendClientError


async def refuses() -> dict[str, Any]:
    raise BackendClientError("not today")


async def hangs() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def says() -> dict[str, Any]:
    return {"enabled": True, "message": "Hear\nthis"}


async def is_off() -> dict[str, Any]:
    return {"enabled": False, "message": "Hear"}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(announcements, "PATIENCE_S", 0.001)
    return tmp_path / "backend.ai" / "announcement.json"


async def told(answer: Callable[[], Awaitable[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> str:
    async with announcements.with_announcements(SimpleNamespace(Manager=SimpleNamespace(get_announcement=answer))):  # type: ignore[arg-type]  # all that is asked of it
        await asyncio.sleep(0)
    return capsys.readouterr().err


async def test_only_what_is_enabled_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    printed = await told(says, capsys)
    assert "Announcement" in printed.splitlines()[0]
    assert [line.strip("│ ") for line in printed.splitlines()[1:3]] == ["Hear", "this"]
    for answer in (is_off, refuses, hangs):
        assert await told(answer, capsys) == ""


async def test_a_dismissed_one_is_told_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert not announcements.dismiss()
    await told(says, capsys)
    assert announcements.dismiss()
    assert await told(says, capsys) == ""


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"hash": 7}'])
def test_a_damaged_file_forgets(text: str, capsys: pytest.CaptureFixture[str], state: Path) -> None:
    state.parent.mkdir()
    state.write_text(text)
    announcements.show_announcement("Hear")
    assert "Hear" in capsys.readouterr().err


def test_it_is_told_where_nothing_can_be_kept(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    state.parent.write_text("in the way")
    announcements.show_announcement("Hear")
    assert "Hear" in capsys.readouterr().err
