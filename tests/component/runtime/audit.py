"""What is left of a workload on this machine, found without asking the runtime."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def processes_of(kernel_id: str) -> list[int]:
    """Processes with the kernel's id in their environment, command line or working directory. Zombies do not count."""
    mark = kernel_id.encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            texts = [(entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()]
            texts.append(os.fsencode(os.readlink(entry / "cwd")))
        except OSError:
            continue
        if any(mark in text for text in texts):
            found.append(int(entry.name))
    return found


def are_alive(pids: list[int]) -> bool:
    return all(Path(f"/proc/{pid}").exists() for pid in pids)


def cgroups_of(kernel_id: str) -> list[str]:
    found: list[str] = []
    for parent, directories, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{parent}/{name}" for name in directories if kernel_id in name]
    return found


def paths_of(kernel_id: str, state: Path) -> list[str]:
    found: list[str] = []
    for parent, directories, files in os.walk(state):
        found += [f"{parent}/{name}" for name in (*directories, *files) if kernel_id in name]
    return found


def traces_of(kernel_id: str, state: Path) -> dict[str, object]:
    """Everything that is left, by kind; empty if nothing is."""
    found = {
        "processes": processes_of(kernel_id),
        "cgroups": cgroups_of(kernel_id),
        "paths": paths_of(kernel_id, state),
    }
    return {kind: what for kind, what in found.items() if what}


def eventually(check: Callable[[], object], patience_s: float = 10.0) -> object:
    """The first false answer, or the last true one when patience ends."""
    deadline = time.monotonic() + patience_s
    while (left := check()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
