"""Determines what this host can enforce, by creating a temporary sandbox and a temporary control group.

Tiers (docs/reference/process-runtime-tiers):
    sealed  bubblewrap and control groups for cpu, memory and processes
    caged   bubblewrap; limits are watched, or kept by resource limits
    fenced  control groups for cpu, memory and processes, no bubblewrap
    bare    neither
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from ai.backend.common.states import Enforcement
from ai.backend.node.linux import cgroupfs, seccomp
from ai.backend.node.linux.cgroups import CgroupDriver, Limits, NoCgroups
from ai.backend.node.linux.mountinfo import parse_mountinfo
from ai.backend.node.workload import runner_files
from ai.backend.plugin.runtime import HOME
from ai.backend.runtime.process import sandbox
from ai.backend.runtime.process.cgroup_probe import find_driver, find_hierarchies, parse_own
from ai.backend.runtime.process.launch_plan import Host
from ai.backend.runtime.process.networks import why_none, why_none_over_nodes
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.runtime.settings import MIB

log = logging.getLogger(__name__)
PROBE_TIMEOUT_S = 10.0
_PROBE_LIMITS = Limits(cpu=1.0, memory_bytes=64 * MIB, pids=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The tier, the enforcement of each limit, and the reasons for what is missing."""

    tier: str
    enforcement: Mapping[str, Enforcement]
    host: Host
    capabilities: frozenset[str] = frozenset()
    no_session_networks: str = ""
    no_multi_node_networks: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Notes:
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        self.lines.append(line)
        log.info("process runtime: %s", line)


def probe(settings: ProcessRuntimeSettings, state: Path) -> ProbeResult:
    """Blocks for some tens of milliseconds."""
    notes = _Notes()
    is_root = os.geteuid() == 0
    cgroups = _probe_cgroups(settings, state, notes)
    filtered = settings.seccomp == "auto" and _has_seccomp()
    bwrap, user_namespace = _find_sandbox(settings, is_root, filtered, notes)
    if bwrap is None and filtered and not seccomp.is_supported():
        filtered = False
    late = False
    if bwrap is not None and user_namespace and "pids" not in cgroups.controllers:
        late = _probe_late_nproc(bwrap, settings, is_root)
    inner = (sandbox.INNER_UID, sandbox.INNER_UID) if user_namespace else (settings.kernel_uid, settings.kernel_gid)
    host = Host(
        bwrap=bwrap,
        cgroups=cgroups,
        seccomp=filtered,
        late_nproc=late,
        runner=settings.runner_directory or _runner(state, is_copied=bwrap is not None),
        static=_write_static(state, *inner),
        is_root=is_root,
        user_namespace=user_namespace,
        binds_home=is_root and bwrap is None and Path(HOME).parent.is_dir(),
    )
    no_networks = why_none(state, has_sandbox=bwrap is not None)
    no_overlays = why_none_over_nodes(state, no_networks=no_networks)
    for reason in dict.fromkeys(filter(None, (no_networks, no_overlays))):
        notes.add(reason)
    capabilities = {"session-networks": not no_networks, "multi-node-networks": not no_overlays}
    return ProbeResult(
        tier=tier_of(bwrap is not None, cgroups.controllers),
        enforcement={
            **enforcement_of(host, settings),
            **{name: Enforcement.ENFORCED if there else Enforcement.NONE for name, there in capabilities.items()},
        },
        host=host,
        capabilities=capabilities_of(host) | {name for name, there in capabilities.items() if there},
        no_session_networks=no_networks,
        no_multi_node_networks=no_overlays,
        notes=tuple(notes.lines),
    )


def tier_of(has_sandbox: bool, controllers: frozenset[str]) -> str:
    """Returns the documented name of what this host offers."""
    limited = {"cpu", "memory", "pids"} <= controllers
    if has_sandbox:
        return "sealed" if limited else "caged"
    return "fenced" if limited else "bare"


def capabilities_of(host: Host) -> frozenset[str]:
    found = {"exec", "files", "pty", "logs", "keep-home", "host-pids", "survives-agent", "ports"}
    if host.bwrap:
        found |= {"mounts", "rootfs-images", "isolated-filesystem"}
    if host.is_root:
        found.add("extra-gids")
    return frozenset(found)


def enforcement_of(host: Host, settings: ProcessRuntimeSettings) -> dict[str, Enforcement]:
    """Returns the enforcement of each limit and each kind of isolation."""
    enforced, watched, none = Enforcement.ENFORCED, Enforcement.WATCHED, Enforcement.NONE
    controllers = host.cgroups.controllers
    caged = host.bwrap is not None
    has_process_limit = "pids" in controllers or host.late_nproc
    return {
        "cpu": enforced if "cpu" in controllers else watched,
        "memory": enforced if "memory" in controllers else watched,
        "pids": enforced if has_process_limit else watched,
        "cpuset": enforced if "cpuset" in controllers else none,
        "devices": enforced if caged or "devices" in controllers else none,
        "filesystem": enforced if caged else none,
        "pid-namespace": enforced if caged else none,
        "network": enforced if caged and settings.network == "none" else none,
        "seccomp": enforced if host.seccomp else none,
        "home-size": watched,
    }


def _has_seccomp() -> bool:
    return seccomp.is_supported() and "\nSeccomp:" in cgroupfs.read("/proc/self/status")


def _runner(state: Path, *, is_copied: bool) -> Path:
    """Without mounts a session has no way into our state directory: it sees the runner where it is installed."""
    source = runner_files.find_runner()
    if not is_copied:
        return source
    try:
        return runner_files.copy_runner(source, state)
    except OSError as error:
        log.warning("the runner is not copied: %s", error)
        return source


def _write_static(state: Path, uid: int, gid: int) -> Path:
    """The stand-ins for host files; open to the session's user, nothing secret in them."""
    static = state / "static"
    static.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, content in sandbox.stand_ins(uid, gid).items():
        path = static / name
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
        path.chmod(0o644)
    return static


def _probe_cgroups(settings: ProcessRuntimeSettings, state: Path, notes: _Notes) -> CgroupDriver:
    if settings.cgroups == "off":
        notes.add("control groups are off by settings")
        return NoCgroups()
    instance = sha256(str(state).encode()).hexdigest()[:12]
    mounts = find_hierarchies(parse_mountinfo(cgroupfs.read("/proc/self/mountinfo")), settings.cgroup_root)
    driver = find_driver(mounts, parse_own(cgroupfs.read("/proc/self/cgroup")), settings.cgroup_parent, instance)
    if isinstance(driver, NoCgroups):
        notes.add("no control group hierarchy is writable")
        return driver
    failure = _try_group(driver)
    if failure:
        driver.let_go()
        notes.add(f"control groups do not work: {failure}")
        return NoCgroups()
    return driver


def _try_group(driver: CgroupDriver) -> str:
    """Puts a process into a group; return why it failed."""
    groups = [dict(group) for group in driver.groups(f"probe-{os.getpid()}", _PROBE_LIMITS)]
    try:
        cgroupfs.build(groups)
        with subprocess.Popen(["/bin/sh", "-c", "read x"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
            for group in groups:
                cgroupfs.write(f"{group['path']}/cgroup.procs", str(child.pid))
            found = cgroupfs.members(groups)
            if child.pid not in found:
                return "a process did not arrive in its group"
    except OSError as error:
        return str(error)
    finally:
        cgroupfs.remove(groups)
    return ""


def _as_kernel_user(settings: ProcessRuntimeSettings, is_root: bool) -> dict[str, object]:
    if not is_root:
        return {}
    return {"user": settings.kernel_uid, "group": settings.kernel_gid, "extra_groups": []}


def _probe_command(bwrap: str, *more: str, user_namespace: bool = True) -> list[str]:
    command = [bwrap, *sandbox.identity_arguments(user_namespace=user_namespace), "--unshare-pid", "--unshare-ipc"]
    command += ["--unshare-uts", "--hostname", "probe", "--die-with-parent", "--new-session", *more]
    for directory in sandbox.SYSTEM_DIRECTORIES:
        path = Path(directory)
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), directory]
        elif path.is_dir():
            command += ["--ro-bind", directory, directory]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", "1048576", "--perms", "1777", "--tmpfs", "/tmp"]
    return [*command, "--remount-ro", "/", "--", "/bin/sh", "-c"]


def _find_sandbox(
    settings: ProcessRuntimeSettings, is_root: bool, filtered: bool, notes: _Notes
) -> tuple[str | None, bool]:
    """bubblewrap's path, if it works, and whether in a user namespace."""
    if settings.sandbox == "off":
        notes.add("the sandbox is off by settings")
        return None, True
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        notes.add("bubblewrap is not installed")
        return None, True
    for user_namespace in (True, False):
        if user_namespace and settings.user_namespaces == "off":
            continue
        if not user_namespace and not is_root:
            break
        if _try_bwrap(os.path.realpath(bwrap), settings, filtered, notes, user_namespace=user_namespace):
            return os.path.realpath(bwrap), user_namespace
    return None, True


def _try_bwrap(
    bwrap: str, settings: ProcessRuntimeSettings, filtered: bool, notes: _Notes, *, user_namespace: bool
) -> bool:
    read, write = os.pipe()
    try:
        more: tuple[str, ...] = ()
        if filtered:
            os.write(write, seccomp.compile_policy())
            more = ("--seccomp", str(read))
        if settings.network == "none":
            more += ("--unshare-net",)
        os.close(write)
        done = subprocess.run(  # type: ignore[call-overload]  # the keywords for the identity come as one mapping
            [*_probe_command(bwrap, *more, user_namespace=user_namespace), "test $$ -le 3"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=(read,),
            timeout=PROBE_TIMEOUT_S,
            cwd="/",
            check=False,
            **_as_kernel_user(settings, os.geteuid() == 0 and user_namespace),
        )
    except (OSError, subprocess.SubprocessError) as error:
        notes.add(f"bubblewrap does not work: {error}")
        return False
    finally:
        os.close(read)
    if done.returncode:
        notes.add(f"bubblewrap does not work: {done.stderr.decode(errors='replace').strip()[:300]}")
    return bool(done.returncode == 0)


def _probe_late_nproc(bwrap: str, settings: ProcessRuntimeSettings, is_root: bool) -> bool:
    """Returns True if a limit on processes can be set from outside on a waiting sandbox, and holds inside."""
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        return False
    identity = _as_kernel_user(settings, is_root)
    info_read, info_write = os.pipe()
    block_read, block_write = os.pipe()
    flags = ("--info-fd", str(info_write), "--block-fd", str(block_read))
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2 & done; wait"
    child: subprocess.Popen[bytes] | None = None
    try:
        child = subprocess.Popen(  # type: ignore[call-overload]  # as above
            [*_probe_command(bwrap, *flags), script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(info_write, block_read),
            cwd="/",
            **identity,
        )
        os.close(info_write)
        info_write = -1
        inner = json.loads(_read_all(lambda: os.read(info_read, 4096)))["child-pid"]
        subprocess.run(  # type: ignore[call-overload]  # as above
            [prlimit, "--pid", str(inner), "--nproc=6:6"], check=True, capture_output=True, **identity
        )
        os.write(block_write, b"1")
        return child is not None and child.wait(timeout=PROBE_TIMEOUT_S) != 0
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        log.info("process runtime: no limit on processes in a sandbox: %s", error)
        return False
    finally:
        if child is not None:
            child.kill()
            child.wait()
        for fd in (info_read, info_write, block_read, block_write):
            if fd >= 0:
                os.close(fd)


def _read_all(read: Callable[[], bytes]) -> bytes:
    data = b""
    while chunk := read():
        data += chunk
        if data.rstrip().endswith(b"}"):
            break
    return data
