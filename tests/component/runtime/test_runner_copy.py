"""The copy of the runner that sessions see, and its byte code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.workload import runner_files
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings

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
    copy = runner_files.copy_runner(source, state)
    assert {path.name for path in copy.glob("*.py")} == {"runner_main.py", "more.py"}
    assert runner_files.needs_byte_code(copy, VERSION)
    await runner_files.compile_runner(copy, [(sys.executable, VERSION)])
    assert not runner_files.needs_byte_code(copy, VERSION)
    assert runner_files.needs_byte_code(copy, "3.99.0")
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert runner_files.copy_runner(source, state) == copy
    await runner_files.compile_runner(copy, [(sys.executable, VERSION)])
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


async def test_readable_to_everybody_whatever_our_umask(source: Path, state: Path) -> None:
    old = os.umask(0o077)
    try:
        compile_here(source)
        (source / "later.py").write_text("y = 2\n")
        copy = runner_files.copy_runner(source, state)
        await runner_files.compile_runner(copy, [(sys.executable, VERSION)])
    finally:
        os.umask(old)
    for path in (copy, *copy.rglob("*")):
        assert path.stat().st_mode & 0o004, path
        assert path.is_file() or path.stat().st_mode & 0o001, path


def test_byte_code_of_the_installation_is_taken_where_it_is_current(source: Path, state: Path) -> None:
    compile_here(source)
    assert not runner_files.needs_byte_code(runner_files.copy_runner(source, state), VERSION)
    (source / "more.py").write_text("x = 22\n")
    assert runner_files.needs_byte_code(runner_files.copy_runner(source, state), VERSION)


def test_copies_of_other_versions_stay_as_long_as_a_workload_needs_them(source: Path, state: Path) -> None:
    first = runner_files.copy_runner(source, state)
    (source / "more.py").write_text("x = 2\n")
    second = runner_files.copy_runner(source, state)
    (source / "more.py").write_text("x = 3\n")
    third = runner_files.copy_runner(source, state)
    assert len({first, second, third}) == 3
    runner_files.remove_other_copies(third, [f'{{"bind": "{first}"}}'])
    assert set((state / "runner").iterdir()) == {first, third}
    assert (first / "more.py").read_text() == "x = 1\n"
    runner_files.remove_other_copies(third, [])
    assert list((state / "runner").iterdir()) == [third]


async def test_python_that_does_not_work_is_passed_over(source: Path, state: Path) -> None:
    copy = runner_files.copy_runner(source, state)
    broken = [("/nonexistent/python", "3.9.1"), ("/bin/false", "3.10.1"), (sys.executable, VERSION)]
    await runner_files.compile_runner(copy, broken)
    assert not runner_files.needs_byte_code(copy, VERSION)


@pytest.mark.needs("isolation")
async def test_the_copy_of_a_living_session_stays(source: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(source)
    shutil.copytree(runner_files.find_runner(), source)
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)

    async def copies_of_the_next_agent(*, last: bool) -> set[str]:
        runtime = ProcessRuntime(ProcessRuntimeSettings(), state)
        await runtime.setup()
        try:
            assert runtime._compiling is not None
            await runtime._compiling
            if not await runtime.list_workloads():
                await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python"))
            elif last:
                await runtime.remove(key)
        finally:
            await runtime.shutdown()
        return {path.name for path in (state / "runner").iterdir()}

    monkeypatch.setattr(runner_files, "find_runner", lambda: source)
    (used,) = await copies_of_the_next_agent(last=False)
    (source / "added.py").touch()
    both = await copies_of_the_next_agent(last=True)
    assert used in both
    assert len(both) == 2
