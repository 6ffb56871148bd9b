"""The skip rules are tried on a little project of their own, in a pytest process of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

PROJECT = """
import pytest

def test_passes():
    pass

@pytest.mark.skip(reason="not today")
def test_undeclared():
    pass

def test_capability():
    pytest.skip("capability: this adapter declares no watch")

@pytest.mark.needs("unobtainium")
def test_binary():
    pass

@pytest.mark.needs("luck")
def test_machine():
    pass

@pytest.mark.xfail(strict=True)
def test_expected_failure():
    assert False
"""

CONFTEST = """
pytest_plugins = ("tests.support.skips",)
from tests.support.skips import PROBES
PROBES["unobtainium"] = lambda: "binary: unobtainium is not installed"
PROBES["luck"] = lambda: "machine: no luck here"
"""


def run_project(folder: Path, *, ci: bool, module: str = PROJECT) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_project.py").write_text(module)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    needs(*names): needs\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(folder)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "CI": "true" if ci else ""},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr


@pytest.mark.parametrize(
    ("ci", "expected"),
    [(False, ("1 passed", "4 skipped", "1 xfailed")), (True, ("2 errors", "1 passed", "2 skipped", "1 xfailed"))],
)
def test_undeclared_skips_and_missing_binaries_fail_only_in_ci(
    tmp_path: Path, ci: bool, expected: tuple[str, ...]
) -> None:
    summary = run_project(tmp_path, ci=ci)
    assert all(part in summary for part in expected), summary
    assert ("errors" in summary) == ci


def test_a_module_that_skips_itself_fails_in_ci(tmp_path: Path) -> None:
    module = 'import pytest\npytest.importorskip("a_module_that_nobody_has")\n\ndef test_it():\n    pass\n'
    assert "error" in run_project(tmp_path, ci=True, module=module)
    assert "1 skipped" in run_project(tmp_path, ci=False, module=module)
