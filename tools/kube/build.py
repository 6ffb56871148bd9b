"""Builds the programs of a cluster into the user's cache: what is there already is kept, an aborted build goes on."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.kube.families import Family, cache_folder


class BuildFailed(RuntimeError):
    """Says which program could not be built, and what the compiler wrote."""


def why_not_buildable(family: Family) -> str | None:
    """Return what the machine lacks to build a family, None where nothing is lacking."""
    if family.name == "pause":
        return None if shutil.which("gcc") else "gcc is not installed (package gcc)"
    if shutil.which("go") is None:
        return "Go is not installed (https://go.dev/dl, 1.26 or newer)"
    if family.needs_cgo:
        if shutil.which("gcc") is None or shutil.which("pkg-config") is None:
            return "gcc and pkg-config are not installed (packages gcc, pkg-config)"
        done = subprocess.run(["pkg-config", "--exists", "libseccomp"], capture_output=True, check=False)
        if done.returncode != 0:
            return "libseccomp's headers are not installed (package libseccomp-dev)"
    return None


def build(wanted: Iterable[Family], say: Callable[[str], None] = print) -> None:
    """Build what is missing of these families, one after the other. Waits for another build of the same family.

    Raises:
        BuildFailed: a program cannot be built; what has been built before it is kept.
    """
    for family in wanted:
        if family.is_built():
            continue
        if (reason := why_not_buildable(family)) is not None:
            raise BuildFailed(f"{family.name}: {reason}")
        with _lock(family):
            if not family.is_built():
                _build_family(family, say)


def _build_family(family: Family, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    partial = family.place().with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for name, package in family.programs.items():
        if not (partial / name).exists():
            unfinished = partial / f"{name}.unfinished"
            _run(_command(family, package, unfinished), family)
            unfinished.rename(partial / name)
    for name, (module, folder) in (family.folders or {}).items():
        top = Path(_run(["go", "list", "-m", "-f", "{{.Dir}}", module], family).strip())
        shutil.rmtree(partial / name, ignore_errors=True)
        shutil.copytree(top / folder, partial / name, copy_function=shutil.copyfile)
    partial.rename(family.place())
    size_mib = sum(path.stat().st_size for path in family.place().iterdir() if path.is_file()) / 2**20
    say(f"{family.name}: built in {time.monotonic() - started:.0f} s, {size_mib:.0f} MiB")


def _command(family: Family, package: str, target: Path) -> list[str]:
    if package.endswith(".c"):
        return ["gcc", "-Os", "-static", "-s", "-Wall", "-Werror", "-o", str(target), package]
    return [
        *("go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath"),
        *("-tags", family.tags, "-ldflags", family.link_flags, "-o", str(target), package),
    ]


def _run(command: list[str], family: Family) -> str:
    environment = {**os.environ, "CGO_ENABLED": "1" if family.needs_cgo else "0", "GOFLAGS": ""}
    done = subprocess.run(
        command,
        cwd=family.source,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(f"{family.name}: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


@contextmanager
def _lock(family: Family) -> Iterator[None]:
    """Hold the build of a family: the kernel lets go of it when this process ends, however it does."""
    cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with (cache_folder() / f"{family.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
