"""Makes kits: folders with everything that our interpreter needs to run on this machine's kernel, in any image.

A kit has its own loader and C library. Files are linked if possible, else copied. A kit is named by its content.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ai.backend.common.errors import Unavailable
from ai.backend.common.service_ports import SSHD, TTYD

PROGRAMS = Path(__file__).with_name("programs")
_PROBE = Path(__file__).with_name("probe.py")
_PROBE_TIMEOUT_S = 60.0
_UNNEEDED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3",
     "pydoc_data", "distutils", "sqlite3", "unittest", "venv", "curses", "dbm"}
)  # fmt: skip
_LATER = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
"""What an older C library loads by itself, beside the others."""


class KitFailed(Exception):
    """Raised when no kit can be made; the text says why."""


def build_kit(directory: Path) -> Path:
    """Returns the kit of this interpreter below ``directory``, and makes it if need be (a second or two). Blocks.

    Raises KitFailed if the interpreter or the disk does not permit it.
    """
    facts = _probe()
    kit = directory / _digest(facts)
    if kit.is_dir():
        return kit
    unfinished = directory / f".{kit.name}.{os.getpid()}"
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        _fill(unfinished, facts)
        try:
            unfinished.rename(kit)
        except OSError:  # another one was faster
            if not kit.is_dir():
                raise
    except OSError as e:
        raise KitFailed(f"the kit for services cannot be made: {e}") from e
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return kit


def remove_unused(directory: Path) -> None:
    """Removes the kits of other versions that no process runs from. Blocks. Raises KitFailed."""
    others = {path.name for path in directory.iterdir()}
    others -= {_digest(_probe())} if others else set()
    if others:
        commands = list(_commands())
        for name in others:
            if not any(f"/{name}/".encode() in command for command in commands):
                shutil.rmtree(directory / name, ignore_errors=True)


def _commands() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_bytes()


def _probe() -> dict[str, Any]:
    command = [sys.executable, "-I", str(_PROBE)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=True)
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        raise KitFailed(f"our interpreter cannot be asked what it is made of: {e}") from e
    return facts


def _digest(facts: dict[str, Any]) -> str:
    """Returns the kit's name: packages count by the times of their files, programs by their content."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for text in (*facts["packages"].values(), *facts["libraries"]):
        path = Path(text)
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            status = file.stat()
            digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    for path in sorted(PROGRAMS.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _fill(kit: Path, facts: dict[str, Any]) -> None:
    libraries, site = kit / "lib", kit / "site"
    for folder in (kit / "bin", libraries, site):
        folder.mkdir(parents=True, exist_ok=True)
    _link(Path(facts["executable"]), kit / "bin" / "python3")
    _link_tree(Path(facts["standard"]), kit / facts["place"])
    for name, text in facts["packages"].items():
        path = Path(text)
        bundled = path.parent / f"{name}.libs"
        if path.is_dir():
            _link_tree(path, site / name)
        else:
            _link(path, site / path.name)
        if bundled.is_dir():
            _link_tree(bundled, site / bundled.name)
    loader = ""
    for path in _shared(facts):
        _link(path, libraries / path.name)
        loader = path.name if path.name.startswith("ld-") else loader
    _link_tree(PROGRAMS, kit / "programs")
    started = [f"{{kit}}/lib/{loader}", "--library-path", "{kit}/lib"] if loader else []
    command = [*started, "{kit}/bin/python3", "-I", "-S", "-B", "-X", "utf8"]
    (kit / "launch.json").write_text(json.dumps(command))
    for name, _, _ in os.walk(kit):
        Path(name).chmod(0o755)
    (kit / "launch.json").chmod(0o644)


def _shared(facts: dict[str, Any]) -> Iterator[Path]:
    """Yields the libraries outside of packages, under every name by which they are loaded."""
    packages = tuple(facts["packages"].values())
    for text in facts["libraries"]:
        path = Path(text)
        if text.startswith((facts["standard"] + "/", *packages)) or ".libs" in path.parent.name:
            continue
        yield path
        for name in _sonames(path):
            yield path.with_name(name)
        if path.name.startswith("libc.so"):
            yield from (later for name in _LATER if (later := path.with_name(name)).exists())


def _sonames(path: Path) -> Iterator[str]:
    """Yields other names of a library in its folder: `libz.so.1` of `libz.so.1.2.13`."""
    for other in path.parent.glob(path.name.partition(".so")[0] + ".so*"):
        if other.is_symlink() and other.name != path.name and other.resolve() == path.resolve():
            yield other.name


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir()):
        if entry.name in _UNNEEDED or entry.name.startswith("config-"):
            continue
        if entry.is_dir():
            _link_tree(entry, target / entry.name)
        elif entry.is_file() and not entry.name.endswith((".a", ".opt-1.pyc", ".opt-2.pyc", ".map", ".pyi")):
            _link(entry, target / entry.name)


def _link(source: Path, target: Path) -> None:
    """Links a file that everybody may read already, or copies it so that everybody may read the copy."""
    real = source.resolve()
    mode = real.stat().st_mode
    needed = 0o555 if mode & 0o100 else 0o444
    if target.exists():
        return
    if mode & needed == needed:
        with suppress(OSError):  # another file system, or a file of another user
            os.link(real, target)
            return
    shutil.copy2(real, target)
    target.chmod(0o755 if mode & 0o100 else 0o644)


class KitStore:
    """Makes the kits of one agent when they are needed first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = asyncio.Lock()
        self._name: str | None = None
        self._services = frozenset({TTYD, SSHD} if importlib.util.find_spec("asyncssh") is not None else {TTYD})

    def open(self) -> None:
        self._directory.mkdir(mode=0o755, exist_ok=True)

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def services(self) -> frozenset[str]:
        """The services that a kit can serve: ``sshd`` only if the extra ``ssh`` is installed."""
        return self._services

    async def clean(self) -> None:
        """Removes kits of earlier versions of the agent that nothing runs from. Raises Unavailable."""
        async with self._lock:
            try:
                await asyncio.to_thread(remove_unused, self._directory)
            except (KitFailed, OSError) as e:
                raise Unavailable(f"kits of other versions stay: {e}") from e

    async def ensure(self) -> str:
        async with self._lock:
            if self._name is None or not (self._directory / self._name).is_dir():
                try:
                    self._name = (await asyncio.to_thread(build_kit, self._directory)).name
                except KitFailed as e:
                    raise Unavailable(str(e)) from e
            return self._name
