"""Builds the programs of a cluster into the user's cache: what is there already is kept, an aborted build goes on."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.kube.families import Family, cache_folder

_UNUSED_S = 30 * 86_400.0


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


def build(requested: Iterable[Family], say: Callable[[str], None] = print) -> None:
    """Build what is missing of these families, one after the other. Waits for another build of the same family.

    Raises:
        BuildFailed: a program cannot be built; what has been built before it is kept.
    """
    for family in requested:
        if family.is_built():
            with suppress(OSError):  # another user's, who only lets us use it
                os.utime(family.place())
            continue
        if (reason := why_not_buildable(family)) is not None:
            raise BuildFailed(f"{family.name}: {reason}")
        with _lock(family):
            if not family.is_built():
                _build_family(family, say)


def _build_family(family: Family, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    partial = family.place().with_name(f"{family.place().name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    changed = _change_sources(family, partial / "sources")
    for name, package in family.programs.items():
        if not (partial / name).exists():
            unfinished = partial / f"{name}.unfinished"
            _run(_command(family, package, unfinished, changed), family)
            unfinished.rename(partial / name)
    for name, (module, folder) in (family.folders or {}).items():
        top = _module_folder(module, family)
        shutil.rmtree(partial / name, ignore_errors=True)
        _copy_tree(top / folder, partial / name)
    shutil.rmtree(partial / "sources", ignore_errors=True)
    partial.rename(family.place())
    _remove_unused(family)
    size_mib = sum(path.stat().st_size for path in family.place().iterdir() if path.is_file()) / 2**20
    say(f"{family.name}: built in {time.monotonic() - started:.0f} s, {size_mib:.0f} MiB")


def _remove_unused(family: Family) -> None:
    """Remove what earlier sources of the family have made and no cluster has used for a month."""
    for path in cache_folder().glob(f"{family.name}-*"):
        if path.is_dir() and path != family.place() and time.time() - path.stat().st_mtime > _UNUSED_S:
            shutil.rmtree(path, ignore_errors=True)


def _module_folder(module: str, family: Family) -> Path:
    _run(["go", "mod", "download", module], family)
    return Path(_run(["go", "list", "-m", "-f", "{{.Dir}}", module], family).strip())


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a folder of the module cache, where nothing may be written, so that the copy may be."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(target):
        Path(folder).chmod(0o755)


def _change_sources(family: Family, folder: Path) -> list[str]:
    """Copy the modules that are changed, and return the options that have the copies compiled.

    Raises:
        BuildFailed: a source is not as the change expects it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if not family.changes:
        return []
    folder.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(family.source / name, folder / name)
    for change in family.changes:
        copy = folder / change.module.replace("/", "_")
        if not copy.exists():
            _copy_tree(_module_folder(change.module, family), copy)
            _run(["go", "mod", "edit", f"-replace={change.module}={copy}", str(folder / "go.mod")], family)
        text = (copy / change.file).read_text()
        if text.count(change.old) != 1:
            raise BuildFailed(f"{family.name}: {change.module}/{change.file} has changed: adapt tools/kube/families.py")
        (copy / change.file).write_text(text.replace(change.old, change.new))
    return [f"-modfile={folder / 'go.mod'}"]


def _command(family: Family, package: str, target: Path, options: Sequence[str]) -> list[str]:
    if package.endswith(".c"):
        return ["gcc", "-Os", "-static", "-s", "-Wall", "-Werror", "-o", str(target), package]
    return [
        *("go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath"),
        *options,
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
