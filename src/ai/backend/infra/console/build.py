"""Builds the bundle of the console from its sources into the user's cache, once for each state of the sources."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ai.backend.infra.console.node import ensure_node
from ai.backend.infra.console.places import (
    CONSOLE_NAME,
    INDEX_NAME,
    TERMINAL_NAME,
    bundle_place,
    is_bundle,
    reference_folder,
    source_digest,
    source_files,
)
from ai.backend.infra.console.programs import BuildFailed, run_program
from ai.backend.infra.console.progress import LOCK_NAME, LOG_NAME, Progress, write_progress

_LICENCES_NAME = "THIRD-PARTY.txt"
_MAX_LICENCE_BYTES = 256 << 10
_NPM_TIMEOUT_S = 900.0
_STORED_BUNDLES = 3
_TERMINAL_PACKAGES = {
    "@xterm/xterm": ("lib/xterm.js", "css/xterm.css"),
    "@xterm/addon-fit": ("lib/addon-fit.js",),
}
"""Files of npm packages that the terminal page of sessions loads as they are published."""

Report = Callable[[str], None]


def build_bundle(sources: Path, cache: Path, *, report: Report = lambda _: None) -> Path:
    """Builds the bundle if it is not built yet, and returns its folder. Blocks for a minute or so.

    ``report`` is called with each step. Several builds at once wait for one another, and one of them does the work.
    Raises BuildFailed.
    """
    with _disk_errors(cache):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = bundle_place(cache, source_digest(sources))
        if is_bundle(place):
            return place
        with _lock(cache / LOCK_NAME, report):
            digest = source_digest(sources)
            place = bundle_place(cache, digest)
            if is_bundle(place):  # built by the one that was waited for
                return place
            steps = _Steps(cache, digest, report)
            try:
                _build(sources, cache, place, steps)
            except (BuildFailed, OSError) as e:
                steps.fail(_explain(e, cache) if isinstance(e, OSError) else str(e))
                raise
            _remove_old_bundles(place)
            return place


class _Steps:
    """Reports each step of a build to the caller, and writes the step to the file that the progress page shows."""

    def __init__(self, cache: Path, digest: str, report: Report) -> None:
        self._cache = cache
        self._report = report
        self._last = Progress(digest=digest, step="", started_at=time.time())

    def begin(self, step: str) -> None:
        self._last = Progress(digest=self._last.digest, step=step, started_at=self._last.started_at)
        write_progress(self._cache, self._last)
        self._report(step)

    def fail(self, error: str) -> None:
        last = self._last
        try:
            write_progress(
                self._cache, Progress(digest=last.digest, step=last.step, started_at=last.started_at, error=error)
            )
        except OSError:
            pass  # the disk is full: the caller has the error


def _build(sources: Path, cache: Path, place: Path, steps: _Steps) -> None:
    for stale_folder in cache.glob("work-*"):  # of builds that were killed
        shutil.rmtree(stale_folder, ignore_errors=True)
    log = cache / LOG_NAME
    log.write_bytes(b"")
    steps.begin("Looking for Node.js")
    node = ensure_node(cache, log=log)
    with tempfile.TemporaryDirectory(prefix="work-", dir=cache, ignore_cleanup_errors=True) as work_name:
        work = Path(work_name)
        project = work / "webui"
        for path in source_files(sources):
            target = project / path.relative_to(sources)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        env = {
            **os.environ,
            "PATH": os.pathsep.join([str(node), os.environ.get("PATH", "")]),
            "BACKENDAI_REFERENCE": str(reference_folder(sources).resolve()),
            "CI": "true",
            "NO_COLOR": "1",
        }
        npm = str(node / "npm")
        for step, command in (
            ("Fetching packages", ["ci", "--no-audit", "--no-fund", "--ignore-scripts"]),
            ("Building", ["run", "build"]),
        ):
            steps.begin(step)
            name = f"npm {command[0]}"
            run_program([npm, *command], folder=project, env=env, log=log, step=name, timeout_s=_NPM_TIMEOUT_S)
        bundle = work / "bundle"
        if not (project / "dist" / INDEX_NAME).is_file():
            raise BuildFailed(f"npm run wrote no dist/{INDEX_NAME}; see {log}.")
        (project / "dist").rename(_made(bundle) / CONSOLE_NAME)
        copy_terminal(project / "node_modules", bundle / TERMINAL_NAME)
        write_licences(project, bundle / _LICENCES_NAME)
        steps.begin("Done")
        _made(place.parent)
        shutil.rmtree(place, ignore_errors=True)  # what is there is no whole bundle
        bundle.rename(place)


def copy_terminal(packages: Path, target: Path) -> None:
    """Copies the files of the terminal page from installed npm packages, with their licences and versions.

    Copies nothing where the packages are not installed. Raises OSError.
    """
    versions: dict[str, str] = {}
    for name, files in _TERMINAL_PACKAGES.items():
        package = packages / name
        if not package.is_dir():
            return
        for file in files:
            shutil.copyfile(package / file, _made(target) / Path(file).name)
        shutil.copyfile(package / "LICENSE", target / f"LICENSE.{name.rpartition('/')[2]}")
        versions[name] = json.loads((package / "package.json").read_text())["version"]
    (target / "versions.json").write_text(json.dumps(versions, indent=2, sort_keys=True) + "\n")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _remove_old_bundles(newest: Path) -> None:
    others = [path for path in newest.parent.iterdir() if path != newest]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[_STORED_BUNDLES - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _lock(path: Path, report: Report) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("Waiting for another build")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def _disk_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise BuildFailed(_explain(e, cache)) from None


def _explain(error: OSError, cache: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full, or its quota is; a build needs about 700 MB below {cache}."
    return f"The bundle cannot be built below {cache}: {error.strerror or error}."


def write_licences(project: Path, target: Path) -> None:
    """Writes the name, version and licence of each package of the lock file, except packages that only building needs.

    Raises OSError.
    """
    packages: dict[str, dict[str, Any]] = json.loads((project / "package-lock.json").read_text()).get("packages", {})
    parts = ["Packages in the web console, each under its own licence.\n"]
    for place, package in sorted(packages.items()):
        if place and not package.get("dev") and (project / place).is_dir():
            name = place.rpartition("node_modules/")[2]
            heading = f"{name} {package.get('version', '')} ({package.get('license', 'no licence named')})"
            parts.append(f"{heading}\n{'-' * len(heading)}\n{_licence_text(project / place)}")
    target.write_text("\n".join(parts), encoding="utf-8")


def _licence_text(package: Path) -> str:
    for path in sorted(package.iterdir()):
        if path.name.lower().startswith(("license", "licence", "copying")) and path.is_file():
            return path.read_bytes()[:_MAX_LICENCE_BYTES].decode(errors="replace").strip() + "\n"
    return "The package has no file with its licence.\n"
