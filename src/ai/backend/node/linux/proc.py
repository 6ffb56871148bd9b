"""Reads processes from /proc: identities that stay unique when pids are reused, descendants, memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

_READ_BYTES = 4096
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def read(path: str) -> str:
    """Returns the text of a file of the kernel. Raises OSError.

    Python's own files are three objects and 16 KiB for each, which shims would read in new pages of memory.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(fd, _READ_BYTES):
            chunks.append(chunk)
    finally:
        os.close(fd)
    return b"".join(chunks).decode("utf-8", "replace")


def boot_id() -> str:
    """Returns an id that changes with every boot of the machine."""
    try:
        return read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return ""


def stat_fields(pid: int) -> list[str] | None:
    """Returns the fields of /proc/PID/stat from the state (field 3) on; None without such a process."""
    try:
        stat_text = read(f"/proc/{pid}/stat")
    except OSError:
        return None
    return stat_text[stat_text.rfind(")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """Returns the start of the process in ticks after boot, which with the pid identifies it; None if it is gone."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


def is_same(pid: int, start_tick: int) -> bool:
    """Returns True if the process with this pid and start time still lives."""
    return start_time(pid) == start_tick


def _children_by_list(pid: int) -> list[int] | None:
    pids: list[int] = []
    try:
        for thread_id in os.listdir(f"/proc/{pid}/task"):  # no pathlib here: memory
            try:
                pids += map(int, read(f"/proc/{pid}/task/{thread_id}/children").split())
            except FileNotFoundError:
                if not os.path.exists("/proc/self/task/" + str(os.getpid()) + "/children"):  # as above
                    return None
    except OSError:
        return pids
    return pids


def _children_of_all() -> dict[int, list[int]]:
    children_of_pid: dict[int, list[int]] = {}
    for pid_text in os.listdir("/proc"):  # as above
        if pid_text.isdigit():
            fields = stat_fields(int(pid_text))
            if fields is not None:
                children_of_pid.setdefault(int(fields[1]), []).append(int(pid_text))
    return children_of_pid


def children(pid: int) -> list[int]:
    """Returns the children of a process, zombies too."""
    pids = _children_by_list(pid)
    return _children_of_all().get(pid, []) if pids is None else pids


def descendants(pid: int) -> list[int]:
    """Returns every process below ``pid``, parents first. A concurrent fork may hide a child from one call."""
    children_of_pid: dict[int, list[int]] | None = None
    pids: list[int] = []
    seen_pids = {pid}
    pending_pids = [pid]
    while pending_pids:
        parent_pid = pending_pids.pop()
        child_pids = _children_by_list(parent_pid) if children_of_pid is None else children_of_pid.get(parent_pid, [])
        if child_pids is None:
            children_of_pid = _children_of_all()
            child_pids = children_of_pid.get(parent_pid, [])
        for child_pid in child_pids:
            if child_pid not in seen_pids:
                seen_pids.add(child_pid)
                pids.append(child_pid)
                pending_pids.append(child_pid)
    return pids


def resident_bytes(pid: int) -> int:
    """Returns the resident memory without pages shared with files; 0 if the process is gone."""
    try:
        fields = read(f"/proc/{pid}/statm").split()
    except OSError:
        return 0
    return max(0, int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def interface_bytes(path: str) -> dict[str, tuple[int, int]]:
    """Maps interfaces without the loopback to bytes received and sent, from a file such as /proc/net/dev."""
    bytes_of_interface: dict[str, tuple[int, int]] = {}
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:  # as above
        for line in file:
            interface, separator, counters_text = line.partition(":")
            fields = counters_text.split()
            if separator and len(fields) >= 9 and interface.strip() != "lo":
                bytes_of_interface[interface.strip()] = (int(fields[0]), int(fields[8]))
    return bytes_of_interface


def send(pids: Iterable[int], signal_number: int) -> int:
    """Sends a signal to each process, and returns the number of processes that received the signal.

    Processes that do not exist, or that this process may not signal, are left out.
    """
    reached_count = 0
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_number)
            reached_count += 1
    return reached_count


def stop_and_kill(pids: list[int]) -> int:
    """Kills processes. Stops all of them first, so that none forks while others are killed."""
    send(pids, signal.SIGSTOP)
    return send(pids, signal.SIGKILL)
