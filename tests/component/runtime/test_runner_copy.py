"""The copy of the runner that sessions see, and its byte code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ai.backend.plugin.node import runner_copy

VERSION = ".".join(map(str, sys.version_info[:3]))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    (path / "runner_main.py").write_text("import sys\nprint(__file__, sys.argv)\n")
    (path / "more.py").write_text("x = 1\n")
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


def compile_here(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "timestamp", folder], check=True)


async def test_compiled_once(source: Path, state: Path) -> None:
    copy = runner_copy.copy_runner(source, state)
    assert {path.name for path in copy.glob("*.py")} == {"runner_main.py", "more.py"}
    assert runner_copy.needs_byte_code(copy, VERSION)
    await runner_copy.compile_runner(copy, [(sys.executable, VERSION)])
    assert not runner_copy.needs_byte_code(copy, VERSION)
    assert runner_copy.needs_byte_code(copy, "3.99.0")
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert runner_copy.copy_runner(source, state) == copy
    await runner_copy.compile_runner(copy, [(sys.executable, VERSION)])
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


async def test_readable_to_everybody_whatever_our_umask(source: Path, state: Path) -> None:
    old = os.umask(0o077)
    try:
        compile_here(source)
        (source / "later.py").write_text("y = 2\n")
        copy = runner_copy.copy_runner(source, state)
        await runner_copy.compile_runner(copy, [(sys.executable, VERSION)])
    finally:
        os.umask(old)
    for path in (copy, *copy.rglob("*")):
        assert path.stat().st_mode & 0o004, path
        assert path.is_file() or path.stat().st_mode & 0o001, path


def test_byte_code_of_the_installation_is_taken_where_it_is_current(source: Path, state: Path) -> None:
    compile_here(source)
    assert not runner_copy.needs_byte_code(runner_copy.copy_runner(source, state), VERSION)
    (source / "more.py").write_text("x = 22\n")
    assert runner_copy.needs_byte_code(runner_copy.copy_runner(source, state), VERSION)


def test_another_version_leaves_the_first_alone_until_no_session_lives(source: Path, state: Path) -> None:
    first = runner_copy.copy_runner(source, state)
    (source / "more.py").write_text("x = 2\n")
    second = runner_copy.copy_runner(source, state)
    assert first != second
    assert (first / "more.py").read_text() == "x = 1\n"
    runner_copy.remove_other_copies(second)
    assert list((state / "runner").iterdir()) == [second]


async def test_python_that_does_not_work_is_passed_over(source: Path, state: Path) -> None:
    copy = runner_copy.copy_runner(source, state)
    broken = [("/nonexistent/python", "3.9.1"), ("/bin/false", "3.10.1"), (sys.executable, VERSION)]
    await runner_copy.compile_runner(copy, broken)
    assert not runner_copy.needs_byte_code(copy, VERSION)
