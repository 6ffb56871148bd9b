"""Announcements come beside commands and never in their way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ai.backend.cli.framework import announcements
from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendClientError
from ai.backend.client.func.manager import AsyncManager

Answer = Callable[[], dict[str, Any]]


def refuses() -> dict[str, Any]:
    raise BackendClientError("not today")


def hangs() -> dict[str, Any]:
    threading.Event().wait(1)
    return {}


def says() -> dict[str, Any]:
    return {"enabled": True, "message": "Hear\nthis"}


def is_off() -> dict[str, Any]:
    return {"enabled": False, "message": "Hear"}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(announcements, "PATIENCE_S", 0.2)
    return tmp_path / "backend.ai" / "announcement.json"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[Answer], str]:
    config = APIConfig(endpoint="http://127.0.0.1:9", access_key="A", secret_key="S")

    def tell(answer: Answer) -> str:
        async def get_announcement(_self: AsyncManager) -> dict[str, Any]:
            return answer()

        monkeypatch.setattr(AsyncManager, "get_announcement", get_announcement)
        with announcements.fetching_announcement(config):
            pass
        return capsys.readouterr().err

    return tell


def test_only_what_is_enabled_is_told(told: Callable[[Answer], str]) -> None:
    printed = told(says)
    assert "Announcement" in printed.splitlines()[0]
    assert [line.strip("│ ") for line in printed.splitlines()[1:3]] == ["Hear", "this"]
    for answer in (is_off, refuses, hangs):
        assert told(answer) == ""


def test_a_dismissed_one_is_told_no_more(told: Callable[[Answer], str]) -> None:
    assert not announcements.dismiss()
    told(says)
    assert announcements.dismiss()
    assert told(says) == ""


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
