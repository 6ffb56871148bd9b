"""Makes kits: folders with everything that our interpreter needs to run on this machine's kernel, in any image.

A kit has its own loader and C library, and xterm.js where the console is built. Files are linked if possible, else
copied. A kit is named by its content.
"""

from __future__ import annotations

import asyncio
import hashlib
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
from ai.backend.infra.console.places import TERMINAL_NAME, find_bundle

PROGRAMS = Path(__file__).with_name("programs")
_PROBE_PROGRAM = Path(__file__).with_name("probe.py")
_PROBE_TIMEOUT_S = 60.0
_TERMINAL_PLACE, _TERMINAL_SCRIPT = "programs/xterm", "xterm.js"
_UNNEEDED_NAMES = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3",
     "pydoc_data", "distutils", "sqlite3", "unittest", "venv", "curses", "dbm"}
)  # fmt: skip
KIT_IN_IMAGE = "image"
"""The name of the kit in an image that has one."""
KIT_SERVICES = frozenset({SSHD, TTYD})
_LATER_LIBRARIES = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
"""Libraries that an older C library loads by itself at run time."""


class KitFailed(Exception):
    """Raised when no kit can be made; the text says why."""


def find_terminal() -> Path | None:
    """Returns the folder of the console's bundle with xterm.js, for the page of terminals. Returns None if it is not
    built.
    """
    console_bundle = find_bundle()
    folder = console_bundle / TERMINAL_NAME if console_bundle is not None else None
    return folder if folder is not None and (folder / _TERMINAL_SCRIPT).is_file() else None


def build_kit(directory: Path) -> Path:
    """Returns the kit of this interpreter below ``directory``; builds the kit if need be (a second or two). Blocks.

    Raises KitFailed if the interpreter or the disk does not permit it.
    """
    interpreter_files, terminal_folder = _probe(), find_terminal()
    kit = directory / _digest(interpreter_files, terminal_folder)
    if kit.is_dir():
        return kit
    unfinished = directory / f".{kit.name}.{os.getpid()}"
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        _fill_kit(unfinished, interpreter_files, terminal_folder)
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
    other_kit_names = {path.name for path in directory.iterdir()}
    other_kit_names -= {_digest(_probe(), find_terminal())} if other_kit_names else set()
    if other_kit_names:
        command_lines = list(_process_commands())
        for kit_name in other_kit_names:
            if not any(f"/{kit_name}/".encode() in command_line for command_line in command_lines):
                shutil.rmtree(directory / kit_name, ignore_errors=True)


def _process_commands() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_bytes()


def _probe() -> dict[str, Any]:
    command = [sys.executable, "-I", str(_PROBE_PROGRAM)]
    try:
        probe_process = subprocess.run(command, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=True)
        interpreter_files: dict[str, Any] = json.loads(probe_process.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        raise KitFailed(f"our interpreter cannot be asked what it is made of: {e}") from e
    return interpreter_files


def _digest(interpreter_files: dict[str, Any], terminal_folder: Path | None) -> str:
    """Returns the name of a kit, a digest of its packages, libraries, programs and web terminal.

    Packages and libraries count by the sizes and times of their files, programs and the web terminal by their content.
    """
    digest = hashlib.sha256(json.dumps(interpreter_files, sort_keys=True).encode())
    for path_text in (*interpreter_files["packages"].values(), *interpreter_files["libraries"]):
        path = Path(path_text)
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            file_status = file.stat()
            digest.update(f"{file} {file_status.st_size} {file_status.st_mtime_ns}\n".encode())
    for path in (
        *sorted(PROGRAMS.rglob("*")),
        *(sorted(terminal_folder.iterdir()) if terminal_folder is not None else ()),
    ):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _fill_kit(kit: Path, interpreter_files: dict[str, Any], terminal_folder: Path | None) -> None:
    library_directory, site_packages = kit / "lib", kit / "site"
    for folder in (kit / "bin", library_directory, site_packages):
        folder.mkdir(parents=True, exist_ok=True)
    _link_file(Path(interpreter_files["executable"]), kit / "bin" / "python3")
    _link_tree(Path(interpreter_files["standard"]), kit / interpreter_files["place"])
    for package_name, path_text in interpreter_files["packages"].items():
        path = Path(path_text)
        bundled_libraries = path.parent / f"{package_name}.libs"
        if path.is_dir():
            _link_tree(path, site_packages / package_name)
        else:
            _link_file(path, site_packages / path.name)
        if bundled_libraries.is_dir():
            _link_tree(bundled_libraries, site_packages / bundled_libraries.name)
    loader_name = ""
    for path in _shared_libraries(interpreter_files):
        _link_file(path, library_directory / path.name)
        loader_name = path.name if path.name.startswith("ld-") else loader_name
    _link_tree(PROGRAMS, kit / "programs")
    if terminal_folder is not None:
        _link_tree(terminal_folder, kit / _TERMINAL_PLACE)
    loader_command = [f"{{kit}}/lib/{loader_name}", "--library-path", "{kit}/lib"] if loader_name else []
    command = [*loader_command, "{kit}/bin/python3", "-I", "-S", "-B", "-X", "utf8"]
    (kit / "launch.json").write_text(json.dumps(command))
    for directory, _, _ in os.walk(kit):
        Path(directory).chmod(0o755)
    (kit / "launch.json").chmod(0o644)


def _shared_libraries(interpreter_files: dict[str, Any]) -> Iterator[Path]:
    """Yields the paths of the shared libraries outside of packages, under every file name by which they are loaded."""
    package_paths = tuple(interpreter_files["packages"].values())
    for path_text in interpreter_files["libraries"]:
        path = Path(path_text)
        if path_text.startswith((interpreter_files["standard"] + "/", *package_paths)) or ".libs" in path.parent.name:
            continue
        yield path
        for library_name in _sonames(path):
            yield path.with_name(library_name)
        if path.name.startswith("libc.so"):
            yield from (
                later_library
                for library_name in _LATER_LIBRARIES
                if (later_library := path.with_name(library_name)).exists()
            )


def _sonames(path: Path) -> Iterator[str]:
    """Yields the names of the symbolic links beside a library that lead to it: `libz.so.1` for `libz.so.1.2.13`."""
    for other_path in path.parent.glob(path.name.partition(".so")[0] + ".so*"):
        if other_path.is_symlink() and other_path.name != path.name and other_path.resolve() == path.resolve():
            yield other_path.name


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir()):
        if entry.name in _UNNEEDED_NAMES or entry.name.startswith("config-"):
            continue
        if entry.is_dir():
            _link_tree(entry, target / entry.name)
        elif entry.is_file() and not entry.name.endswith((".a", ".opt-1.pyc", ".opt-2.pyc", ".map", ".pyi")):
            _link_file(entry, target / entry.name)


def _link_file(source: Path, target: Path) -> None:
    """Links a file that everybody may read already, or copies it so that everybody may read the copy."""
    real_file = source.resolve()
    file_mode = real_file.stat().st_mode
    needed_mode_mask = 0o555 if file_mode & 0o100 else 0o444
    if target.exists():
        return
    if file_mode & needed_mode_mask == needed_mode_mask:
        with suppress(OSError):  # another file system, or a file of another user
            os.link(real_file, target)
            return
    shutil.copy2(real_file, target)
    target.chmod(0o755 if file_mode & 0o100 else 0o644)


def _is_current(kit: Path) -> bool:
    """Returns True if a kit exists and has xterm.js, or exists without xterm.js while the console is not built."""
    return kit.is_dir() and ((kit / _TERMINAL_PLACE / _TERMINAL_SCRIPT).is_file() or find_terminal() is None)


class KitStore:
    """Builds the kits of one agent when a kit is first needed."""

    is_built_in = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = asyncio.Lock()
        self._name: str | None = None

    def open(self) -> None:
        self._directory.mkdir(mode=0o755, exist_ok=True)

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def services(self) -> frozenset[str]:
        """The services that a kit can serve."""
        return KIT_SERVICES

    async def clean(self) -> None:
        """Removes kits of earlier versions of the agent that nothing runs from. Raises Unavailable."""
        async with self._lock:
            try:
                await asyncio.to_thread(remove_unused, self._directory)
            except (KitFailed, OSError) as e:
                raise Unavailable(f"kits of other versions stay: {e}") from e

    async def ensure(self) -> str:
        async with self._lock:
            if self._name is None or not await asyncio.to_thread(_is_current, self._directory / self._name):
                try:
                    self._name = (await asyncio.to_thread(build_kit, self._directory)).name
                except KitFailed as e:
                    raise Unavailable(str(e)) from e
            return self._name
