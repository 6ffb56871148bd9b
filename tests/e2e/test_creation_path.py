"""How many functions a session creation passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_creation_passes_few_functions_and_enters_no_file_often() -> None:
    command = [sys.executable, "-m", "bench.runner", "path"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    figures = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert [figure["name"] for figure in figures] == ["creation-path", "creation-path-entries"], run.stderr
    assert all(figure["holds"] for figure in figures), run.stdout
