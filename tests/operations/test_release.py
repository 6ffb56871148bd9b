"""`python -m tools.release`: the same bytes twice, packages that install, units that can do little, pages that read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.release import build_release, built_release

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
UNRESTRICTED = {"backendai-agent"}
"""Units above the limit; each says why in its file."""
MAX_EXPOSURE = 4.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("dpkg-deb") is None or not Path("/usr/bin/python3").exists():
        pytest.skip("machine: not Debian")
    return built_release(tmp_path_factory)


@pytest.fixture(scope="module")
def installed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all packages, as a machine has them after the installation."""
    root = tmp_path_factory.mktemp("root")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    return root


def test_two_builds_are_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    build_release(tmp_path / "another/place", umask=0o077, zone="Asia/Seoul")
    second = {path.name: path.read_bytes() for path in (tmp_path / "another/place").iterdir()}
    assert [name for name, content in first.items() if second.get(name) != content] == []
    assert first.keys() == second.keys()
    assert sum(name.endswith(".deb") for name in first) == 6


def test_the_installed_program_runs(installed: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    program = installed / "opt/backend.ai/bin/backend.ai"
    for words in (["--version"], ["mgr", "schema", "dump-history"], ["ag", "--help"], ["storage", "--help"]):
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
    assert os.readlink(installed / "usr/bin/backend.ai") == "/opt/backend.ai/bin/backend.ai"


def test_no_file_names_the_machine_that_built_it(installed: Path) -> None:
    found = subprocess.run(
        ["grep", "-rlE", "/tmp/tmp|direct_url", "--include=*", str(installed / "opt/backend.ai/bin")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
    assert not list(installed.rglob("direct_url.json"))


def test_settings_belong_to_the_daemons_alone(folder: Path) -> None:
    (package,) = folder.glob("backendai-manager_*.deb")
    listing = subprocess.run(["dpkg-deb", "-c", str(package)], check=True, capture_output=True, text=True).stdout
    assert re.search(r"-rw-r----- root/backendai .* \./etc/backend\.ai/manager\.toml", listing)
    control = subprocess.run(["dpkg-deb", "-I", str(package), "conffiles"], check=True, capture_output=True, text=True)
    assert "/etc/backend.ai/manager.toml" in control.stdout


def test_pages_and_completions(installed: Path) -> None:
    pages = installed / "usr/share/man/man1"
    assert len(list(pages.iterdir())) > 300
    shown = subprocess.run(
        ["man", "--warnings", "-l", str(pages / "backend.ai-mgr-restore.1")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MANWIDTH": "100"},
    )
    if shutil.which("man") is not None:
        assert (shown.returncode, "into an empty installation" in shown.stdout) == (0, True), shown.stderr
    completion = installed / "usr/share/bash-completion/completions/backend.ai"
    subprocess.run(["bash", "-n", str(completion)], check=True)


def test_the_bill_of_materials_has_what_is_installed(folder: Path, installed: Path) -> None:
    (file,) = folder.glob("*.cdx.json")
    components = {_normalized(component["name"]) for component in json.loads(file.read_text())["components"]}
    packages = {_normalized(path.name.partition("-")[0]) for path in installed.rglob("*.dist-info")}
    assert packages - components <= {"backendai"}
    assert len(packages) > 40


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_wheel_installs_as_a_tool(folder: Path, tmp_path: Path) -> None:
    (wheel,) = folder.glob("backendai-*.whl")
    assert zipfile.ZipFile(wheel).testzip() is None
    environment = {**os.environ, "UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    environment.pop("PYTHONPATH", None)
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "tool", "install", "--quiet", "--python", sys.executable, str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    if done.returncode and "error sending request" in done.stderr:
        pytest.skip("machine: no package index")
    assert done.returncode == 0, done.stderr
    program = tmp_path / "bin/backend.ai"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, env=environment).stdout
    assert said.startswith("backend.ai ")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_can_do_little(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("machine: systemd is not installed")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert match is not None, done.stderr
    exposure = float(match[1])
    assert (exposure <= MAX_EXPOSURE) == (unit.stem not in UNRESTRICTED), exposure
    if unit.stem in UNRESTRICTED:
        assert "far above the 4.0" in unit.read_text()


def test_every_file_of_deploy_is_in_a_package_or_used() -> None:
    from tools.release.debian import DAEMONS

    packed = {f"{unit}.service" for daemon in DAEMONS for unit in daemon.units}
    assert packed == {path.name for path in UNITS}
    settings = {name for daemon in DAEMONS for name in daemon.settings}
    assert settings == {path.name for path in (ROOT / "deploy/config").iterdir()}
