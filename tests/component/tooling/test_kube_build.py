"""`python -m tools.kube build`: what is there is kept, an aborted build goes on, and two at once build one thing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.kube.families import MODULES, families

REPOSITORY = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.needs("gcc")


def start(cache: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tools.kube", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(cache: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = start(cache, *arguments, **environment)
    out, err = process.communicate(timeout=50)
    return process.returncode, out, err


def test_what_is_built_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pause = families()["pause"]
    code, out, err = run(tmp_path, "build", "pause")
    assert (code, err) == (0, "")
    assert out.startswith("pause: built in ")
    program = pause.place() / "pause"
    made = program.stat().st_mtime_ns
    assert os.access(program, os.X_OK)
    code, out, _ = run(tmp_path, "build", "pause")
    assert (code, "built in 0 s," in out) == (0, False)
    assert program.stat().st_mtime_ns == made


def test_what_nobody_used_for_a_month_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = families()["pause"].place()
    old, young = (place.with_name(f"pause-{name}") for name in ("old", "young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    assert run(tmp_path, "build", "pause")[0] == 0
    assert [folder.exists() for folder in (place, old, young)] == [True, False, True]
    os.utime(place, (0, 0))
    assert run(tmp_path, "build", "pause")[0] == 0
    assert place.stat().st_mtime > 0, "a use counts"


def test_two_at_once_build_once(tmp_path: Path) -> None:
    builds = [start(tmp_path, "build", "pause") for _ in range(2)]
    outputs = [build.communicate(timeout=50)[0] for build in builds]
    assert [build.returncode for build in builds] == [0, 0]
    assert sorted(output.count("pause: built in") for output in outputs) == [0, 1]


def test_an_aborted_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = families()["pause"].place()
    partial = place.with_name(f"{place.name}.partial")
    partial.mkdir(parents=True)
    (partial / "pause.unfinished").write_text("half of it")
    assert run(tmp_path, "build", "pause")[0] == 0
    assert not partial.exists()
    program = families()["pause"].place() / "pause"
    assert program.read_bytes().startswith(b"\x7fELF")


def test_a_program_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    # Where nothing but Python is on the path, there is neither Go nor a compiler.
    code, _, err = run(tmp_path, "build", "pause", PATH=str(tmp_path))
    assert (code, err) == (1, "pause: gcc is not installed (package gcc)\n")
    code, _, err = run(tmp_path, "build", "etcd", PATH=str(tmp_path))
    assert (code, err.startswith("etcd: Go is not installed")) == (1, True)
    code, _, err = run(tmp_path, "build", "nothing")
    assert (code, err.startswith("no family nothing; the families are pause, etcd, ")) == (2, True)


def test_an_unknown_release_is_refused(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "list", KUBE_VERSION="1.2")
    assert (code, err) == (1, "KUBE_VERSION=1.2: the releases are 1.34, 1.36\n")


def test_the_place_of_a_family_depends_on_its_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = families()["pause"].place()
    (tmp_path / "pause").mkdir()
    (tmp_path / "pause" / "pause.c").write_text((MODULES / "pause" / "pause.c").read_text() + "\n")
    monkeypatch.setattr("tools.kube.families.MODULES", tmp_path)
    after = families()["pause"].place()
    assert (before.parent, before != after) == (after.parent, True)
