"""Determines which control groups are usable, by creating one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ai.backend.node.linux.cgroups import CgroupDriver, CgroupV1, CgroupV2, NoCgroups, remove_base
from ai.backend.node.linux.disk_space import MountEntry

CONTROLLERS_V1 = ("cpu", "cpuacct", "memory", "pids", "blkio", "devices", "cpuset")
CONTROLLERS_V2 = ("cpu", "memory", "pids", "cpuset", "io")
_PROOF_FILE_BY_CONTROLLER = {
    "cpu": "cpu.cfs_quota_us",
    "cpuacct": "cpuacct.usage",
    "memory": "memory.limit_in_bytes",
    "pids": "pids.max",
    "blkio": "blkio.throttle.io_service_bytes_recursive",
    "devices": "devices.list",
    "cpuset": "cpuset.cpus",
}
"""A file that each usable version 1 controller has."""


class CgroupMount(msgspec.Struct, frozen=True):
    """Describes a mounted control group hierarchy. ``controllers`` is empty for the unified hierarchy."""

    path: Path
    is_unified: bool
    controllers: tuple[str, ...] = ()


def find_hierarchies(mounts: Iterable[MountEntry], cgroup_root: Path) -> list[CgroupMount]:
    """Returns the control group hierarchies that are mounted at or below ``cgroup_root``."""
    hierarchies: list[CgroupMount] = []
    for mount in mounts:
        mount_path = Path(mount.mount_point)
        if mount.fstype in {"cgroup", "cgroup2"} and (mount_path == cgroup_root or cgroup_root in mount_path.parents):
            controllers = tuple(controller for controller in CONTROLLERS_V1 if controller in mount.super_options)
            hierarchies.append(CgroupMount(mount_path, mount.fstype == "cgroup2", controllers))
    return hierarchies


def parse_own_groups(cgroup_text: str) -> dict[str, str]:
    """Returns this process's control group by controller, from the text of /proc/self/cgroup.

    The controller of the unified hierarchy is "".
    """
    own_groups: dict[str, str] = {}
    for line in cgroup_text.splitlines():
        _, controllers, group_path = line.split(":", 2)
        own_groups.update(dict.fromkeys(controllers.split(","), group_path))
    return own_groups


def find_driver(
    mounts: Sequence[CgroupMount], own_groups: dict[str, str], parent_name: str, instance_name: str
) -> CgroupDriver:
    """Returns the best control group driver that works on this host, after trying to create groups.

    Leaves the empty group of this instance behind.
    """
    bases_by_controller: dict[str, Path] = {}
    for mount in mounts:
        if not mount.is_unified and mount.controllers:
            base_group = _make_v1_base(mount, own_groups, parent_name, instance_name)
            if base_group is not None:
                bases_by_controller.update(
                    {
                        controller: base_group
                        for controller in mount.controllers
                        if os.access(base_group / _PROOF_FILE_BY_CONTROLLER[controller], os.R_OK)
                    }
                )
    if "memory" in bases_by_controller or "pids" in bases_by_controller:
        has_unified = any(mount.is_unified for mount in mounts)
        return CgroupV1(bases=bases_by_controller, kind="hybrid" if has_unified else "v1")
    for mount in mounts:
        if mount.is_unified:
            driver = _make_v2_driver(mount, own_groups.get("", "/"), parent_name, instance_name)
            if driver is not None:
                return driver
    return NoCgroups()


def _make_v1_base(mount: CgroupMount, own_groups: dict[str, str], parent_name: str, instance_name: str) -> Path | None:
    """Makes the base group of workloads below the hierarchy's root if permitted, else below our own group."""
    for parent_group in (mount.path, mount.path / own_groups.get(mount.controllers[0], "/").lstrip("/")):
        base_group = parent_group / parent_name / instance_name
        try:
            _make_base(base_group)
            if "cpuset" in mount.controllers:
                _fill_cpuset(parent_group, base_group)
            _try_child(base_group, "tasks")
        except OSError:
            remove_base(base_group)
            continue
        return base_group
    return None


def _make_base(base_group: Path) -> None:
    """Makes the base group of workloads; tries again if another agent removes the parent group meanwhile."""
    for attempt in range(3):
        try:
            base_group.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            if attempt == 2:
                raise
        else:
            return


def _fill_cpuset(parent_group: Path, base_group: Path) -> None:
    """Fills a version 1 cpuset, which starts empty and admits no process until then."""
    for file_name in ("cpuset.cpus", "cpuset.mems"):
        value = (parent_group / file_name).read_text().strip()
        for group in (base_group.parent, base_group):
            if not (group / file_name).read_text().strip():
                (group / file_name).write_text(value)


def _try_child(base_group: Path, join_file: str) -> None:
    """Tests that a child group with a writable ``join_file`` can be made below a control group, and removes the child.

    Raises OSError if it cannot.
    """
    probe_group = base_group / f"probe-{os.getpid()}"
    probe_group.mkdir(exist_ok=True)
    try:
        if not os.access(probe_group / join_file, os.W_OK):
            raise PermissionError(join_file)
    finally:
        probe_group.rmdir()


def _make_v2_driver(mount: CgroupMount, own_group: str, parent_name: str, instance_name: str) -> CgroupV2 | None:
    for parent_group in _candidate_parents(mount.path, own_group):
        base_group = parent_group / parent_name / instance_name
        try:
            _enable_controllers(parent_group, base_group)
            _try_child(base_group, "cgroup.procs")
        except OSError:
            remove_base(base_group)
            continue
        usable_controllers = frozenset(_read_words(base_group / "cgroup.subtree_control"))
        if usable_controllers:
            return CgroupV2(base=base_group, controllers=usable_controllers & frozenset(CONTROLLERS_V2))
        remove_base(base_group)
    return None


def _candidate_parents(cgroup_root: Path, own_group: str) -> list[Path]:
    """Returns the groups to try as parents: the root, then our own group's ancestors, farthest first."""
    own_path = cgroup_root / own_group.lstrip("/")
    ancestors = [ancestor for ancestor in own_path.parents if cgroup_root in ancestor.parents]
    return [cgroup_root, *reversed(ancestors)]


def _enable_controllers(parent_group: Path, base_group: Path) -> None:
    """Makes the base group and delegates the controllers to the base group's children. Raises OSError."""
    _make_base(base_group)
    for group in (parent_group, base_group.parent, base_group):
        available_controllers = set(_read_words(group / "cgroup.controllers")) - set(
            _read_words(group / "cgroup.subtree_control")
        )
        for controller in CONTROLLERS_V2:
            if controller in available_controllers:
                with suppress(OSError):  # another one may be delegated
                    (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
