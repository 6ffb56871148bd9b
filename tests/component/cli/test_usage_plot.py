"""The picture of `backend.ai service usage --plot`, drawn by a real Matplotlib."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from ai.backend.cli.service.plots import draw_usage
from tests.support import wheels

pytestmark = pytest.mark.timeout(300)  # Matplotlib is fetched once
_SCRIPT = """
import json, pathlib, sys
from ai.backend.cli.service.plots import draw_usage
draw_usage(json.load(sys.stdin), pathlib.Path(sys.argv[1]), title="my-service")
"""


def report(groups: int) -> dict[str, Any]:
    group = {"requests": 9, "errors": 1, "prompt_tokens": 70, "cached_tokens": 20, "output_tokens": 30, "name": None}
    return {"by": "day", "groups": [{**group, "key": f"2026-11-{day + 1:02}T00:00:00Z"} for day in range(groups)]}


def draw(path: Path, groups: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(wheels.matplotlib_folder())}
    command = [sys.executable, "-c", _SCRIPT, str(path)]
    text = json.dumps(report(groups))
    return subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("groups", [0, 1, 30])
def test_use_is_drawn_as_a_picture(tmp_path: Path, groups: int) -> None:
    path = tmp_path / "usage.png"
    done = draw(path, groups)
    assert done.returncode == 0, done.stderr
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack("!II", content[16:24])
    assert width >= 700
    assert height == 720


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("name", ["missing/usage.png", "usage.no-such-format"])
def test_a_file_that_cannot_be_drawn_is_named(tmp_path: Path, name: str) -> None:
    done = draw(tmp_path / name, 1)
    assert done.returncode != 0
    assert "cannot be written" in done.stderr
    assert not (tmp_path / name).exists()


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(click.ClickException, match=r"backendai\[plots\]"):
        draw_usage(report(1), tmp_path / "usage.png", title="t")
