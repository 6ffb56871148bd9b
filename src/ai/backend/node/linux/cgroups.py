"""Drivers of control groups: version 1, version 2, a mixture of both, and none.

A driver turns limits into data which the shim applies (:mod:`cgroupfs`), and reads statistics back. The groups lie
outside of the agent's own, so that stopping the agent's service does not end the sessions.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
"""``path``, ``join`` (file to write "0" into), ``writes`` ([file, value, required], ...)."""
_SIZE = 65536
_likely: dict[str, int] = {}
"""Maps each file to the index of the group that had it last; the workloads of a node are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a workload; None is no limit. ``devices`` are (kind, "major:minor", permissions)."""

    cpu: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    cpuset: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    devices: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Statistics of one workload. Times in milliseconds, sizes in bytes; None if it is not counted."""

    cpu_used_ms: float | None = None
    memory: int | None = None
    io_read: int | None = None
    io_write: int | None = None
    pids: int | None = None


class CgroupDriver:
    """Limits and measures workloads. ``parents`` are the groups below which the groups of workloads lie."""

    kind: str = "none"
    controllers: frozenset[str] = frozenset()

    @property
    def parents(self) -> Collection[Path]:
        return ()

    def groups(self, name: str, limits: Limits) -> list[Group]:
        """Returns the groups of a workload; creates nothing."""
        return []

    def usage(self, files: GroupFiles) -> Usage:
        return Usage()

    def leftovers(self) -> list[Group]:
        """Returns the groups below ours, of any workload."""
        return [{"path": str(path)} for parent in self.parents for path in _subdirectories(parent)]

    def release(self) -> None:
        """Removes our empty groups; those with workloads stay. The next probe creates them again."""
        for parent in self.parents:
            remove_base(parent)


class NoCgroups(CgroupDriver):
    """The driver without control groups: none is writable here, or the settings disable them."""


@dataclass
class CgroupV1(CgroupDriver):
    """Drives version 1, one hierarchy per controller. ``bases`` maps controllers to the workloads' parent groups."""

    bases: Mapping[str, Path]
    kind: str = "v1"

    def __post_init__(self) -> None:
        self.controllers = frozenset(self.bases)

    @property
    def parents(self) -> Collection[Path]:
        return set(self.bases.values())

    def groups(self, name: str, limits: Limits) -> list[Group]:
        quota, memory = _quota_us(limits), limits.memory_bytes
        devices = (*STANDARD_DEVICES, *limits.devices)
        values = {
            "cpu": _writes(("cpu.cfs_period_us", quota and PERIOD_US, True), ("cpu.cfs_quota_us", quota, True)),
            "cpuacct": [],
            "memory": _writes(("memory.limit_in_bytes", memory, True), ("memory.memsw.limit_in_bytes", memory, False)),
            "pids": _writes(("pids.max", limits.pids, True)),
            "blkio": [],
            "devices": _writes(
                ("devices.deny", "a", True), *(("devices.allow", " ".join(entry), True) for entry in devices)
            ),
        }
        if limits.cpuset and "cpuset" in self.bases:
            nodes = _join(limits.memory_nodes) or cgroupfs.read(f"{self.bases['cpuset']}/cpuset.mems").strip()
            values["cpuset"] = _writes(("cpuset.mems", nodes, True), ("cpuset.cpus", _join(limits.cpuset), True))
        writes: dict[str, list[list[Any]]] = {}
        for controller, entries in values.items():
            if controller in self.bases:
                writes.setdefault(str(self.bases[controller] / name), []).extend(entries)
        return [{"path": path, "join": "tasks", "writes": entries} for path, entries in writes.items()]

    def usage(self, files: GroupFiles) -> Usage:
        cpu_ns, transferred = files.number("cpuacct.usage"), files.read("blkio.throttle.io_service_bytes_recursive")
        return Usage(
            cpu_used_ms=None if cpu_ns is None else cpu_ns / 1e6,
            memory=files.memory("memory.usage_in_bytes", b"total_inactive_file"),
            io_read=_blkio(transferred, b"Read"),
            io_write=_blkio(transferred, b"Write"),
            pids=files.number("pids.current"),
        )


@dataclass
class CgroupV2(CgroupDriver):
    """Drives version 2, the unified hierarchy; ``base`` is ours or delegated to us."""

    base: Path
    controllers: frozenset[str]
    kind: str = "v2"

    @property
    def parents(self) -> Collection[Path]:
        return (self.base,)

    def groups(self, name: str, limits: Limits) -> list[Group]:
        quota, memory, cpus = _quota_us(limits), limits.memory_bytes, _join(limits.cpuset)
        values = {
            "cpu": _writes(("cpu.max", quota and f"{quota} {PERIOD_US}", True)),
            "memory": _writes(("memory.max", memory, True), ("memory.swap.max", None if memory is None else 0, False)),
            "pids": _writes(("pids.max", limits.pids, True)),
            "cpuset": _writes(
                ("cpuset.cpus", cpus or None, True),
                ("cpuset.mems", (cpus and _join(limits.memory_nodes)) or None, True),
            ),
        }
        writes = [entry for key, entries in values.items() if key in self.controllers for entry in entries]
        return [{"path": str(self.base / name), "join": "cgroup.procs", "writes": writes}]

    def usage(self, files: GroupFiles) -> Usage:
        cpu_us, transferred = files.field("cpu.stat", b"usage_usec"), files.read("io.stat")
        return Usage(
            cpu_used_ms=None if cpu_us is None else cpu_us / 1e3,
            memory=files.memory("memory.current", b"inactive_file"),
            io_read=_io_stat(transferred, b"rbytes"),
            io_write=_io_stat(transferred, b"wbytes"),
            pids=files.number("pids.current"),
        )


def _quota_us(limits: Limits) -> int | None:
    return None if limits.cpu is None else max(MIN_QUOTA_US, int(limits.cpu * PERIOD_US))


def _writes(*entries: tuple[str, object, bool]) -> list[list[Any]]:
    """Returns [file, value, required] of each entry with a value."""
    return [[name, str(value), required] for name, value, required in entries if value is not None]


def remove_base(base: Path) -> None:
    """Removes a group and its parent, if they are empty."""
    for path in (base, base.parent):
        try:
            path.rmdir()
        except OSError:
            return


class Groups(Sequence[Group]):
    """Stores the ``path`` of each of a workload's groups in one text, because a node has thousands of them."""

    __slots__ = ("_paths",)

    def __init__(self, groups: Iterable[Group]) -> None:
        self._paths = "\0".join(str(group["path"]) for group in groups)

    @property
    def paths(self) -> list[str]:
        return self._paths.split("\0") if self._paths else []

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        result = self.paths[index]
        return {"path": result} if isinstance(result, str) else Groups({"path": path} for path in result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list


class GroupFiles:
    """Reads a file from whichever of a workload's groups has it. No descriptor stays open: a node has too many."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups if isinstance(groups, Groups) else Groups(groups)

    def read(self, name: str) -> bytes | None:
        """Returns the file's content; None if there is none or it cannot be read."""
        directories = self._groups.paths
        likely = _likely.get(name, 0)
        for index in sorted(range(len(directories)), key=lambda index: index != likely):
            result = content(f"{directories[index]}/{name}")
            if result is not None:
                _likely[name] = index
                return result
        return None

    def number(self, name: str) -> int | None:
        """Returns the only number in the file."""
        text = (self.read(name) or b"").strip()
        return int(text) if text.isdigit() else None

    def memory(self, name: str, inactive: bytes) -> int | None:
        """Returns the memory in use without inactive pages of files, which the kernel takes back at need."""
        used = self.number(name)
        return None if used is None else max(0, used - (self.field("memory.stat", inactive) or 0))

    def field(self, name: str, key: bytes) -> int | None:
        """Returns the number after the key, on a line of its own."""
        text = b"\n" + (self.read(name) or b"")
        start = text.find(b"\n" + key + b" ")
        if start < 0:
            return None
        value = text[start + len(key) + 2 :].partition(b"\n")[0].strip()
        return int(value) if value.isdigit() else None


def content(path: str) -> bytes | None:
    """Returns the content of a file of /proc or of a control group; None if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, _SIZE)
    except OSError:
        return None
    finally:
        os.close(fd)


def _blkio(text: bytes | None, operation: bytes) -> int | None:
    """Returns the sum of an operation; None if no device is listed, because some kernels count only throttled I/O."""
    lines = [line.split() for line in (text or b"").splitlines()]
    counted = [int(words[2]) for words in lines if len(words) == 3 and words[1] == operation]
    return sum(counted) if counted else None


def _io_stat(text: bytes | None, name: bytes) -> int | None:
    if text is None:
        return None
    pairs = (word.partition(b"=") for line in text.splitlines() for word in line.split()[1:])
    return sum(int(value) for key, _, value in pairs if key == name and value.isdigit())


def _join(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _subdirectories(path: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
