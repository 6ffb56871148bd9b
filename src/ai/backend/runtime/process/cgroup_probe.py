"""Determines which control groups are usable, by creating one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ai.backend.node.linux.cgroups import CgroupDriver, CgroupV1, CgroupV2, NoCgroups, remove_base
from ai.backend.node.linux.mountinfo import MountEntry

WANTED_V1 = ("cpu", "cpuacct", "memory", "pids", "blkio", "devices", "cpuset")
WANTED_V2 = ("cpu", "memory", "pids", "cpuset", "io")
_PROOF = {
    "cpu": ("cpu.cfs_quota_us", "cpu.max"),
    "cpuacct": ("cpuacct.usage", "cpu.stat"),
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "pids": ("pids.max", "pids.max"),
    "blkio": ("blkio.throttle.io_service_bytes_recursive", "io.stat"),
    "io": ("", "io.stat"),
    "devices": ("devices.list", ""),
    "cpuset": ("cpuset.cpus", "cpuset.cpus"),
}


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A mounted hierarchy. ``controllers`` is empty for the unified one."""

    path: Path
    is_unified: bool
    controllers: tuple[str, ...] = ()


def find_hierarchies(mounts: Iterable[MountEntry], root: Path) -> list[CgroupMount]:
    """Returns the hierarchies that are mounted at or below ``root``."""
    hierarchies: list[CgroupMount] = []
    for mount in mounts:
        path = Path(mount.mount_point)
        if mount.fstype in {"cgroup", "cgroup2"} and (path == root or root in path.parents):
            controllers = tuple(name for name in WANTED_V1 if name in mount.super_options)
            hierarchies.append(CgroupMount(path, mount.fstype == "cgroup2", controllers))
    return hierarchies


def parse_own(text: str) -> dict[str, str]:
    """Controller ("" for the unified hierarchy) -> our own group, from the text of /proc/self/cgroup."""
    own: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(","):
            own[name] = path
    return own


def find_driver(mounts: Sequence[CgroupMount], own: dict[str, str], parent: str, instance: str) -> CgroupDriver:
    """Returns the best driver that works here. It leaves the empty group ``parent/instance`` behind."""
    bases: dict[str, Path] = {}
    for mount in mounts:
        if not mount.is_unified and mount.controllers:
            base = _make_v1(mount, own, parent, instance)
            if base is not None:
                bases.update({name: base for name in mount.controllers if _has(base, name, 0)})
    if "memory" in bases or "pids" in bases:
        has_unified = any(mount.is_unified for mount in mounts)
        return CgroupV1(bases=bases, kind="hybrid" if has_unified else "v1")
    for mount in mounts:
        if mount.is_unified:
            driver = _make_v2(mount, own.get("", "/"), parent, instance)
            if driver is not None:
                return driver
    return NoCgroups()


def _has(base: Path, controller: str, version: int) -> bool:
    proof = _PROOF[controller][version]
    return bool(proof) and os.access(base / proof, os.R_OK)


def _make_v1(mount: CgroupMount, own: dict[str, str], parent: str, instance: str) -> Path | None:
    """Below the hierarchy's root if we may, else below our own group."""
    for above in (mount.path, mount.path / own.get(mount.controllers[0], "/").lstrip("/")):
        base = above / parent / instance
        try:
            _make_base(base)
            if "cpuset" in mount.controllers:
                _fill_cpuset(above, base)
            _try_child(base, "tasks")
        except OSError:
            remove_base(base)
            continue
        return base
    return None


def _make_base(base: Path) -> None:
    """Another agent that lets go may take the directory above away under our hands: try again."""
    for attempt in range(3):
        try:
            base.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            if attempt == 2:
                raise
        else:
            return


def _fill_cpuset(above: Path, base: Path) -> None:
    """Fills a version 1 cpuset, which starts empty and admits no process until then."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        value = (above / name).read_text().strip()
        for path in (base.parent, base):
            if not (path / name).read_text().strip():
                (path / name).write_text(value)


def _try_child(base: Path, join: str) -> None:
    """A workload's group must be makeable and joinable. Raises OSError."""
    probe = base / f"probe-{os.getpid()}"
    probe.mkdir(exist_ok=True)
    try:
        if not os.access(probe / join, os.W_OK):
            raise PermissionError(join)
    finally:
        probe.rmdir()


def _make_v2(mount: CgroupMount, own: str, parent: str, instance: str) -> CgroupV2 | None:
    for above in _candidates(mount.path, own):
        base = above / parent / instance
        try:
            _enable(above, base)
            _try_child(base, "cgroup.procs")
        except OSError:
            remove_base(base)
            continue
        offered = frozenset(_read_words(base / "cgroup.subtree_control"))
        if offered:
            return CgroupV2(base=base, controllers=offered & frozenset(WANTED_V2))
        remove_base(base)
    return None


def _candidates(root: Path, own: str) -> list[Path]:
    """The root (an administrator's machine), then our own group's ancestors (delegation), farthest first."""
    own_path = root / own.lstrip("/")
    above = [path for path in own_path.parents if root in path.parents]
    return [root, *reversed(above)]


def _enable(above: Path, base: Path) -> None:
    """Delegates the controllers to the base's children. Raises OSError."""
    _make_base(base)
    for path in (above, base.parent, base):
        for name in WANTED_V2:
            if name in _read_words(path / "cgroup.controllers") and name not in _read_words(
                path / "cgroup.subtree_control"
            ):
                try:
                    (path / "cgroup.subtree_control").write_text(f"+{name}")
                except OSError:
                    continue


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
