"""Implements drivers of control groups: version 1, version 2, a mixture of both, and none.

A driver turns limits into data which the shim applies (:mod:`cgroupfs`), and reads statistics back. The groups lie
outside of the agent's own, so that stopping the agent's service does not end the sessions.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.node.linux import cgroupfs

PERIOD_US = 100_000
MIN_QUOTA_US = 1_000
STANDARD_DEVICES = (
    ("c", "1:3", "rwm"),  # null
    ("c", "1:5", "rwm"),  # zero
    ("c", "1:7", "rwm"),  # full
    ("c", "1:8", "rwm"),  # random
    ("c", "1:9", "rwm"),  # urandom
    ("c", "5:0", "rwm"),  # tty
    ("c", "5:1", "rwm"),  # console
    ("c", "5:2", "rwm"),  # ptmx
    ("c", "136:*", "rwm"),  # pts
)
Group = Mapping[str, Any]
"""Describes a control group: ``path``, ``join`` (file to write "0" into), ``writes`` ([file, value, required], ...)."""
_READ_BYTES = 65536
_likely_group_index: dict[str, int] = {}
"""Maps each file to the index of the group that had the file last, since the workloads of a node are alike."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the resource limits of a workload; None is no limit. ``devices`` are (kind, "major:minor", permissions)."""

    cpu: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    cpuset: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    devices: tuple[tuple[str, str, str], ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the statistics of one workload. Times in milliseconds, sizes in bytes; None for an uncounted value."""

    cpu_used_ms: float | None = None
    memory: int | None = None
    io_read: int | None = None
    io_write: int | None = None
    pids: int | None = None


class CgroupDriver:
    """Limits and measures workloads by control groups; ``parents`` are the groups above the groups of workloads."""

    kind: str = "none"
    controllers: frozenset[str] = frozenset()

    @property
    def parents(self) -> Collection[Path]:
        return ()

    def groups(self, name: str, limits: Limits) -> list[Group]:
        """Returns the plan of a workload's control groups; creates nothing."""
        return []

    def usage(self, files: GroupFiles) -> Usage:
        return Usage()

    def leftovers(self) -> list[Group]:
        """Returns the control groups of all workloads, including workloads that no agent knows any more."""
        return [{"path": str(path)} for parent in self.parents for path in _subdirectories(parent)]

    def release(self) -> None:
        """Removes the driver's empty parent groups, not groups with workloads. The next probe creates parents again."""
        for parent in self.parents:
            remove_base(parent)


class NoCgroups(CgroupDriver):
    """Represents the driver of a host without usable control groups: none is writable, or the settings disable them."""


@dataclass
class CgroupV1(CgroupDriver):
    """The driver of control groups version 1. ``bases`` maps each controller to the parent group of workloads."""

    bases: Mapping[str, Path]
    kind: str = "v1"

    def __post_init__(self) -> None:
        self.controllers = frozenset(self.bases)

    @property
    def parents(self) -> Collection[Path]:
        return set(self.bases.values())

    def groups(self, name: str, limits: Limits) -> list[Group]:
        quota_us, memory_bytes = _quota_us(limits), limits.memory_bytes
        device_entries = (*STANDARD_DEVICES, *limits.devices)
        entries_of_controller = {
            "cpu": _entries_to_write(
                ("cpu.cfs_period_us", quota_us and PERIOD_US, True), ("cpu.cfs_quota_us", quota_us, True)
            ),
            "cpuacct": [],
            "memory": _entries_to_write(
                ("memory.limit_in_bytes", memory_bytes, True), ("memory.memsw.limit_in_bytes", memory_bytes, False)
            ),
            "pids": _entries_to_write(("pids.max", limits.pids, True)),
            "blkio": [],
            "devices": _entries_to_write(
                ("devices.deny", "a", True), *(("devices.allow", " ".join(entry), True) for entry in device_entries)
            ),
        }
        if limits.cpuset and "cpuset" in self.bases:
            memory_nodes = (
                _cpu_list_text(limits.memory_nodes) or cgroupfs.read(f"{self.bases['cpuset']}/cpuset.mems").strip()
            )
            entries_of_controller["cpuset"] = _entries_to_write(
                ("cpuset.mems", memory_nodes, True), ("cpuset.cpus", _cpu_list_text(limits.cpuset), True)
            )
        entries_by_path: dict[str, list[list[Any]]] = {}
        for controller, entries in entries_of_controller.items():
            if controller in self.bases:
                entries_by_path.setdefault(str(self.bases[controller] / name), []).extend(entries)
        return [{"path": path, "join": "tasks", "writes": entries} for path, entries in entries_by_path.items()]

    def usage(self, files: GroupFiles) -> Usage:
        cpu_ns, io_text = files.read_number("cpuacct.usage"), files.read("blkio.throttle.io_service_bytes_recursive")
        return Usage(
            cpu_used_ms=None if cpu_ns is None else cpu_ns / 1e6,
            memory=files.read_memory_bytes("memory.usage_in_bytes", b"total_inactive_file"),
            io_read=_sum_of_blkio(io_text, b"Read"),
            io_write=_sum_of_blkio(io_text, b"Write"),
            pids=files.read_number("pids.current"),
        )


@dataclass
class CgroupV2(CgroupDriver):
    """Drives control groups version 2, the unified hierarchy; ``base`` is the agent's own or delegated group."""

    base: Path
    controllers: frozenset[str]
    kind: str = "v2"

    @property
    def parents(self) -> Collection[Path]:
        return (self.base,)

    def groups(self, name: str, limits: Limits) -> list[Group]:
        quota_us, memory_bytes, cpu_list = _quota_us(limits), limits.memory_bytes, _cpu_list_text(limits.cpuset)
        entries_of_controller = {
            "cpu": _entries_to_write(("cpu.max", quota_us and f"{quota_us} {PERIOD_US}", True)),
            "memory": _entries_to_write(
                ("memory.max", memory_bytes, True), ("memory.swap.max", None if memory_bytes is None else 0, False)
            ),
            "pids": _entries_to_write(("pids.max", limits.pids, True)),
            "cpuset": _entries_to_write(
                ("cpuset.cpus", cpu_list or None, True),
                ("cpuset.mems", (cpu_list and _cpu_list_text(limits.memory_nodes)) or None, True),
            ),
        }
        written_entries = [
            entry
            for controller, entries in entries_of_controller.items()
            if controller in self.controllers
            for entry in entries
        ]
        return [{"path": str(self.base / name), "join": "cgroup.procs", "writes": written_entries}]

    def usage(self, files: GroupFiles) -> Usage:
        cpu_us, io_text = files.read_field("cpu.stat", b"usage_usec"), files.read("io.stat")
        return Usage(
            cpu_used_ms=None if cpu_us is None else cpu_us / 1e3,
            memory=files.read_memory_bytes("memory.current", b"inactive_file"),
            io_read=_sum_of_io_stat(io_text, b"rbytes"),
            io_write=_sum_of_io_stat(io_text, b"wbytes"),
            pids=files.read_number("pids.current"),
        )


def _quota_us(limits: Limits) -> int | None:
    return None if limits.cpu is None else max(MIN_QUOTA_US, int(limits.cpu * PERIOD_US))


def _entries_to_write(*entries: tuple[str, object, bool]) -> list[list[Any]]:
    """Returns [file, value, required] of each entry whose value is not None."""
    return [[name, str(value), required] for name, value, required in entries if value is not None]


def remove_base(base: Path) -> None:
    """Removes a control group and its parent, if empty."""
    for path in (base, base.parent):
        try:
            path.rmdir()
        except OSError:
            return


class Groups(Sequence[Group]):
    """The control groups of one workload, whose paths are kept in one text to save memory.

    A node has thousands of control groups.
    """

    __slots__ = ("_paths",)

    def __init__(self, groups: Iterable[Group]) -> None:
        self._paths = "\0".join(str(group["path"]) for group in groups)

    @property
    def paths(self) -> list[str]:
        return self._paths.split("\0") if self._paths else []

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        selected_paths = self.paths[index]
        return (
            {"path": selected_paths}
            if isinstance(selected_paths, str)
            else Groups({"path": path} for path in selected_paths)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list


class GroupFiles:
    """Reads files of a workload's control groups, and keeps no descriptor open, since a node has too many groups."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups if isinstance(groups, Groups) else Groups(groups)

    def read(self, name: str) -> bytes | None:
        """Returns the content of a control group's file; None if no group has a readable file of this name."""
        directories = self._groups.paths
        likely_index = _likely_group_index.get(name, 0)
        for index in sorted(range(len(directories)), key=lambda index: index != likely_index):
            text = read_content(f"{directories[index]}/{name}")
            if text is not None:
                _likely_group_index[name] = index
                return text
        return None

    def read_number(self, name: str) -> int | None:
        """Returns the number that is the whole content of a control group's file, or None if it is no number."""
        text = (self.read(name) or b"").strip()
        return int(text) if text.isdigit() else None

    def read_memory_bytes(self, name: str, inactive_field: bytes) -> int | None:
        """Returns the memory in use without inactive pages of files, which the kernel takes back at need."""
        used_bytes = self.read_number(name)
        return (
            None if used_bytes is None else max(0, used_bytes - (self.read_field("memory.stat", inactive_field) or 0))
        )

    def read_field(self, name: str, field_name: bytes) -> int | None:
        """Returns the number that follows ``field_name`` at the beginning of a line in a control group's file.

        Returns None if no line begins with the name, or no number follows.
        """
        text = b"\n" + (self.read(name) or b"")
        start_offset = text.find(b"\n" + field_name + b" ")
        if start_offset < 0:
            return None
        field_text = text[start_offset + len(field_name) + 2 :].partition(b"\n")[0].strip()
        return int(field_text) if field_text.isdigit() else None


def read_content(path: str) -> bytes | None:
    """Returns the content of a file of /proc or of a control group; None if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _READ_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)


def _sum_of_blkio(text: bytes | None, operation: bytes) -> int | None:
    """Returns the bytes of an operation (such as Read) in a blkio file, summed over devices, or None.

    The result is None if no device is listed: some kernels count only throttled I/O.
    """
    lines = [line.split() for line in (text or b"").splitlines()]
    byte_counts = [int(line_words[2]) for line_words in lines if len(line_words) == 3 and line_words[1] == operation]
    return sum(byte_counts) if byte_counts else None


def _sum_of_io_stat(text: bytes | None, counter_name: bytes) -> int | None:
    if text is None:
        return None
    counter_pairs = (counter_text.partition(b"=") for line in text.splitlines() for counter_text in line.split()[1:])
    return sum(int(value) for key, _, value in counter_pairs if key == counter_name and value.isdigit())


def _cpu_list_text(cpu_numbers: Iterable[int]) -> str:
    return ",".join(map(str, cpu_numbers))


def _subdirectories(path: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
