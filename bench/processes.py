"""Measuring other processes: their wall clock, their CPU time, the memory of their whole tree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

BACKENDAI = str(Path(sys.executable).with_name("backend.ai"))


def wall_seconds(command: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Run a command to its successful end and return how long that took."""
    started = time.perf_counter()
    done = subprocess.run(command, env=env, check=False, stdin=subprocess.DEVNULL, capture_output=True)
    taken = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return taken


def cpu_seconds(command: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Run a command to its successful end and return the CPU time (user and system) of it and its children."""
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB (VmRSS: shared pages count in full)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has no resident memory: it has ended")


def tree(root: int) -> list[int]:
    """Return the ids of a process and of all its descendants, as /proc shows them now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    pids, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        pids.append(pid)
        waiting += children.get(pid, [])
    return pids


def command_of(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def busy_seconds(pids: Sequence[int]) -> float:
    """Return the processor time of these processes, and of those that they have waited for."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def belonging_to(data_dir: Path) -> list[int]:
    """Return every process that was started for a cluster or sees its files, whoever its parent is now."""
    needle = str(data_dir).encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if any(needle in (entry / name).read_bytes() for name in ("cmdline", "mountinfo")):
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


def proportional_mib(pids: Sequence[int]) -> float:
    """Return the memory of processes in MiB, shared pages divided among those that share them (Pss)."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024
