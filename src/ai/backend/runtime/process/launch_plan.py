"""Builds what a shim executes from a workload's specification; reads only device nodes."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ai.backend.common.errors import CreationDenied
from ai.backend.node.linux.cgroups import CgroupDriver, Group, Limits
from ai.backend.node.linux.open_beneath import BENEATH
from ai.backend.node.workload.file_trees import RUNNER
from ai.backend.plugin.runtime import HOME, WorkloadSpec
from ai.backend.runtime.process import sandbox
from ai.backend.runtime.process.images import ProcessImage
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.runtime.process.supervisor import launch

COOKIE_VARIABLE = "BACKENDAI_WORKLOAD_COOKIE"
SESSION_PREFIX = "BACKENDAI_SESSION_ENVIRON_"
"""The prefix of the session's variables, which the loader ignores until the runner removes it (``process.py``)."""
FILES_VARIABLE = "BACKENDAI_FILES"
SANDBOX_PATH = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{sandbox.PROGRAMS}"
OOM_SCORE_ADJ = 100
WATCHED_DATA_FACTOR = 2
WATCHED_DATA_SLACK = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The results of the probe and the paths of the host."""

    bwrap: str | None
    cgroups: CgroupDriver
    seccomp: bool
    late_nproc: bool
    runner: Path
    static: Path
    is_root: bool
    user_namespace: bool = True
    """False: the sandbox starts as root and changes its user inside."""
    binds_home: bool = False


def limits_of(spec: WorkloadSpec, settings: ProcessRuntimeSettings) -> Limits:
    """Raises CreationDenied for what is no device, or is not there."""
    devices: list[tuple[str, str, str]] = []
    for device in spec.config.devices:
        wish = {"field": "devices", "key": device.cdi_name or device.target or device.source}
        try:
            status = Path(device.source).stat()
        except OSError as error:
            raise CreationDenied(f"the device {device.source!r} does not exist on this node", data=wish) from error
        if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            raise CreationDenied(f"{device.source!r} is no device", data=wish)
        kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
        permissions = "".join(letter for letter in "rwm" if letter in device.permissions)
        devices.append((kind, f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}", permissions or "rw"))
    return Limits(
        cpu=spec.config.cpu_limit,
        memory_bytes=spec.config.memory_limit_bytes,
        pids=spec.pids or settings.default_pids,
        cpuset=spec.config.cpuset,
        memory_nodes=spec.config.memory_nodes,
        devices=tuple(devices),
    )


def environment(spec: WorkloadSpec, image: ProcessImage, home: str, cookie: str) -> dict[str, str]:
    """Return the variables of sandbox and runner; the session's override our defaults, but never its identity.

    bubblewrap starts on the host, as root in one tier, and the runner holds the channel: none of a user's variables
    (``LD_PRELOAD``, ``GCONV_PATH`` ...) may mean anything to the loader of either.
    """
    python_bin = os.path.dirname(image.runtime_path if image.runtime == "python" else image.interpreter)  # noqa: PTH120  # text of PATH
    defaults = {
        "PATH": SANDBOX_PATH if python_bin in SANDBOX_PATH.split(":") else f"{python_bin}:{SANDBOX_PATH}",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "SHELL": "/bin/bash",
        "TMPDIR": "/tmp",
    }
    identity = {
        "HOME": home,
        "USER": "work",
        "LOGNAME": "work",
        "BACKENDAI_KERNEL_ID": str(spec.key.kernel_id),
        "BACKENDAI_SESSION_ID": str(spec.session_id),
        "BACKENDAI_ATTEMPT": str(spec.key.attempt),
        COOKIE_VARIABLE: cookie,
    }
    requested = {**spec.config.env_vars, **spec.environ}
    return {
        **defaults,
        **{SESSION_PREFIX + name: text for name, text in requested.items() if name not in {*identity, FILES_VARIABLE}},
        **identity,
    }


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
) -> dict[str, Any]:
    """Return the shim's plan (``plan.json``). Raises CreationDenied."""
    limits = limits_of(spec, settings)
    shows_home = host.bwrap is not None or host.binds_home
    inner_home = HOME if shows_home else str(home)
    runner = RUNNER if host.bwrap else str(host.runner)
    command = [image.interpreter, "-I", "-S", f"{runner}/runner_main.py", "--channel-fd", str(launch.CHANNEL_FD)]
    command += ["--runtime", image.runtime, "--home", inner_home]
    counts_pids = "pids" in host.cgroups.controllers
    late = limits.pids if host.bwrap and not counts_pids and host.late_nproc else None
    stage: list[list[str]] = []
    if host.bwrap:
        scene = sandbox.HostPaths(
            bwrap=host.bwrap,
            home=home,
            runner=host.runner,
            static=host.static,
            prefixes=(*image.prefixes, *map(str, settings.host_directories)) if image.rootfs is None else (),
            rootfs=image.rootfs,
            python=image.runtime_path if image.runtime == "python" else None,
            mounts=spec.config.mounts,
            devices=spec.config.devices,
            files=files,
            hostname=spec.hostname,
            tmp_bytes=settings.tmp_bytes,
            shmem_bytes=spec.shmem_bytes or settings.shmem_bytes,
            private_network=settings.network == "none" and spec.network is None,
            has_seccomp=host.seccomp,
            has_block=late is not None,
            # An ordinary user stages only where it must: a path in a folder is not bound by its name.
            staged=host.user_namespace and (host.is_root or any(BENEATH in m.source for m in spec.config.mounts)),
            user_namespace=host.user_namespace,
        )
        if not host.user_namespace:
            groups_text = ",".join(map(str, spec.config.extra_gids))
            identity = [str(settings.kernel_uid), str(settings.kernel_gid), groups_text]
            command = [image.interpreter, "-I", "-S", "-c", sandbox.BECOME_USER, *identity, *command]
        command, stage = sandbox.compose(scene, command)
    return {
        "version": 1,
        "argv": command,
        "environ": environment(spec, image, inner_home, cookie),
        "cwd": inner_home,
        "veils": veils_of(home, (host.runner, *map(Path, image.prefixes))) if host.binds_home else {},
        "sandboxed": bool(host.bwrap),
        "stage": stage,
        "cgroups": [dict(group) for group in groups],
        "seccomp": str(directory / "seccomp.bpf") if host.seccomp else None,
        "uid": settings.kernel_uid if host.is_root and host.user_namespace else None,
        "gid": settings.kernel_gid if host.is_root and host.user_namespace else None,
        "groups": list(spec.config.extra_gids),
        "rlimits": _rlimits(spec, settings, limits, host),
        "nproc_late": late,
        "oom_score_adj": OOM_SCORE_ADJ,
        "watch": _watch(limits, host),
        "log_bytes": settings.log_bytes,
        "replay_bytes": settings.replay_bytes,
        "look_s": 3 * settings.watch_interval_s,
    }


def veils_of(home: Path, needed: Sequence[Path]) -> dict[str, list[list[str]]]:
    """What to cover and what to show there, for a session that shares the host's file system (``launch``)."""
    veils: dict[str, list[list[str]]] = {str(Path(HOME).parent): [[str(home), HOME]]}
    for path in needed:
        closed = next((above for above in reversed(path.parents) if not above.stat().st_mode & 0o001), None)
        if closed is not None and not any(_is_below(str(closed), cover) for cover in veils):
            veils[str(closed)] = []
    for path in needed:
        cover = next((cover for cover in veils if _is_below(str(path), cover)), None)
        if cover is not None:
            veils[cover].append([str(path), str(path)])
    return veils


def _is_below(path: str, cover: str) -> bool:
    return path == cover or path.startswith(cover.rstrip("/") + "/")


def _watch(limits: Limits, host: Host) -> dict[str, int]:
    """Return the limits that nothing else enforces, for the shim to check once a second."""
    watched: dict[str, int] = {}
    if limits.memory_bytes is not None and "memory" not in host.cgroups.controllers:
        watched["memory"] = limits.memory_bytes
    kept = "pids" in host.cgroups.controllers or host.late_nproc
    if limits.pids is not None and not kept:
        watched["pids"] = limits.pids
    return watched


def _rlimits(spec: WorkloadSpec, settings: ProcessRuntimeSettings, limits: Limits, host: Host) -> dict[str, int]:
    """Return the limits of one process, which back up the control groups or replace them."""
    limits_by_name = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": settings.open_files}
    home_bytes = spec.home_bytes or settings.home_bytes
    if home_bytes is not None:
        limits_by_name["RLIMIT_FSIZE"] = home_bytes
    if limits.memory_bytes is not None and "memory" not in host.cgroups.controllers:
        limits_by_name["RLIMIT_DATA"] = limits.memory_bytes * WATCHED_DATA_FACTOR + WATCHED_DATA_SLACK
    return limits_by_name
