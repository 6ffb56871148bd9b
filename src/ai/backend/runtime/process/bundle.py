"""Builds the OCI bundle from which `runsc` (gVisor) runs a session: its mounts, links and folders on an empty root.

The bundle has the files of every sandbox.

The shim's child writes it into a folder in memory that only it and `runsc` see, with the session's variables.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ai.backend.common.errors import CreationDenied
from ai.backend.node.workload.file_trees import RUNNER
from ai.backend.plugin.runtime import HOME, WorkloadSpec
from ai.backend.runtime.process.sandbox import HostPaths, SandboxView, StagedSource, show_session
from ai.backend.runtime.process.supervisor import launch
from ai.backend.runtime.process.supervisor.gvisor import BUNDLE_FOLDER, STATE_FOLDER

GVISOR = "gvisor"
"""The runtime class."""
FIRST_PROGRAM_FILE = "relay/main.py"
"""The path of the first process's program, relative to the runner's files."""
REQUESTS_FD = 4
_NAMESPACES = ("pid", "ipc", "uts", "mount")
_MOUNT_OPTIONS = {"--bind": ["rbind", "rw", "nosuid", "nodev"], "--ro-bind": ["rbind", "ro", "nosuid", "nodev"]}


@dataclass(slots=True)
class BundleView(SandboxView):
    """Collects the mounts of an OCI bundle, and the links and folders of its root."""

    mounts: list[dict[str, Any]] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    _sources: dict[str, str] = field(default_factory=dict)

    def mount(self, bind_option: str, source: str, target: str) -> None:
        self._add_mount("bind", source, target, _MOUNT_OPTIONS[bind_option])

    def bind(self, source: str | Path, target: str, bind_option: str = "--ro-bind") -> None:
        self._check_mount_point(str(source), target)
        self._sources[target] = str(source)
        super(BundleView, self).bind(source, target, bind_option)  # a class with slots: no plain `super`

    def link(self, target: str, link_path: str) -> None:
        self.links[link_path] = target

    def add_folder(self, path: str) -> None:
        self.folders.append(path)

    def add_memory(self, path: str, size_bytes: int) -> None:
        self._add_mount("tmpfs", "tmpfs", path, ["nosuid", "nodev", f"size={size_bytes}", "mode=1777"])

    def show_system(self, *, has_devices: bool) -> None:
        """Adds gVisor's own /proc, /dev and /sys, in which there is nothing of the host.

        Raises CreationDenied for devices.
        """
        if has_devices:
            raise CreationDenied("gVisor is given no devices here", data={"field": "devices", "key": "*"})
        self._add_mount("proc", "proc", "/proc", [])
        self._add_mount("tmpfs", "tmpfs", "/dev", [])
        self._add_mount("sysfs", "sysfs", "/sys", ["ro"])

    def _add_mount(self, kind: str, source: str, target: str, options: Sequence[str]) -> None:
        self.mounts.append({"destination": target, "type": kind, "source": source, "options": list(options)})

    def _check_mount_point(self, source: str, target: str) -> None:
        """Raises CreationDenied if a mount has no mount point in a host's folder that is shown read-only.

        The missing mount point would have to be made on the host.
        """
        outer_target = max((path for path in self._sources if target.startswith(path + "/")), key=len, default=None)
        if outer_target is None or any(target.startswith(f"{path}/") for path in self._staged_targets):
            return
        host_path = self._sources[outer_target] + target.removeprefix(outer_target)
        if os.path.isdir(source) != os.path.isdir(host_path) or not os.path.lexists(host_path):  # noqa: PTH112  # texts
            message = f"there is no place for {target!r} in {outer_target!r}, which is shown read-only"
            raise CreationDenied(message, data={"field": "mounts", "key": target})


def compose_bundle(
    spec: WorkloadSpec,
    host_paths: HostPaths,
    command: Sequence[str],
    *,
    runsc: str,
    uid_gid: tuple[int, int],
    limits: Mapping[str, int],
) -> tuple[dict[str, Any], list[StagedSource]]:
    """Returns the OCI bundle for the shim, and the sources that the shim must stage. Raises CreationDenied.

    The session's variables are added where the bundle is written.
    """
    view = BundleView(is_staged=True)
    show_session(view, host_paths)
    uid, gid = uid_gid
    process = {
        "user": {"uid": uid, "gid": gid, "additionalGids": list(spec.config.extra_gids)},
        "args": list(command),
        "cwd": HOME,
        "rlimits": [{"type": name, "hard": limit, "soft": limit} for name, limit in limits.items()],
    }
    fd_mapping = {launch.CHANNEL_FD: launch.CHANNEL_FD, launch.INFO_FD: REQUESTS_FD}
    return bundle_of(view, runsc, str(spec.key), process, host_paths.hostname, fd_mapping), view.staged_sources


def bundle_of(
    view: BundleView,
    runsc: str,
    sandbox_id: str,
    process: Mapping[str, Any],
    hostname: str,
    fd_mapping: Mapping[int, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the OCI configuration, links, folders and `runsc` command line of a sandbox in gVisor.

    :mod:`supervisor.gvisor` writes and runs it. ``fd_mapping`` maps the leader's descriptors to those inside the
    sandbox.
    """
    config = {
        "ociVersion": "1.0.2",
        "hostname": hostname,
        "root": {"path": f"{BUNDLE_FOLDER}/root", "readonly": True},
        "process": {**process, "noNewPrivileges": True, "capabilities": {}},
        "mounts": view.mounts,
        "linux": {"namespaces": [{"type": name} for name in _NAMESPACES]},
    }
    options = [f"--root={STATE_FOLDER}", "--platform=systrap", "--ignore-cgroups", "--overlay2=none"]
    arguments = [f"--bundle={BUNDLE_FOLDER}"]
    for leader_fd, process_fd in fd_mapping.items():
        arguments += ["--pass-fd", f"{leader_fd}:{process_fd}"]
    command = [runsc, *options, "run", *arguments, sandbox_id]
    return {"config": config, "links": view.links, "folders": view.folders, "command": command}


def first_process(interpreter: str, runtime: str) -> list[str]:
    """Returns the command line of the first process in a gVisor sandbox, which starts the runner.

    See :mod:`node.relay.inner`.
    """
    fd_arguments = ["--channel-fd", str(launch.CHANNEL_FD), "--requests-fd", str(REQUESTS_FD)]
    program = [interpreter, "-I", "-S", f"{RUNNER}/{FIRST_PROGRAM_FILE}", "inner"]
    return [*program, *fd_arguments, "--runtime", runtime, "--home", HOME]


def why_denied(spec: WorkloadSpec) -> tuple[str, dict[str, str]]:
    """Returns why gVisor cannot run a workload, with the field and the key of the item that it does not support.
    Returns an empty text and an empty object if it supports everything.
    """
    for device in spec.config.devices:
        key = device.cdi_name or device.target or device.source
        return "sessions in gVisor have no devices here", {"field": "devices", "key": key}
    if spec.config.ipc is not None:
        return "sessions in gVisor share no memory with others", {"field": "ipc", "key": spec.config.ipc}
    for mount in spec.config.mounts:
        if stat.S_ISSOCK(_mode_of(mount.source)):
            message = f"sessions in gVisor cannot be given the socket {mount.target!r}"
            return message, {"field": "mounts", "key": mount.target}
    return "", {}


def _mode_of(path: str) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116  # a text, tested as it is mounted
    except OSError:
        return 0
