"""Drivers of control groups: version 1, version 2, a mixture of both, and none.

A driver turns limits into data which the shim applies (:mod:`cgroupfs`), and reads statistics back. The groups lie
outside of the agent's own, so that stopping the agent's service does not end the sessions.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

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


Group = Mapping[str, Any]
"""``path``, ``join`` (file to write "0" into), ``writes`` ([file, value, required], ...)."""


class CgroupDriver(ABC):
    """A driver that limits and measures workloads."""

    kind: str
    controllers: frozenset[str]

    @abstractmethod
    def groups(self, name: str, limits: Limits) -> list[Group]:
        """Returns the groups of a workload; creates nothing."""

    @abstractmethod
    def usage(self, files: GroupFiles) -> Usage: ...

    @abstractmethod
    def leftovers(self) -> list[Group]:
        """Returns the groups below ours, of any workload."""

    @abstractmethod
    def let_go(self) -> None:
        """Removes our empty groups; those with workloads stay. The next probe creates them again."""


class NoCgroups(CgroupDriver):
    """The driver without control groups: none is writable here, or the settings disable them."""

    kind = "none"
    controllers: frozenset[str] = frozenset()

    def groups(self, name: str, limits: Limits) -> list[Group]:
        return []

    def usage(self, files: GroupFiles) -> Usage:
        return Usage()

    def leftovers(self) -> list[Group]:
        return []

    def let_go(self) -> None:
        pass


@dataclass(slots=True)
class CgroupV1(CgroupDriver):
    """Drives version 1, one hierarchy per controller. ``bases`` maps controllers to the workloads' parent groups."""

    bases: Mapping[str, Path]
    kind: str = "v1"
    controllers: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.controllers = frozenset(self.bases)

    def groups(self, name: str, limits: Limits) -> list[Group]:
        writes: dict[str, list[list[Any]]] = {}
        values: dict[str, Callable[[Limits], list[list[Any]]]] = {
            "cpu": self._cpu,
            "cpuacct": lambda _: [],
            "memory": self._memory,
            "pids": self._pids,
            "blkio": lambda _: [],
            "devices": self._devices,
            "cpuset": self._cpuset,
        }
        for controller, of in values.items():
            if controller in self.bases and not (controller == "cpuset" and not limits.cpuset):
                writes.setdefault(str(self.bases[controller] / name), []).extend(of(limits))
        return [{"path": path, "join": "tasks", "writes": values} for path, values in writes.items()]

    def _cpu(self, limits: Limits) -> list[list[Any]]:
        if limits.cpu is None:
            return []
        quota = max(MIN_QUOTA_US, int(limits.cpu * PERIOD_US))
        return [["cpu.cfs_period_us", str(PERIOD_US), True], ["cpu.cfs_quota_us", str(quota), True]]

    def _memory(self, limits: Limits) -> list[list[Any]]:
        if limits.memory_bytes is None:
            return []
        value = str(limits.memory_bytes)
        return [["memory.limit_in_bytes", value, True], ["memory.memsw.limit_in_bytes", value, False]]

    def _pids(self, limits: Limits) -> list[list[Any]]:
        return [] if limits.pids is None else [["pids.max", str(limits.pids), True]]

    def _devices(self, limits: Limits) -> list[list[Any]]:
        allowed = (*STANDARD_DEVICES, *limits.devices)
        return [["devices.deny", "a", True], *(["devices.allow", " ".join(entry), True] for entry in allowed)]

    def _cpuset(self, limits: Limits) -> list[list[Any]]:
        nodes = _join(limits.memory_nodes) or _text(self.bases["cpuset"] / "cpuset.mems").strip()
        return [["cpuset.mems", nodes, True], ["cpuset.cpus", _join(limits.cpuset), True]]

    def usage(self, files: GroupFiles) -> Usage:
        cpu = files.number("cpuacct.usage")
        memory = files.number("memory.usage_in_bytes")
        cache = files.field("memory.stat", b"total_inactive_file") or 0
        transferred = files.read("blkio.throttle.io_service_bytes_recursive")
        return Usage(
            cpu_used_ms=None if cpu is None else cpu / 1e6,
            memory=None if memory is None else max(0, memory - cache),
            io_read=_blkio(transferred, b"Read"),
            io_write=_blkio(transferred, b"Write"),
            pids=files.number("pids.current"),
        )

    def leftovers(self) -> list[Group]:
        return [{"path": str(path)} for base in set(self.bases.values()) for path in _subdirectories(base)]

    def let_go(self) -> None:
        for base in set(self.bases.values()):
            remove_base(base)


@dataclass(slots=True)
class CgroupV2(CgroupDriver):
    """Drives version 2, the unified hierarchy; ``base`` is ours or delegated to us."""

    base: Path
    controllers: frozenset[str]
    kind: str = "v2"

    def groups(self, name: str, limits: Limits) -> list[Group]:
        writes: list[list[Any]] = []
        if "cpu" in self.controllers and limits.cpu is not None:
            writes.append(["cpu.max", f"{max(MIN_QUOTA_US, int(limits.cpu * PERIOD_US))} {PERIOD_US}", True])
        if "memory" in self.controllers and limits.memory_bytes is not None:
            writes += [["memory.max", str(limits.memory_bytes), True], ["memory.swap.max", "0", False]]
        if "pids" in self.controllers and limits.pids is not None:
            writes.append(["pids.max", str(limits.pids), True])
        if "cpuset" in self.controllers and limits.cpuset:
            writes.append(["cpuset.cpus", _join(limits.cpuset), True])
            if limits.memory_nodes:
                writes.append(["cpuset.mems", _join(limits.memory_nodes), True])
        return [{"path": str(self.base / name), "join": "cgroup.procs", "writes": writes}]

    def usage(self, files: GroupFiles) -> Usage:
        cpu = files.field("cpu.stat", b"usage_usec")
        memory = files.number("memory.current")
        cache = files.field("memory.stat", b"inactive_file") or 0
        transferred = files.read("io.stat")
        return Usage(
            cpu_used_ms=None if cpu is None else cpu / 1e3,
            memory=None if memory is None else max(0, memory - cache),
            io_read=_io_stat(transferred, b"rbytes"),
            io_write=_io_stat(transferred, b"wbytes"),
            pids=files.number("pids.current"),
        )

    def leftovers(self) -> list[Group]:
        return [{"path": str(path)} for path in _subdirectories(self.base)]

    def let_go(self) -> None:
        remove_base(self.base)


def remove_base(base: Path) -> None:
    """Removes a group and its parent, if they are empty."""
    for path in (base, base.parent):
        try:
            path.rmdir()
        except OSError:
            return


_SIZE = 65536


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

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Group]: ...
    def __getitem__(self, index: int | slice) -> Group | Sequence[Group]:
        result = self.paths[index]
        return {"path": result} if isinstance(result, str) else Groups({"path": path} for path in result)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list


_likely: dict[str, int] = {}
"""Maps each file to the index of the group that had it last; the workloads of a node are alike."""


class GroupFiles:
    """Reads a file from whichever of a workload's groups has it. No descriptor stays open: a node has too many."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups if isinstance(groups, Groups) else Groups(groups)

    def read(self, name: str) -> bytes | None:
        """Returns the file's content; None if there is none or it cannot be read."""
        directories = self._groups.paths
        likely = _likely.get(name, 0)
        for place in sorted(range(len(directories)), key=lambda place: place != likely):
            result = content(f"{directories[place]}/{name}")
            if result is not None:
                _likely[name] = place
                return result
        return None

    def number(self, name: str) -> int | None:
        """Returns the only number in the file."""
        text = (self.read(name) or b"").strip()
        return int(text) if text.isdigit() else None

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


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _subdirectories(path: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
