"""Builds the launch plan of a workload from its specification; a shim executes the plan.

Reads nothing but device nodes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.structs import replace
from ai.backend.node.linux.cgroups import CgroupDriver, Group, Limits
from ai.backend.node.workload.file_trees import RUNNER
from ai.backend.plugin.runtime import HOME, WorkloadSpec
from ai.backend.runtime.process import program, sandbox
from ai.backend.runtime.process.bundle import compose_bundle, first_process
from ai.backend.runtime.process.etc_folder import EtcFolder
from ai.backend.runtime.process.images import ProcessImage
from ai.backend.runtime.process.settings import SESSION_UID_COUNT, ProcessRuntimeSettings
from ai.backend.runtime.process.supervisor import launch
from ai.backend.runtime.workload import OOM_SCORE_ADJ, SESSION_PREFIX, device_node, environment

SHARED_FILTER_NAME = "seccomp.bpf"
GVISOR_STATIC_FOLDER = "gvisor"
"""A folder of the host's static files for sessions in gVisor, where the session's user has another number."""
MEMORY_FOLDERS = ("/home/config",)
MEMORY_FOLDERS_BYTES = 256 * 1024
COOKIE_VARIABLE = "BACKENDAI_WORKLOAD_COOKIE"
FILES_VARIABLE = "BACKENDAI_FILES"
SANDBOX_PATH = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{sandbox.PROGRAMS_FOLDER}"
OUTER_PROCESSES = 1
"""The number of processes that the session's limit includes but the session does not see: bubblewrap's first
process.
"""
WATCHED_DATA_FACTOR = 2
WATCHED_DATA_SLACK_BYTES = 1024 * 1024 * 1024


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the sandbox, network and control group features of this host, as the probe has found them.

    Without ``in_user_namespace`` the sandbox starts as root. ``can_stage``: mounts can be made before bubblewrap runs.
    ``session_uids``: the first of the users that make the user namespaces of sessions; 0 if sessions share one user's.
    """

    bwrap: str | None
    cgroups: CgroupDriver
    has_seccomp: bool
    can_limit_pids_late: bool
    runner: Path
    static_folder: Path
    etc_copies: EtcFolder
    is_root: bool
    in_user_namespace: bool = True
    can_stage: bool = True
    session_uids: int = 0
    binds_home: bool = False
    egress: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The arguments of the helpers that give sessions a network with a way out (:mod:`egress`); empty for none."""
    runsc: str = ""
    """The program that starts gVisor; empty where gVisor does not work (:mod:`gvisor`)."""
    is_gvisor: bool = False

    def in_gvisor(self) -> Host:
        """Returns a copy of this host's features as they are for sessions that run in gVisor.

        The first process of such a session is `runsc` as root.
        """
        return replace(
            self,
            is_gvisor=True,
            bwrap=self.runsc,
            has_seccomp=False,
            can_limit_pids_late=False,
            static_folder=self.static_folder / GVISOR_STATIC_FOLDER,
            in_user_namespace=False,
            session_uids=0,
            binds_home=False,
            egress={},
        )


def limits_of(spec: WorkloadSpec, settings: ProcessRuntimeSettings) -> Limits:
    """Returns the resource limits and devices of a workload. Raises CreationDenied for a missing or wrong device."""
    devices: list[tuple[str, str, str]] = []
    for device in spec.config.devices:
        status, permissions = device_node(device)
        device_type = "b" if stat.S_ISBLK(status.st_mode) else "c"
        devices.append((device_type, f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}", permissions))
    return Limits(
        cpu=spec.config.cpu_limit,
        memory_bytes=spec.config.memory_limit_bytes,
        pids=spec.pids or settings.default_pids,
        cpuset=spec.config.cpuset,
        memory_nodes=spec.config.memory_nodes,
        devices=tuple(devices),
    )


def variables_of(spec: WorkloadSpec, image: ProcessImage, home: str, cookie: str) -> dict[str, str]:
    """Returns the environment variables of a workload's sandbox and runner."""
    python_bin = os.path.dirname(image.runtime_path if image.runtime == "python" else image.interpreter)  # noqa: PTH120  # text of PATH
    defaults = {
        "PATH": SANDBOX_PATH if python_bin in SANDBOX_PATH.split(":") else f"{python_bin}:{SANDBOX_PATH}",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "SHELL": "/bin/bash",
        "TMPDIR": "/tmp",
    }
    return environment(spec, defaults, {"HOME": home, COOKIE_VARIABLE: cookie}, [FILES_VARIABLE], image.environ)


def build_plan(
    spec: WorkloadSpec,
    image: ProcessImage,
    settings: ProcessRuntimeSettings,
    host: Host,
    *,
    directory: Path,
    home: Path,
    cookie: str,
    groups: list[Group],
    files: dict[str, Path],
    folders: Mapping[str, Mapping[str, bytes]],
) -> dict[str, Any]:
    """Returns the shim's plan (``plan.json``). ``folders`` are those of :func:`folders_of`. Raises CreationDenied."""
    limits = limits_of(spec, settings)
    has_inner_home = host.bwrap is not None or host.binds_home
    inner_home = HOME if has_inner_home else str(home)
    runner_folder = RUNNER if host.bwrap else str(host.runner)
    command = [image.interpreter, "-I", "-S", f"{runner_folder}/runner_main.py", "--channel-fd", str(launch.CHANNEL_FD)]
    command += ["--runtime", image.runtime, "--home", inner_home]
    environ = variables_of(spec, image, inner_home, cookie)
    script = ""
    if has_inner_home and not host.is_gvisor and program.can_run_in_place(spec, image, home):
        script = program.script_of(spec, environ, command, image.runtime, _inner_identity(settings, host))
    if script:
        command, environ[program.SCRIPT_VARIABLE] = [*program.SCRIPT_COMMAND], script
    cgroup_limits_pids = "pids" in host.cgroups.controllers
    late_limits_pids = host.bwrap and not cgroup_limits_pids and host.can_limit_pids_late
    own_pid_limit = limits.pids if late_limits_pids and host.session_uids else None
    late_pid_limit = limits.pids if late_limits_pids and not host.session_uids else None
    rlimits = _resource_limits(spec, settings, limits, host)
    if host.bwrap:
        etc_folder = _shared_etc_of(spec, host, files) if image.rootfs is None else None
        if host.is_gvisor and etc_folder is not None:  # the host's copy has the user of the other sandboxes
            files = {**{f"/etc/{name}": host.static_folder / name for name in ("passwd", "group")}, **files}
        host_paths = sandbox.HostPaths(
            bwrap=host.bwrap,
            home=home,
            runner=host.runner,
            static_folder=host.static_folder,
            etc_folder=etc_folder,
            prefixes=(*image.prefixes, *map(str, settings.host_directories)) if image.rootfs is None else (),
            rootfs=image.rootfs,
            python=image.runtime_path if image.runtime == "python" else None,
            mounts=spec.config.mounts,
            devices=spec.config.devices,
            ipc=spec.config.ipc,
            files=files,
            folders=folders,
            hostname=spec.hostname,
            tmp_bytes=settings.tmp_bytes,
            shmem_bytes=spec.shmem_bytes or settings.shmem_bytes,
            has_private_network=settings.network == "none" and spec.network is None,
            has_seccomp=host.has_seccomp,
            has_block_fd=late_pid_limit is not None,
            is_staged=_is_staged(spec, host),
            in_user_namespace=host.in_user_namespace,
        )
        start_fields = _start_of(spec, image, settings, host, host_paths, command, rlimits)
    else:
        start_fields = {"argv": command, "stage": [], "rlimits": rlimits, "bundle": None}
    return {
        "version": 1,
        **start_fields,
        "environ": environ,
        "secret_variables": _secret_variables(spec),
        "program": bool(script),
        "cwd": inner_home,
        "egress": egress_of(spec, host),
        "veils": veils_of(home, (host.runner, *map(Path, image.prefixes))) if host.binds_home else {},
        "sandboxed": bool(host.bwrap),
        "cgroups": [dict(group) for group in groups],
        "seccomp": _filter_of(spec, host, directory),
        "owner": [settings.kernel_uid, settings.kernel_gid] if host.is_root else None,
        "uid": settings.kernel_uid if host.is_root and host.in_user_namespace else None,
        "gid": settings.kernel_gid if host.is_root and host.in_user_namespace else None,
        "namespace_uid": host.session_uids + spec.key.kernel_id.int % SESSION_UID_COUNT if host.session_uids else None,
        "pty_limit": settings.ptys,
        "groups": list(spec.config.extra_gids),
        "nproc": None if own_pid_limit is None else own_pid_limit + OUTER_PROCESSES,
        "nproc_late": late_pid_limit,
        "oom_score_adj": OOM_SCORE_ADJ,
        "watch": _watched_limits(limits, host),
        "log_bytes": settings.log_bytes,
        "replay_bytes": settings.replay_bytes,
        "look_s": 3 * settings.watch_interval_s,
    }


def _start_of(
    spec: WorkloadSpec,
    image: ProcessImage,
    settings: ProcessRuntimeSettings,
    host: Host,
    host_paths: sandbox.HostPaths,
    command: Sequence[str],
    rlimits: Mapping[str, int],
) -> dict[str, Any]:
    """Returns the part of the plan that starts the sandbox: command line, staged sources, limits and OCI bundle.

    In gVisor the limits are those of the processes inside.
    """
    uid, gid = _inner_identity(settings, host)
    if host.is_gvisor:
        first_command = first_process(image.interpreter, image.runtime)
        bundle, staged_sources = compose_bundle(
            spec, host_paths, first_command, runsc=host.runsc, uid_gid=(uid, gid), limits=rlimits
        )
        return {"argv": bundle.pop("command"), "stage": staged_sources, "rlimits": {"RLIMIT_CORE": 0}, "bundle": bundle}
    if not host.in_user_namespace:
        identity_arguments = [str(uid), str(gid), ",".join(map(str, spec.config.extra_gids))]
        command = [image.interpreter, "-I", "-S", "-c", sandbox.BECOME_USER_SCRIPT, *identity_arguments, *command]
    argv, staged_sources = sandbox.compose(host_paths, command)
    return {"argv": argv, "stage": staged_sources, "rlimits": rlimits, "bundle": None}


def _is_staged(spec: WorkloadSpec, host: Host) -> bool:
    """Returns True if a workload's mounts must be prepared in the stage folder before bubblewrap runs."""
    return host.bwrap is not None and (host.is_root or (host.can_stage and bool(spec.config.mounts or spec.config.ipc)))


def folders_of(files: Mapping[str, bytes], spec: WorkloadSpec, host: Host) -> dict[str, dict[str, bytes]]:
    """Returns the contents of the files that the shim writes into read-only folders in memory, by folder and file name.

    There is one mount for each folder. These are the public files of folders in which nothing else is, such as
    /home/config: such a folder is read-only, and nothing can be mounted in it any more.
    """
    folders: dict[str, dict[str, bytes]] = {}
    for target, content in files.items() if _is_staged(spec, host) else ():
        folder, _, name = target.rpartition("/")
        if folder in MEMORY_FOLDERS and target not in spec.private_files and os.path.normpath(target) == target:
            folders.setdefault(folder, {})[name] = content
    targets = [
        *files,
        *(mount.target for mount in spec.config.mounts),
        *(device.target or "" for device in spec.config.devices),
    ]
    folders = {
        folder: contents
        for folder, contents in folders.items()
        if all(target[len(folder) + 1 :] in contents for target in targets if target.startswith(f"{folder}/"))
    }
    total_bytes = sum(len(content) for contents in folders.values() for content in contents.values())
    return folders if total_bytes <= MEMORY_FOLDERS_BYTES else {}


def _filter_of(spec: WorkloadSpec, host: Host, directory: Path) -> str | None:
    """Returns the path of the system call filter for a workload; None if the host has no seccomp.

    All workloads without system calls of their own share one filter.
    """
    if not host.has_seccomp:
        return None
    return str(directory / "seccomp.bpf" if spec.config.extra_syscalls else host.static_folder / SHARED_FILTER_NAME)


def _shared_etc_of(spec: WorkloadSpec, host: Host, files: Mapping[str, Path]) -> Path | None:
    """Returns the copied /etc folder that a session can share with other sessions.

    Returns None if there is no copy, or if the copy lacks the target of a mount, file or device.
    """
    targets = (
        *files,
        *(mount.target for mount in spec.config.mounts),
        *(device.target for device in spec.config.devices),
    )
    relative_paths = [target.removeprefix("/etc/") for target in targets if target and target.startswith("/etc/")]
    folder = host.etc_copies.current()
    if folder is None or any(not os.path.lexists(folder / path) for path in relative_paths):
        return None
    return folder


def _inner_identity(settings: ProcessRuntimeSettings, host: Host) -> tuple[int, int]:
    """Returns the (user id, group id) that the programs of a session see as their own inside the sandbox."""
    if host.bwrap and host.in_user_namespace:
        return sandbox.INNER_UID, sandbox.INNER_UID
    return (settings.kernel_uid, settings.kernel_gid) if host.is_root else (os.getuid(), os.getgid())


def egress_of(spec: WorkloadSpec, host: Host) -> dict[str, Any]:
    """Returns the command lines of the helper that connects a workload's own network to the outside.

    Returns an empty object if the network has no way out, or is the host's.
    """
    is_available = "as-root" in host.egress if spec.network is not None else bool(host.egress)
    return dict(host.egress) if is_available else {}


def veils_of(home: Path, needed_paths: Sequence[Path]) -> dict[str, list[list[str]]]:
    """Returns the directories to hide behind empty ones, each with the (source, target) pairs that stay visible inside.

    See :mod:`launch`.
    """
    veils: dict[str, list[list[str]]] = {str(Path(HOME).parent): [[str(home), HOME]]}
    for path in needed_paths:
        closed_parent = next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)
        if closed_parent is not None and not any(
            _is_below(str(closed_parent), covered_directory) for covered_directory in veils
        ):
            veils[str(closed_parent)] = []
    for path in needed_paths:
        covered_directory = next(
            (covered_directory for covered_directory in veils if _is_below(str(path), covered_directory)), None
        )
        if covered_directory is not None:
            veils[covered_directory].append([str(path), str(path)])
    return veils


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _watched_limits(limits: Limits, host: Host) -> dict[str, int]:
    """Returns the limits on memory and processes that the shim checks, since the kernel does not enforce them here.

    The shim checks once a second.
    """
    watched_limits: dict[str, int] = {}
    if limits.memory_bytes is not None and "memory" not in host.cgroups.controllers:
        watched_limits["memory"] = limits.memory_bytes
    if limits.pids is not None and "pids" not in host.cgroups.controllers and not host.can_limit_pids_late:
        watched_limits["pids"] = limits.pids
    return watched_limits


def _resource_limits(
    spec: WorkloadSpec, settings: ProcessRuntimeSettings, limits: Limits, host: Host
) -> dict[str, int]:
    """Returns the resource limits of each process, which back up the control groups or replace them."""
    limits_by_name = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": settings.open_files}
    home_bytes = spec.home_bytes or settings.home_bytes
    if home_bytes is not None:
        limits_by_name["RLIMIT_FSIZE"] = home_bytes
    if limits.memory_bytes is not None and "memory" not in host.cgroups.controllers:
        limits_by_name["RLIMIT_DATA"] = limits.memory_bytes * WATCHED_DATA_FACTOR + WATCHED_DATA_SLACK_BYTES
    return limits_by_name


def _secret_variables(spec: WorkloadSpec) -> list[str]:
    """Returns the names of a plan's variables that hold secrets of the session; none if the session has no secret.

    The script of a program run in place sets all variables of the session, and so counts as secret too.
    """
    if not spec.secret_names:
        return []
    return [program.SCRIPT_VARIABLE, *(SESSION_PREFIX + name for name in sorted(spec.secret_names))]
