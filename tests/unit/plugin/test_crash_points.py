"""The lists of crash points name exactly the places that the code passes."""

from __future__ import annotations

import ast
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import ai.backend.plugin.crash_points
from ai.backend.agent.lifecycle.step_runner import CRASH_POINTS as AGENT
from ai.backend.manager.crash_points import CRASH_POINTS as MANAGER
from ai.backend.plugin.crash_points import crash_point
from ai.backend.storage.crash_points import CRASH_POINTS as STORAGE
from tests.support.runtime_crash_points import DOCKER, PROCESS

BASE = Path(ai.backend.plugin.crash_points.__file__).parents[1]
LISTS = {
    ("agent",): AGENT,
    ("manager", "infra"): MANAGER,
    ("runtime/docker",): DOCKER,
    ("runtime/process", "plugin/node"): PROCESS,
    ("storage", "volume"): STORAGE,
}
OF_PLUGINS = "hook[.]"
"""Two points for each hook of each plugin: no list can name them."""


def _pattern(name: ast.expr) -> str:
    """Return a regular expression for the names that an argument of a call can have."""
    if isinstance(name, ast.JoinedStr):
        return "".join(_pattern(part) for part in name.values)
    if isinstance(name, ast.FormattedValue):
        return ".+"
    assert isinstance(name, ast.Constant)
    assert isinstance(name.value, str)
    return re.escape(name.value)


def _passed(folders: tuple[str, ...]) -> Iterator[str]:
    """Find the patterns of the names in all calls of ``crash_point`` and of a volume's ``waypoint``."""
    for path in [path for folder in folders for path in sorted((BASE / folder).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
                if name in ("crash_point", "waypoint", "_waypoint"):
                    yield _pattern(node.args[0])


@pytest.mark.parametrize("folders", LISTS, ids=" ".join)
def test_a_list_names_the_places_that_its_code_passes(folders: tuple[str, ...]) -> None:
    names = LISTS[folders]
    patterns = {pattern.replace("\\.", "[.]") for pattern in _passed(folders)}
    assert len(set(names)) == len(names)
    assert [name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []
    unlisted = [p for p in patterns if not any(re.fullmatch(p, name) for name in names)]
    assert [pattern for pattern in unlisted if not pattern.startswith(OF_PLUGINS)] == []


@pytest.mark.parametrize(
    ("setting", "killed_at"),
    [("", None), ("other", None), ("place", 1), ("place:1", 1), ("place:3", 3), ("place:6", None)],
)
def test_the_environment_sets_the_passage_that_kills(
    setting: str, killed_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[tuple[int, int, int]] = []
    place = f"place-{setting}".replace(":", "-")
    monkeypatch.setattr(ai.backend.plugin.crash_points, "_crash_setting", None)
    monkeypatch.setenv("BACKENDAI_CRASH_POINT", setting.replace("place", place))
    for passage in range(1, 6):
        monkeypatch.setattr(os, "kill", lambda pid, signum, passage=passage: kills.append((passage, pid, signum)))
        crash_point(place)
    assert kills[:1] == ([(killed_at, os.getpid(), signal.SIGKILL)] if killed_at else [])
