"""An earlier version of the product, built from the history of this repository and installed for itself."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.skips import is_ci

COMMIT = "f9319a09"
"""The last commit with a migration for each change before 0038, where one baseline begins now (decision 0750)."""
_ROOT = Path(__file__).parents[2]


def install_earlier(folder: Path, commit: str = COMMIT) -> Path:
    """Builds the wheel of a commit, installs it in an environment in ``folder`` and returns its Python.

    Skips without the history, or without a package index.
    """
    archive = subprocess.run(["git", "archive", commit], cwd=_ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"machine: the history of commit {commit} is not here")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder / "source", filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    _run(build, cwd=folder / "source", env={**environment, "BACKENDAI_CONSOLE": "skip"})
    (wheel,) = folder.glob("*.whl")
    python = folder / "env/bin/python"
    uv = str(Path(sys.executable).with_name("uv"))
    try:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder / "env")], cwd=folder, env=environment)
        requirement = f"backendai[postgres,redis] @ {wheel.as_uri()}"
        _run([uv, "pip", "install", "--quiet", "--python", str(python), requirement], cwd=folder, env=environment)
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"binary: the earlier version cannot be installed: {getattr(error, 'stderr', None) or error}"
        if is_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    return python


def _run(command: list[str], *, cwd: Path, env: dict[str, str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, cwd=cwd, env=env)
