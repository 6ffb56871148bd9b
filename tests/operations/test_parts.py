"""`backendai-slim`: the client alone and the agent alone, each installed into an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.release import built_release

pytestmark = pytest.mark.timeout(600)
UV = str(Path(sys.executable).with_name("uv"))
UNUSED = {
    "client": ("alembic", "sqlalchemy", "ariadne", "zmq", "cryptography", "pydantic", "asyncssh", "msgspec"),
    "agent": ("alembic", "ariadne", "argon2", "lark", "pyotp", "httptools"),
}
"""Modules of the other daemons' requirements, which the part is not to install."""
MAX_MB = {"client": 60, "agent": 110}
_IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    package = importlib.import_module(package)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__") and module.name not in {left_out!r}:
            importlib.import_module(module.name)
"""
LEFT_OUT = {"client": ("ai.backend.cli.accelerator.topology",), "agent": ()}
"""Commands on the devices of a node, which are of no use where there is no agent."""
PACKAGES = {
    "client": ("ai.backend.client", "ai.backend.cli"),
    "agent": (
        "ai.backend.agent",
        "ai.backend.runtime.process",
        "ai.backend.node",
        "ai.backend.accelerator",
        "ai.backend.cli.accelerator",
    ),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (wheel,) = built_release(tmp_path_factory).glob("backendai_slim-*.whl")
    return wheel


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BACKEND", "PYTHONPATH"))}
    places = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin", "PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin"}
    return {**kept, "HOME": str(folder), **{name: str(folder / place) for name, place in places.items()}}


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=_environment(folder), cwd=folder, timeout=300
    )
    if done.returncode and "error sending request" in done.stderr:
        pytest.skip("machine: no package index")
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("part", ["client", "agent"])
def test_a_part_has_what_it_imports_and_no_more(part: str, wheel: Path, tmp_path: Path) -> None:
    python = str(tmp_path / "env/bin/python")
    _run([UV, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "env")], tmp_path)
    _run([UV, "pip", "install", "--quiet", "--python", python, f"backendai-slim[{part}] @ {wheel.as_uri()}"], tmp_path)
    _run([python, "-c", _IMPORT_ALL.format(left_out=LEFT_OUT[part]), *PACKAGES[part]], tmp_path)
    for module in UNUSED[part]:
        _run([python, "-c", f"import importlib.util as u; assert u.find_spec({module!r}) is None"], tmp_path)
    files = [path for path in (tmp_path / "env").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    size_mb = sum(path.stat().st_size for path in files) / 1e6
    print(f"{part}: {size_mb:.0f} MB")
    assert size_mb < MAX_MB[part]
    assert _run([str(tmp_path / "env/bin/backend.ai"), "--version"], tmp_path).startswith("backend.ai ")


def test_the_client_installs_by_pipx(wheel: Path, tmp_path: Path) -> None:
    pipx = [UV, "tool", "run", "--quiet", "--python", sys.executable, "pipx"]
    _run([*pipx, "install", "--python", sys.executable, f"backendai-slim[client] @ {wheel.as_uri()}"], tmp_path)
    assert _run([str(tmp_path / "bin/backend.ai"), "--version"], tmp_path).startswith("backend.ai ")
    _run([*pipx, "uninstall", "backendai-slim"], tmp_path)
    assert not (tmp_path / "bin/backend.ai").exists()


def test_a_daemon_that_is_left_out_says_so(wheel: Path, tmp_path: Path) -> None:
    _run(
        [UV, "tool", "install", "--quiet", "--python", sys.executable, f"backendai-slim[client] @ {wheel.as_uri()}"],
        tmp_path,
    )
    program = str(tmp_path / "bin/backend.ai")
    environment = _environment(tmp_path)
    words = ("mgr", "schema", "show")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    assert done.stderr.startswith("backend.ai: the manager cannot be loaded: "), done.stderr
    assert "Traceback" not in done.stderr
    environment["BACKEND_ENDPOINT"] = "http://127.0.0.1:1"
    environment |= {"BACKEND_ACCESS_KEY": "a", "BACKEND_SECRET_KEY": "b"}
    done = subprocess.run([program, "ps"], capture_output=True, text=True, check=False, env=environment)
    assert "no answer from http://127.0.0.1:1" in done.stderr
