"""Copies the runner for sessions, with byte code for each Python of this host.

The sandbox shows the runner read-only, so Python cannot store byte code there; compiling it takes a third of a
session's start. A copy is named by its content: other versions stay for living sessions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from ai.backend.node.workload.file_trees import remove_tree

log = logging.getLogger(__name__)
COMPILE_TIMEOUT_S = 60.0


def find_runner() -> Path:
    """Returns the directory of the runner, whose code is never imported here."""
    runner = Path(__file__).resolve().parents[2] / "runner"
    if (runner / "runner_main.py").is_file():
        return runner
    for entry in sys.path:
        candidate = Path(entry, "ai", "backend", "runner")
        if (candidate / "runner_main.py").is_file():
            return candidate.resolve()
    return runner


def find_relay() -> Path:
    """Returns the directory of the relay, which runs inside containers too."""
    return Path(__file__).resolve().parents[1] / "relay"


def copy_runner(source: Path, state: Path, *parts: Path) -> Path:
    """Copies the runner to a folder below the state directory, unless the copy is present; returns the copy's path.

    Each of ``parts`` becomes a folder of the copy. Raises OSError.
    """
    content_of_path = {path.name: path.read_bytes() for path in _runner_files(source)}
    content_of_path |= {
        f"{part_folder.name}/{path.name}": path.read_bytes()
        for part_folder in parts
        for path in sorted(part_folder.glob("*.py"))
    }
    digest = hashlib.sha256()
    for name, content in content_of_path.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    copies_directory = state / "runner"
    copies_directory.mkdir(mode=0o755, exist_ok=True)
    copy = copies_directory / digest.hexdigest()[:16]
    if not copy.is_dir():
        unfinished_copy = copies_directory / f".{copy.name}.{os.getpid()}"
        shutil.rmtree(unfinished_copy, ignore_errors=True)
        unfinished_copy.mkdir()
        for folder in (source, *parts):
            _copy_folder(folder, unfinished_copy if folder == source else unfinished_copy / folder.name)
        try:
            unfinished_copy.rename(copy)
        except OSError:  # another one was faster
            shutil.rmtree(unfinished_copy, ignore_errors=True)
    return copy


def _runner_files(folder: Path) -> list[Path]:
    return sorted(path for pattern in ("*.py", "*.js", "*.java", "*.R", "su-exec") for path in folder.glob(pattern))


def _copy_folder(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    target.chmod(0o755)
    for path in _runner_files(source):
        shutil.copyfile(path, target / path.name)
        shutil.copystat(path, target / path.name)  # byte code names the time of its source
        (target / path.name).chmod(0o644 if path.suffix else 0o755)
    _copy_byte_code(source, target)


def _copy_byte_code(source: Path, copy: Path) -> None:
    cache_folder = copy / "__pycache__"
    cache_folder.mkdir()
    cache_folder.chmod(0o755)
    for path in source.glob("__pycache__/*.pyc"):
        if path.name.count(".") == 2 and _is_current(path, source / f"{path.name.partition('.')[0]}.py"):
            shutil.copyfile(path, cache_folder / path.name)
            (cache_folder / path.name).chmod(0o644)


def _is_current(byte_code: Path, source: Path) -> bool:
    """True if the byte code file records the time and size of the source, so that Python uses the byte code.

    See PEP 552, flags 0.
    """
    try:
        status = source.stat()
        with byte_code.open("rb") as file:
            header = file.read(16)
    except OSError:
        return False
    return header[4:] == struct.pack("<LLL", 0, int(status.st_mtime) & 0xFFFF_FFFF, status.st_size & 0xFFFF_FFFF)


def remove_other_copies(copy: Path, workload_texts: Collection[str]) -> None:
    """Removes all copies of the runner except ``copy`` and except those that a workload still uses.

    ``workload_texts`` has one text for each workload; a copy is in use if a text contains the name of the copy.
    """
    for other_copy in copy.parent.iterdir():
        if other_copy.name != copy.name and not any(
            other_copy.name in workload_text for workload_text in workload_texts
        ):
            remove_tree(other_copy)


def needs_byte_code(copy: Path, version: str) -> bool:
    """True if a CPython of this version (``3.11.7``) would have to compile the runner at each start."""
    cache_tag = "cpython-" + "".join(version.split(".")[:2])
    return not all(
        _is_current(copy / "__pycache__" / f"{path.stem}.{cache_tag}.pyc", path) for path in copy.glob("*.py")
    )


async def compile_runner(copy: Path, pythons: Iterable[tuple[str, str]]) -> None:
    """Compiles the runner's copy by each Python (path, version). A failure only costs time at each start."""
    for executable, version in pythons:
        if not needs_byte_code(copy, version):
            continue
        try:
            await _compile(copy, executable)
        except (OSError, TimeoutError) as error:
            log.warning("%s cannot compile the runner: %s", executable, str(error) or "it does not end")


async def _compile(copy: Path, executable: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(executable, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "timestamp", str(copy)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        umask=0o022,
    )
    try:
        async with asyncio.timeout(COMPILE_TIMEOUT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise OSError(output.decode(errors="replace")[:500])
