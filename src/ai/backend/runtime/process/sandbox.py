"""Builds the arguments of bubblewrap and the files that replace the host's in a session.

A host image shows the system's programs read-only and of /etc only what programs need to run; never /root, /home, /var,
/etc/shadow, /run or anything of ours. Sources below a directory closed to the session's user are staged first.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.errors import CreationDenied
from ai.backend.node.workload.file_trees import RUNNER, SU_EXEC, check_ipc, check_mount
from ai.backend.plugin.accelerator import DeviceMapping, Mount
from ai.backend.plugin.runtime import HOME
from ai.backend.runtime.process.supervisor import launch

PROGRAMS_FOLDER = "/opt/backend.ai/bin"
"""The last folder on PATH, which has ``python`` for hosts that have only a ``python3``, as Debian."""
INNER_UID = 1000
FIRST_PROCESS_FOLDER = "/proc/1"
BECOME_USER_SCRIPT = (
    "import os, sys; uid, gid, groups = (sys.argv[1:4]);"
    "os.setgroups([int(group) for group in groups.split(',') if group]);"
    "os.setresgid(*[int(gid)] * 3); os.setresuid(*[int(uid)] * 3);"
    f"os.chdir({HOME!r}); os.execv(sys.argv[4], sys.argv[4:])"
)
"""The first program in a sandbox of root's without a user namespace. Its change of user drops the last capabilities."""
SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
RESOLV_CONF_NAME = "resolv.conf"
SHOWN_ETC_NAMES = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "fonts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "OpenCL",
    "pki",
    "protocols",
    RESOLV_CONF_NAME,
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vulkan",
)
SHOWN_SYSFS_FOLDERS = ("/sys/devices/system",)
DEVICE_SYSFS_FOLDERS = ("/sys/bus", "/sys/class", "/sys/dev", "/sys/devices")
"""Folders of sysfs that sessions with a device node see: libraries of vendors read the topology there."""
StagedSource = dict[str, Any]
"""A source that is bound in the stage: ``source``, ``name`` there, ``bind`` as bubblewrap's option; ``place`` is None,
or, for a target below that of another source, the name of the other and the path in it. Instead of a source,
``contents`` are files by name, each byte a character, of a folder that is made there."""


def etc_stand_ins(uid: int, gid: int) -> dict[str, str]:
    """Returns the contents of a session's own /etc/passwd, /etc/group and /etc/hosts, by file name.

    They replace the host's files.
    """
    return {
        "passwd": f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nwork:x:{uid}:{gid}:work:{HOME}:/bin/bash\n",
        "group": f"root:x:0:\nwork:x:{gid}:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    }


@dataclass(slots=True)
class SandboxView(ABC):
    """Collects the mounts, links and folders of a sandbox in order. Later mounts cover earlier mounts.

    A target below a staged directory is mounted in the stage: who mounts later follows the links that sessions leave
    there.
    """

    is_staged: bool
    staged_sources: list[StagedSource] = field(default_factory=list)
    _staged_targets: dict[str, str] = field(default_factory=dict)

    @abstractmethod
    def mount(self, bind_option: str, source: str, target: str) -> None:
        """Mounts a source of the host or of the stage at a target, with an option of bubblewrap."""

    @abstractmethod
    def link(self, target: str, link_path: str) -> None:
        """Adds a symbolic link at ``link_path``."""

    @abstractmethod
    def add_folder(self, path: str) -> None:
        """Adds an empty folder to the sandbox's root."""

    @abstractmethod
    def add_memory(self, path: str, size_bytes: int) -> None:
        """Adds an empty folder in memory, in which everybody may make files."""

    @abstractmethod
    def show_system(self, *, has_devices: bool) -> None:
        """Adds /proc, /dev and the part of /sys that is not private to the host."""

    def bind(self, source: str | Path, target: str, bind_option: str = "--ro-bind") -> None:
        outer_target = next((path for path in self._staged_targets if target.startswith(path + "/")), None)
        if outer_target is not None:
            path_below = target.removeprefix(outer_target + "/")
            self._stage(str(source), bind_option, [self._staged_targets[outer_target], path_below])
            return
        self.mount(bind_option, self._reachable_path(str(source), target, bind_option), target)

    def show_contents(self, folder: str, contents: Mapping[str, bytes]) -> None:
        """Adds a read-only folder whose files have the given contents; the shim writes them in the stage."""
        stage_name = self._staged_targets[folder] = self._stage("", "--ro-bind", None)
        self.staged_sources[-1]["contents"] = {name: content.decode("latin-1") for name, content in contents.items()}
        self.mount("--ro-bind", f"{launch.STAGE_FOLDER}/{stage_name}", folder)

    def _reachable_path(self, source: str, target: str, bind_option: str) -> str:
        if not self.is_staged or source in SYSTEM_DIRECTORIES or _is_public(source):
            return source
        stage_name = self._staged_targets[target] = self._stage(source, bind_option, None)
        return f"{launch.STAGE_FOLDER}/{stage_name}"

    def _stage(self, source: str, bind_option: str, name_and_path: list[str] | None) -> str:
        stage_name = str(len(self.staged_sources))
        self.staged_sources.append({"source": source, "name": stage_name, "bind": bind_option, "place": name_and_path})
        return stage_name


@dataclass(slots=True)
class BubblewrapArguments(SandboxView):
    """Collects the arguments of bubblewrap."""

    opens_parents: bool = False
    arguments: list[str] = field(default_factory=list)

    def add(self, *arguments: str) -> None:
        self.arguments += arguments

    def mount(self, bind_option: str, source: str, target: str) -> None:
        if self.opens_parents:
            self._open_parents(target)
        self.add(bind_option, source, target)

    def link(self, target: str, link_path: str) -> None:
        if self.opens_parents:
            self._open_parents(link_path)
        self.add("--symlink", target, link_path)

    def add_folder(self, path: str) -> None:
        self.add("--dir", path)

    def add_memory(self, path: str, size_bytes: int) -> None:
        self.add("--size", str(size_bytes), "--perms", "1777", "--tmpfs", path)

    def show_system(self, *, has_devices: bool) -> None:
        """Adds /proc, the visible part of /sys, and a /dev: the prepared one of the stage, or else bubblewrap's own.

        The /dev of the stage has the mounted devices too.
        """
        self.add("--proc", "/proc")
        if self.is_staged:
            self.add("--dev-bind", launch.DEVICE_FOLDER, "/dev")
            self._staged_targets["/dev"] = os.path.basename(launch.DEVICE_FOLDER)  # noqa: PTH119  # its name there
        else:
            self.add("--dev", "/dev")
        # bubblewrap's first process is the session user's, without a filter: who writes its memory has none either.
        self.add(
            "--size", "4096", "--perms", "0555", "--tmpfs", FIRST_PROCESS_FOLDER, "--remount-ro", FIRST_PROCESS_FOLDER
        )
        for sysfs_folder in DEVICE_SYSFS_FOLDERS if has_devices else SHOWN_SYSFS_FOLDERS:
            if os.path.isdir(sysfs_folder):  # noqa: PTH112  # as the neighbours
                self.add("--ro-bind", sysfs_folder, sysfs_folder)

    def _open_parents(self, target: str) -> None:
        """Creates the parent folders of a mount point with access for all users; bubblewrap would make them closed."""
        for parent in reversed(Path(target).parents[:-1]):
            if str(parent) not in self.arguments and not str(parent).startswith(SYSTEM_DIRECTORIES):
                self.add("--perms", "0755", "--dir", str(parent))


def _is_public(source: str) -> bool:
    """Returns True if the session's user can reach the source path, so that no staging is needed."""
    if source.startswith("/usr/"):
        return True
    if not source.startswith("/etc/") or os.path.normpath(source) != source:
        return False
    try:
        path_modes = [path.lstat().st_mode for path in (Path(source), *Path(source).parents)]
    except OSError:
        return False
    return not stat.S_ISLNK(path_modes[0]) and all(
        stat.S_ISDIR(mode) and mode & stat.S_IXOTH for mode in path_modes[1:]
    )


class HostPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the paths of the host that the sandbox of a session shows.

    ``static_folder`` has our own passwd, group and hosts.

    ``folders`` are made in the stage, with the contents of their files by name.
    ``etc_folder`` is all of /etc, but for the resolver's file (:mod:`etc_folder`); None to bind each entry by itself.
    """

    bwrap: str
    home: Path
    runner: Path
    static_folder: Path
    etc_folder: Path | None
    prefixes: Sequence[str]
    rootfs: Path | None
    python: str | None
    mounts: Sequence[Mount]
    devices: Sequence[DeviceMapping]
    files: Mapping[str, Path]
    folders: Mapping[str, Mapping[str, bytes]]
    hostname: str
    tmp_bytes: int
    shmem_bytes: int
    has_private_network: bool
    has_seccomp: bool
    has_block_fd: bool
    is_staged: bool
    in_user_namespace: bool
    ipc: str | None = None
    """The folder that is ``/dev/shm``; None: one of its own."""


def identity_arguments(*, in_user_namespace: bool) -> list[str]:
    """Returns bubblewrap's arguments that drop the privileges of a session's programs.

    In a user namespace they drop all privileges; otherwise a script drops the rest.
    """
    if in_user_namespace:
        return ["--unshare-user", "--uid", str(INNER_UID), "--gid", str(INNER_UID), "--cap-drop", "ALL"]
    return ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def compose(host_paths: HostPaths, command: Sequence[str]) -> tuple[list[str], list[StagedSource]]:
    """Returns bubblewrap's command line, and the sources that the shim must stage. Raises CreationDenied."""
    bubblewrap_arguments = BubblewrapArguments(
        is_staged=host_paths.is_staged, opens_parents=not host_paths.in_user_namespace
    )
    bubblewrap_arguments.add(host_paths.bwrap, *identity_arguments(in_user_namespace=host_paths.in_user_namespace))
    bubblewrap_arguments.add(
        "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", host_paths.hostname
    )
    bubblewrap_arguments.add("--die-with-parent", "--new-session")
    if host_paths.has_private_network:
        bubblewrap_arguments.add("--unshare-net")
    if host_paths.has_seccomp:
        bubblewrap_arguments.add("--seccomp", str(launch.SECCOMP_FD))
    if host_paths.has_block_fd:
        bubblewrap_arguments.add("--info-fd", str(launch.INFO_FD), "--block-fd", str(launch.BLOCK_FD))
    show_session(bubblewrap_arguments, host_paths)
    # Root without its capabilities may not enter a home that is closed to it.
    bubblewrap_arguments.add(
        "--remount-ro", "/", "--chdir", HOME if host_paths.in_user_namespace else "/", "--", *command
    )
    return bubblewrap_arguments.arguments, bubblewrap_arguments.staged_sources


def show_session(view: SandboxView, host_paths: HostPaths) -> None:
    """Adds a session's files and mounts to a view, for bubblewrap and gVisor alike. Raises CreationDenied."""
    if host_paths.rootfs is None:
        _show_host(view, host_paths)
    else:
        _show_rootfs(view, host_paths.rootfs)
    view.show_system(has_devices=bool(host_paths.devices))
    if host_paths.ipc is None:
        view.add_memory("/dev/shm", host_paths.shmem_bytes)
    else:
        check_ipc(host_paths.ipc)
        view.bind(host_paths.ipc, "/dev/shm", "--bind")
    view.add_memory("/tmp", host_paths.tmp_bytes)
    view.add_memory("/var/tmp", host_paths.tmp_bytes)
    view.bind(host_paths.home, HOME, "--bind")
    view.bind(host_paths.runner, RUNNER)
    if host_paths.rootfs is not None and not (host_paths.rootfs / "opt" / "kernel").exists():
        view.link(f"{RUNNER}/su-exec", SU_EXEC)
    if host_paths.python is not None:
        view.link(host_paths.python, f"{PROGRAMS_FOLDER}/python")
    for folder, contents in host_paths.folders.items():
        view.show_contents(folder, contents)
    for mount in sorted(host_paths.mounts, key=lambda mount: mount.target.split("/")):  # outer before inner targets
        check_mount(mount, is_staged=view.is_staged)
        if not view.is_staged:
            _check_unstaged_mount(mount, host_paths)
        view.bind(mount.source, mount.target, "--ro-bind" if mount.read_only else "--bind")
    for device in host_paths.devices:
        view.bind(device.source, device.target or device.source, "--dev-bind")
    for target, source in host_paths.files.items():
        view.bind(source, target)


def _check_unstaged_mount(mount: Mount, host_paths: HostPaths) -> None:
    """Raises CreationDenied for a mount that is unsafe without staging.

    Its target lies in another mount, or behind a link that the session may have made.
    """
    target_and_parents = [mount.target, *(str(parent) for parent in Path(mount.target).parents)]
    home_paths = [
        host_paths.home / path.removeprefix(HOME + "/") for path in target_and_parents if path.startswith(HOME + "/")
    ]
    if any(other_mount.target in target_and_parents[1:] for other_mount in host_paths.mounts) or any(
        path.is_symlink() for path in home_paths
    ):
        message = f"the mount target {mount.target!r} lies in another mount or behind a link"
        raise CreationDenied(message, data={"field": "mounts", "key": mount.target})


def _show_host(view: SandboxView, host_paths: HostPaths) -> None:
    for directory in SYSTEM_DIRECTORIES:
        host_path = Path(directory)
        if host_path.is_symlink():
            view.link(str(host_path.readlink()), directory)
        elif host_path.is_dir():
            view.bind(host_path, directory)
    if host_paths.etc_folder is not None:
        view.bind(host_paths.etc_folder, "/etc")
    for etc_name in SHOWN_ETC_NAMES if host_paths.etc_folder is None else (RESOLV_CONF_NAME,):
        host_path = Path("/etc", etc_name)
        if host_path.exists():
            view.bind(host_path.resolve() if host_path.is_file() else host_path, str(host_path))
    for etc_name in ("passwd", "group", "hosts") if host_paths.etc_folder is None else ():
        view.bind(host_paths.static_folder / etc_name, f"/etc/{etc_name}")
    for prefix in host_paths.prefixes:
        view.bind(prefix, prefix)


def _show_rootfs(view: SandboxView, rootfs: Path) -> None:
    """Binds the entries of an image's root on an empty root, so that mount points can be made beside the entries."""
    for entry_path in sorted(rootfs.iterdir()):
        target = f"/{entry_path.name}"
        if entry_path.is_symlink():
            view.link(str(entry_path.readlink()), target)
        elif entry_path.name in {"proc", "dev", "sys", "tmp", "home", "root", "run"}:
            view.add_folder(target)
        elif entry_path.name in {"opt", "var", "mnt"} and entry_path.is_dir():
            view.add_folder(target)
            for child in sorted(entry_path.iterdir()):
                if child.is_symlink():
                    view.link(str(child.readlink()), f"{target}/{child.name}")
                elif str(child).endswith("/var/tmp"):
                    continue
                else:
                    view.bind(child, f"{target}/{child.name}")
        else:
            view.bind(entry_path, target)
