"""Builds the arguments of bubblewrap and the files that replace the host's in a session.

A host image shows the system's programs read-only and of /etc only what programs need to run; never /root, /home, /var,
/etc/shadow, /run or anything of ours. Sources below a directory closed to the session's user are staged first.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ai.backend.node.linux.open_beneath import BENEATH
from ai.backend.node.workload.mounts import RUNNER, check_mount
from ai.backend.plugin.accelerator import DeviceMapping, Mount
from ai.backend.plugin.runtime import HOME
from ai.backend.runtime.process.supervisor import launch

PROGRAMS = "/opt/backend.ai/bin"
"""Last on PATH: ``python`` for hosts that have only a ``python3``, as Debian."""
INNER_UID = 1000
FIRST_PROCESS = "/proc/1"
BECOME_USER = (
    "import os, sys; uid, gid, groups = (sys.argv[1:4]);"
    "os.setgroups([int(group) for group in groups.split(',') if group]);"
    "os.setresgid(*[int(gid)] * 3); os.setresuid(*[int(uid)] * 3);"
    f"os.chdir({HOME!r}); os.execv(sys.argv[4], sys.argv[4:])"
)
"""What a sandbox of root's without a user namespace runs first. The change of user takes the last capabilities away."""
SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
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
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vulkan",
)
SYSFS = ("/sys/devices/system",)
DEVICE_SYSFS = ("/sys/bus", "/sys/class", "/sys/dev", "/sys/devices")
"""What of sysfs a session with a device node sees: there its vendor's library finds devices and their topology."""


def stand_ins(uid: int, gid: int) -> dict[str, str]:
    """The session's own /etc/passwd, /etc/group and /etc/hosts."""
    return {
        "passwd": f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nwork:x:{uid}:{gid}:work:{HOME}:/bin/bash\n",
        "group": f"root:x:0:\nwork:x:{gid}:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    }


@dataclass(slots=True)
class View:
    """Collects bubblewrap's arguments. ``arguments`` come in order; later ones cover earlier ones."""

    staged: bool
    opens_parents: bool = False
    arguments: list[str] = field(default_factory=list)
    stage: list[list[str]] = field(default_factory=list)

    def add(self, *arguments: str) -> None:
        self.arguments += arguments

    def bind(self, source: str | Path, target: str, how: str = "--ro-bind") -> None:
        if self.opens_parents:
            self._open_parents(target)
        self.add(how, self._reachable(str(source)), target)

    def link(self, target: str, name: str) -> None:
        if self.opens_parents:
            self._open_parents(name)
        self.add("--symlink", target, name)

    def _open_parents(self, target: str) -> None:
        """bubblewrap closes the parents that it makes for a closed source; they are root's, so open them."""
        for above in reversed(Path(target).parents[:-1]):
            if str(above) not in self.arguments and not str(above).startswith(SYSTEM_DIRECTORIES):
                self.add("--perms", "0755", "--dir", str(above))

    def _reachable(self, source: str) -> str:
        if BENEATH not in source and (not self.staged or source in SYSTEM_DIRECTORIES or _is_public(source)):
            return source
        name = str(len(self.stage))
        self.stage.append([source, name])
        return f"{launch.STAGE}/{name}"


def _is_public(source: str) -> bool:
    """Returns True if the session's user can reach the source too, so that it need not be staged, which takes time."""
    if source.startswith("/usr/"):
        return True
    if not source.startswith("/etc/") or os.path.normpath(source) != source:
        return False
    try:
        modes = [path.lstat().st_mode for path in (Path(source), *Path(source).parents)]
    except OSError:
        return False
    return not stat.S_ISLNK(modes[0]) and all(stat.S_ISDIR(mode) and mode & stat.S_IXOTH for mode in modes[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """Describes what a sandbox shows. ``static`` has our own passwd, group and hosts."""

    bwrap: str
    home: Path
    runner: Path
    static: Path
    prefixes: Sequence[str]
    rootfs: Path | None
    python: str | None
    mounts: Sequence[Mount]
    devices: Sequence[DeviceMapping]
    files: Mapping[str, Path]
    hostname: str
    tmp_bytes: int
    shmem_bytes: int
    private_network: bool
    has_seccomp: bool
    has_block: bool
    staged: bool
    user_namespace: bool


def identity_arguments(*, user_namespace: bool) -> list[str]:
    """How the sandbox drops its powers: at once in a user namespace, else inside by ``BECOME_USER``."""
    if user_namespace:
        return ["--unshare-user", "--uid", str(INNER_UID), "--gid", str(INNER_UID), "--cap-drop", "ALL"]
    return ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def compose(scene: HostPaths, command: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """bubblewrap's command line, and what to stage. Raises CreationDenied for an impossible mount."""
    view = View(staged=scene.staged, opens_parents=not scene.user_namespace)
    view.add(scene.bwrap, *identity_arguments(user_namespace=scene.user_namespace))
    view.add("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", scene.hostname)
    view.add("--die-with-parent", "--new-session")
    if scene.private_network:
        view.add("--unshare-net")
    if scene.has_seccomp:
        view.add("--seccomp", str(launch.SECCOMP_FD))
    if scene.has_block:
        view.add("--info-fd", str(launch.INFO_FD), "--block-fd", str(launch.BLOCK_FD))
    if scene.rootfs is None:
        _show_host(view, scene)
    else:
        _show_rootfs(view, scene.rootfs)
    view.add("--proc", "/proc", "--dev", "/dev")
    # bubblewrap's first process belongs to the session's user and has no filter: who writes its memory has none either.
    view.add("--size", "4096", "--perms", "0555", "--tmpfs", FIRST_PROCESS, "--remount-ro", FIRST_PROCESS)
    view.add("--size", str(scene.shmem_bytes), "--perms", "1777", "--tmpfs", "/dev/shm")
    view.add("--size", str(scene.tmp_bytes), "--perms", "1777", "--tmpfs", "/tmp")
    view.add("--size", str(scene.tmp_bytes), "--perms", "1777", "--tmpfs", "/var/tmp")
    for tree in DEVICE_SYSFS if scene.devices else SYSFS:
        if os.path.isdir(tree):  # noqa: PTH112  # as the neighbours
            view.add("--ro-bind", tree, tree)
    view.bind(scene.home, HOME, "--bind")
    view.bind(scene.runner, RUNNER)
    if scene.python is not None:
        view.link(scene.python, f"{PROGRAMS}/python")
    for mount in scene.mounts:
        _show_mount(view, mount)
    for device in scene.devices:
        _show_device(view, device)
    for target, source in scene.files.items():
        view.bind(source, target)
    # Root without its capabilities may not enter a home that is closed to it.
    view.add("--remount-ro", "/", "--chdir", HOME if scene.user_namespace else "/", "--", *command)
    return view.arguments, view.stage


def _show_host(view: View, scene: HostPaths) -> None:
    for directory in SYSTEM_DIRECTORIES:
        path = Path(directory)
        if path.is_symlink():
            view.add("--symlink", str(path.readlink()), directory)
        elif path.is_dir():
            view.bind(path, directory)
    for name in ETC:
        path = Path("/etc", name)
        if path.exists():
            view.bind(path.resolve() if path.is_file() else path, str(path))
    for name in ("passwd", "group", "hosts"):
        view.bind(scene.static / name, f"/etc/{name}")
    for prefix in scene.prefixes:
        view.bind(prefix, prefix)


def _show_rootfs(view: View, rootfs: Path) -> None:
    """Entry by entry on an empty root, so that mount points can be made beside them."""
    for path in sorted(rootfs.iterdir()):
        target = f"/{path.name}"
        if path.is_symlink():
            view.add("--symlink", str(path.readlink()), target)
        elif path.name in {"proc", "dev", "sys", "tmp", "home", "root", "run"}:
            view.add("--dir", target)
        elif path.name in {"opt", "var", "mnt"} and path.is_dir():
            view.add("--dir", target)
            for child in sorted(path.iterdir()):
                if child.is_symlink():
                    view.add("--symlink", str(child.readlink()), f"{target}/{child.name}")
                elif str(child).endswith("/var/tmp"):
                    continue
                else:
                    view.bind(child, f"{target}/{child.name}")
        else:
            view.bind(path, target)


def _show_mount(view: View, mount: Mount) -> None:
    check_mount(mount, staged=view.staged)
    view.bind(mount.source, mount.target, "--ro-bind" if mount.read_only else "--bind")


def _show_device(view: View, device: DeviceMapping) -> None:
    view.bind(device.source, device.target or device.source, "--dev-bind")
