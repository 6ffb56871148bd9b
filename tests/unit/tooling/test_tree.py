"""Facts about the repository itself that a reader relies on."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
LANES = (
    *("unit", "contract", "component", "simulation", "e2e", "conformance"),
    *("openapi", "kubernetes", "browser", "operations"),
)


def test_every_test_module_is_in_a_lane() -> None:
    stray = [
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        if path.relative_to(REPOSITORY).parts[1] not in LANES
    ]
    assert stray == []


def test_check_knows_every_lane() -> None:
    text = (REPOSITORY / "check").read_text()
    declared = re.search(r'^LANES="([^"]+)"$', text, re.MULTILINE)
    assert declared is not None
    assert sorted(declared[1].split()) == sorted(["lint", "types", "contracts", "webui", *LANES])


def test_the_ci_entry_calls_check_and_nothing_more() -> None:
    lines = [line for line in (REPOSITORY / ".ci" / "run").read_text().splitlines() if not line.startswith("#")]
    assert lines == ['exec "$(dirname "$0")/../check" "$@"']


def test_the_namespace_packages_stay_open() -> None:
    assert not (REPOSITORY / "src/ai/__init__.py").exists()
    assert not (REPOSITORY / "src/ai/backend/__init__.py").exists()


def test_the_lock_names_the_default_index_only() -> None:
    lock = tomllib.loads((REPOSITORY / "uv.lock").read_text())
    sources = {str(package["source"]) for package in lock["package"] if package["name"] != "backendai"}
    assert sources == {"{'registry': 'https://pypi.org/simple'}"}


@pytest.mark.needs("git")
def test_no_path_of_one_machine_is_committed() -> None:
    pattern = r"/(work|root|home/[a-z]+/\.cache|opt/(wheels|pypi))/"
    command = ["git", "grep", "-nE", pattern, "--", "src", "docs", "check", "quickstart", "tools", "bench", "*.toml"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False)
    found = [line for line in done.stdout.splitlines() if "/home/work" not in line]
    assert found == []
