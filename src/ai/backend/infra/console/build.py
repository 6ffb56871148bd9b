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
        bundle_folder = bundle_place(cache, source_digest(sources))
        if is_bundle(bundle_folder):
            return bundle_folder
        with _lock(cache / LOCK_NAME, report):
            digest = source_digest(sources)
            bundle_folder = bundle_place(cache, digest)
            if is_bundle(bundle_folder):  # built by the one that was waited for
                return bundle_folder
            steps = _Steps(cache, digest, report)
            try:
                _build(sources, cache, bundle_folder, steps)
            except (BuildFailed, OSError) as e:
                steps.fail(_explain_disk_error(e, cache) if isinstance(e, OSError) else str(e))
                raise
            _remove_old_bundles(bundle_folder)
            return bundle_folder


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
        last_progress = self._last
        try:
            write_progress(
                self._cache,
                Progress(
                    digest=last_progress.digest,
                    step=last_progress.step,
                    started_at=last_progress.started_at,
                    error=error,
                ),
            )
        except OSError:
            pass  # the disk is full: the caller has the error


def _build(sources: Path, cache: Path, bundle_folder: Path, steps: _Steps) -> None:
    for stale_folder in cache.glob("work-*"):  # of builds that were killed
        shutil.rmtree(stale_folder, ignore_errors=True)
    log = cache / LOG_NAME
    log.write_bytes(b"")
    steps.begin("Looking for Node.js")
    node = ensure_node(cache, log=log)
    with tempfile.TemporaryDirectory(prefix="work-", dir=cache, ignore_cleanup_errors=True) as work_folder_name:
        work_folder = Path(work_folder_name)
        project = work_folder / "webui"
        for path in source_files(sources):
            target_file = project / path.relative_to(sources)
            target_file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target_file)
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
            command_name = f"npm {command[0]}"
            run_program([npm, *command], folder=project, env=env, log=log, step=command_name, timeout_s=_NPM_TIMEOUT_S)
        new_bundle = work_folder / "bundle"
        if not (project / "dist" / INDEX_NAME).is_file():
            raise BuildFailed(f"npm run wrote no dist/{INDEX_NAME}; see {log}.")
        (project / "dist").rename(_make_folder(new_bundle) / CONSOLE_NAME)
        copy_terminal(project / "node_modules", new_bundle / TERMINAL_NAME)
        write_licences(project, new_bundle / _LICENCES_NAME)
        steps.begin("Done")
        _make_folder(bundle_folder.parent)
        shutil.rmtree(bundle_folder, ignore_errors=True)  # what is there is no whole bundle
        new_bundle.rename(bundle_folder)


def copy_terminal(packages: Path, target_folder: Path) -> None:
    """Copies the files of the terminal page from installed npm packages, with their licences and versions.

    Copies nothing where the packages are not installed. Raises OSError.
    """
    versions: dict[str, str] = {}
    for package_name, files in _TERMINAL_PACKAGES.items():
        package = packages / package_name
        if not package.is_dir():
            return
        for file in files:
            shutil.copyfile(package / file, _make_folder(target_folder) / Path(file).name)
        shutil.copyfile(package / "LICENSE", target_folder / f"LICENSE.{package_name.rpartition('/')[2]}")
        versions[package_name] = json.loads((package / "package.json").read_text())["version"]
    (target_folder / "versions.json").write_text(json.dumps(versions, indent=2, sort_keys=True) + "\n")


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _remove_old_bundles(newest_bundle: Path) -> None:
    old_bundles = [path for path in newest_bundle.parent.iterdir() if path != newest_bundle]
    old_bundles.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in old_bundles[_STORED_BUNDLES - 1 :]:
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
        raise BuildFailed(_explain_disk_error(e, cache)) from None


def _explain_disk_error(error: OSError, cache: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full, or its quota is; a build needs about 700 MB below {cache}."
    return f"The bundle cannot be built below {cache}: {error.strerror or error}."


def write_licences(project: Path, target_file: Path) -> None:
    """Writes the name, version and licence of each package of the lock file, except packages that only building needs.

    Raises OSError.
    """
    packages: dict[str, dict[str, Any]] = json.loads((project / "package-lock.json").read_text()).get("packages", {})
    sections = ["Packages in the web console, each under its own licence.\n"]
    for package_path, package in sorted(packages.items()):
        if package_path and not package.get("dev") and (project / package_path).is_dir():
            name = package_path.rpartition("node_modules/")[2]
            heading = f"{name} {package.get('version', '')} ({package.get('license', 'no licence named')})"
            sections.append(f"{heading}\n{'-' * len(heading)}\n{_licence_text(project / package_path)}")
    target_file.write_text("\n".join(sections), encoding="utf-8")


def _licence_text(package: Path) -> str:
    for path in sorted(package.iterdir()):
        if path.name.lower().startswith(("license", "licence", "copying")) and path.is_file():
            return path.read_bytes()[:_MAX_LICENCE_BYTES].decode(errors="replace").strip() + "\n"
    return "The package has no file with its licence.\n"
