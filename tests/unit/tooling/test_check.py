"""`./check` itself: its exit code, its summary, and what it does about programs that are missing.

Each test runs a copy of the script in a small project of its own, with a PATH of its own: a fake `uv`, the few
programs that the script calls, and no package manager.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAMS = ("bash", "cat", "cmp", "cp", "dirname", "id", "mkdir", "mktemp", "readlink", "rm", "sed", "tail")
PASSES = "def test_it():\n    pass\n"
FAILS = "def test_it():\n    assert False\n"
SKIPS = "import pytest\n\n@pytest.mark.skip(reason='machine: none')\ndef test_it():\n    pass\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for program in PROGRAMS:
        found = shutil.which(program)
        assert found is not None, program
        (tmp_path / "bin" / program).symlink_to(found)
    uv = tmp_path / "bin" / "uv"
    uv.write_text("#!/bin/sh\nexit 0\n")
    uv.chmod(0o755)
    (tmp_path / "tools").mkdir()
    for name in ("check", "tools/environment.sh", "tools/counts.py"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    return tmp_path


def check(project: Path, *arguments: str, ci: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(project / "check"), *arguments],
        env={
            "PATH": str(project / "bin"),
            "BACKENDAI_VENV": str(Path(sys.executable).parent.parent),
            "CI": "true" if ci else "",
        },
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def write(project: Path, lane: str, text: str) -> None:
    (project / "tests" / lane).mkdir(parents=True, exist_ok=True)
    (project / "tests" / lane / "test_it.py").write_text(text)


@pytest.mark.parametrize(
    ("text", "code", "summary"),
    [
        (PASSES, 0, "1 passed, 0 failed, 0 skipped"),
        (SKIPS, 0, "0 passed, 0 failed, 1 skipped"),
        (FAILS, 1, "0 passed, 1 failed, 0 skipped"),
        ("import nothing_of_that_name\n", 1, "0 passed, 1 failed, 0 skipped"),
        ("", 1, "0 passed, 1 failed, 0 skipped"),
    ],
)
def test_one_lane_ends_as_its_tests_do(project: Path, text: str, code: int, summary: str) -> None:
    write(project, "unit", text)
    done = check(project, "unit", "-q")
    assert summary in done.stdout, done.stdout + done.stderr
    assert done.returncode == code


def test_arguments_go_to_pytest(project: Path) -> None:
    write(project, "simulation", PASSES + "\ndef test_other():\n    assert False\n")
    assert check(project, "simulation", "-k", "not other").returncode == 0
    assert check(project, "simulation", "-k", "no_such_test").returncode == 1


ONCE = (
    "from pathlib import Path\n\ndef test_it():\n    mark = Path(__file__).with_name('ran')\n"
    "    ran = mark.exists()\n    mark.touch()\n    assert ran\n"
)


@pytest.mark.parametrize(
    ("lane", "text", "code", "summary"),
    [
        ("contract", ONCE, 0, "1 FAILED AT FIRST and passed alone"),
        ("contract", FAILS, 1, "0 passed, 1 failed, 0 skipped"),
        ("unit", ONCE, 1, "0 passed, 1 failed, 0 skipped"),
    ],
)
def test_what_fails_once_among_daemons_is_tried_alone(
    project: Path, lane: str, text: str, code: int, summary: str
) -> None:
    (project / "pytest.ini").write_text("[pytest]\n")
    write(project, lane, text)
    done = check(project, lane, "-q")
    assert summary in done.stdout, done.stdout + done.stderr
    assert done.returncode == code


def test_a_missing_program_skips_the_lane_and_is_named(project: Path) -> None:
    write(project, "e2e", PASSES)
    done = check(project, "e2e")
    assert "not installed: bubblewrap gcc" in done.stdout
    assert "0 passed, 0 failed, 1 skipped" in done.stdout
    assert done.returncode == 0


def test_the_contract_lane_runs_without_the_program_and_names_it(project: Path) -> None:
    write(project, "contract", PASSES)
    done = check(project, "contract", "-q")
    assert "not installed: bubblewrap" in done.stdout
    assert "1 passed, 0 failed, 0 skipped" in done.stdout
    assert done.returncode == 0


def test_a_missing_program_fails_the_lane_in_ci(project: Path) -> None:
    write(project, "e2e", PASSES)
    done = check(project, "e2e", ci=True)
    assert "not installed: bubblewrap gcc" in done.stdout
    assert "0 passed, 1 failed, 0 skipped" in done.stdout
    assert done.returncode == 1


def test_an_unknown_lane_is_refused(project: Path) -> None:
    done = check(project, "no-such-lane")
    assert done.returncode == 1
    assert "no lane 'no-such-lane'" in done.stderr
