"""Building the console: once for each state of its sources, whole or not at all, and in one line what went wrong.

Node.js is a script here: what `npm` does to a project is not what these tests are about.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ai.backend.infra.console import build, node
from ai.backend.infra.console.build import build_bundle
from ai.backend.infra.console.places import find_bundle, is_bundle, source_digest
from ai.backend.infra.console.programs import BuildFailed
from ai.backend.infra.console.progress import read_progress

NPM = """#!/bin/sh
echo "$1" >> "{calls}"
case "$1" in
ci) [ -e node_modules ] && exit 9
    mkdir -p node_modules/@xterm/xterm/lib node_modules/@xterm/xterm/css node_modules/@xterm/addon-fit/lib
    cd node_modules/@xterm
    for package in xterm addon-fit; do
        echo '{{"version": "6.0.0"}}' > $package/package.json; echo MIT > $package/LICENSE
    done
    echo x > xterm/lib/xterm.js; echo x > xterm/css/xterm.css; echo x > addon-fit/lib/addon-fit.js ;;
run) {build} ;;
esac
"""
BUILD = (
    'sleep 0.2; mkdir -p dist/assets; cp index.html dist/; cat "$BACKENDAI_REFERENCE/openapi.json" > dist/assets/a.js'
)


class Project:
    """A checkout with a console, a cache, and a Node.js that does what a test wants."""

    def __init__(self, root: Path) -> None:
        self.sources = root / "checkout" / "webui"
        self.cache = root / "cache"
        self.programs = root / "programs"
        self.calls = root / "calls"
        self.reference = root / "checkout" / "docs" / "reference"
        for folder in (self.sources / "src", self.sources / "node_modules", self.programs, self.reference):
            folder.mkdir(parents=True)
        (self.sources / "index.html").write_text("__BACKENDAI_BOOT__")
        (self.sources / "package-lock.json").write_text("{}")
        (self.sources / "src" / "main.ts").write_text("1")
        (self.sources / "src" / "secret.ts").symlink_to("/etc/passwd")
        (self.reference / "openapi.json").write_text("{}")
        self.write_program("node", "#!/bin/sh\necho v24.1.0\n")
        self.npm(BUILD)

    def write_program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def npm(self, script: str) -> None:
        self.write_program("npm", NPM.format(calls=self.calls, build=script))

    def builds(self) -> int:
        return self.calls.read_text().split().count("run") if self.calls.exists() else 0

    def build(self) -> Path:
        return build_bundle(self.sources, self.cache)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path)
    monkeypatch.setenv("PATH", f"{made.programs}:/usr/bin:/bin")
    return made


def test_it_is_built_once_and_found_again(project: Project) -> None:
    assert find_bundle(sources=project.sources, cache=project.cache) is None
    bundle = project.build()
    assert project.build() == bundle == find_bundle(sources=project.sources, cache=project.cache)
    assert project.builds() == 1
    names = sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())
    assert names == [
        *("console/assets/a.js", "console/index.html", "terminal/LICENSE.addon-fit", "terminal/LICENSE.xterm"),
        *("terminal/addon-fit.js", "terminal/versions.json", "terminal/xterm.css", "terminal/xterm.js"),
    ]
    progress = read_progress(project.cache)
    assert progress is not None
    assert (progress.step, progress.error, progress.is_running) == ("Done", "", False)
    assert not list(project.cache.glob("work-*"))


def test_every_input_counts_and_nothing_else(project: Project) -> None:
    first = source_digest(project.sources)
    (project.sources / "node_modules" / "new.js").write_text("1")
    (project.sources / "dist").mkdir()
    (project.sources / "dist" / "a.js").write_text("1")
    assert source_digest(project.sources) == first
    digests = {first}
    for path in (project.sources / "src" / "main.ts", project.sources / "package-lock.json"):
        path.write_text("2")
        digests.add(source_digest(project.sources))
    (project.reference / "openapi.json").write_text('{"paths": {}}')
    digests.add(source_digest(project.sources))
    (project.sources / "src" / "main.ts").rename(project.sources / "src" / "other.ts")
    digests.add(source_digest(project.sources))
    assert len(digests) == 5


def test_builds_at_once_are_one_build(project: Project) -> None:
    with ThreadPoolExecutor(4) as threads:
        bundles = {future.result() for future in [threads.submit(project.build) for _ in range(4)]}
    assert len(bundles) == 1
    assert project.builds() == 1


def test_a_build_that_is_killed_leaves_nothing_in_the_way(project: Project) -> None:
    project.npm("sleep 60")
    code = (
        "import sys; from pathlib import Path; from ai.backend.infra.console.build import build_bundle;"
        "build_bundle(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(project.sources), str(project.cache)])
    deadline = time.monotonic() + 20
    while project.builds() == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    progress = read_progress(project.cache)
    assert progress is not None
    assert progress.is_running
    process.kill()
    process.wait()
    progress = read_progress(project.cache)
    assert progress is not None
    assert not progress.is_running
    project.npm(BUILD)
    assert is_bundle(project.build())
    assert not list(project.cache.glob("work-*"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", "registry cannot be reached; everything but the console works"),
        ("echo 'ENOSPC: no space left on device'; exit 1", "disk is full"),
        (
            "echo \"src/a.ts(1,1): error TS2322: Type 'x'\"; exit 2",
            "npm run failed: src/a.ts.*TS2322.*; see .*build.log",
        ),
        ("kill -9 $$", "killed by signal 9"),
        ("true", "wrote no dist/index.html"),
    ],
)
def test_what_fails_is_said_in_one_line(project: Project, script: str, words: str) -> None:
    project.npm(script)
    with pytest.raises(BuildFailed, match=words) as failure:
        project.build()
    assert "\n" not in str(failure.value)
    progress = read_progress(project.cache)
    assert progress is not None
    assert progress.error == str(failure.value)
    assert find_bundle(sources=project.sources, cache=project.cache) is None
    assert not list(project.cache.glob("work-*"))
    project.npm(BUILD)
    assert is_bundle(project.build())


def test_a_program_that_hangs_ends_with_its_children(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_NPM_TIMEOUT_S", 0.5)
    project.npm(f"sleep 300 & echo $! > {project.calls}.child; wait")
    with pytest.raises(BuildFailed, match="did not end within"):
        project.build()
    child = int(Path(f"{project.calls}.child").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and b"Z" not in Path(f"/proc/{child}/stat").read_bytes().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_cache_that_cannot_be_written_is_named(project: Project) -> None:
    project.cache.write_text("in the way")
    with pytest.raises(BuildFailed, match=f"cannot be built below {project.cache}"):
        project.build()


def test_an_old_node_is_passed_over(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for name, text in (("node", "#!/bin/sh\necho v20.20.2\n"), ("npm", "#!/bin/sh\nexit 1\n")):
        (old / name).write_text(text)
        (old / name).chmod(0o755)
    assert node.find_node(f"{old}{os.pathsep}{project.programs}") == project.programs
    assert node.find_node(f"{old}{os.pathsep}{tmp_path / 'none'}") is None


def test_only_the_newest_bundles_are_kept(project: Project) -> None:
    for number in range(5):
        (project.sources / "src" / "main.ts").write_text(str(number))
        project.build()
    assert len(list((project.cache / "bundles").iterdir())) == 3
