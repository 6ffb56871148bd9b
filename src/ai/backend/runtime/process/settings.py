"""Settings of the process runtime, the ``[process-runtime]`` part of the agent's settings."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from pydantic import Field

from ai.backend.plugin.settings import Settings

MIB = 1024 * 1024
GIB = 1024 * MIB


class ProcessRuntimeSettings(Settings):
    """Every field has a default that suits a laptop and a server alike."""

    sandbox: Literal["auto", "off"] = Field("auto", description="Use bubblewrap where it works.")
    user_namespaces: Literal["auto", "off"] = Field(
        "auto",
        description="Where the host forbids them to ordinary users, root's sandbox changes its user inside instead.",
    )
    cgroups: Literal["auto", "off"] = Field("auto", description="Use control groups where they are writable.")
    seccomp: Literal["auto", "off"] = Field("auto", description="Filter system calls by the published allow-list.")
    network: Literal["host", "none"] = Field(
        "host",
        description="'host': the session shares the host's network; 'none': it has a loopback of its own only.",
    )
    session_networks: IPv4Network = Field(
        IPv4Network("10.213.0.0/16"),
        description="Addresses in the private networks of cluster sessions, the same in each: no network sees another.",
    )
    kernel_uid: int = Field(
        59500, ge=1, le=2**31 - 2, description="Host user id of all sessions where the agent runs as root; never 0."
    )
    kernel_gid: int = Field(59500, ge=1, le=2**31 - 2, description="Host group id likewise.")
    cgroup_parent: str = Field(
        "backendai", pattern=r"^[A-Za-z0-9_.-]+$", description="Control group above those of the workloads."
    )
    cgroup_root: Path = Field(Path("/sys/fs/cgroup"), description="Where the control group file systems are mounted.")
    default_pids: int = Field(1024, ge=16, description="Processes and threads of a workload that asks for no limit.")
    tmp_bytes: int = Field(1 * GIB, ge=MIB, description="Size of the private /tmp, which is memory.")
    shmem_bytes: int = Field(64 * MIB, ge=MIB, description="Size of /dev/shm where the workload asks for none.")
    home_bytes: int | None = Field(None, ge=MIB, description="Size of a home where the workload asks for none.")
    reserved_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="Disk space kept for the platform: when less is left, the session with the largest home is ended.",
    )
    open_files: int = Field(65536, ge=256, description="Open files of one process.")
    log_bytes: int = Field(10 * MIB, ge=8192, description="Session log kept for a workload.")
    replay_bytes: int = Field(8 * MIB, ge=65536, description="Unacknowledged runner messages kept for the agent.")
    watch_interval_s: float = Field(
        5.0, ge=1.0, description="How often watched limits and lost shims are looked after."
    )
    start_timeout_s: float = Field(30.0, gt=0, description="How long a workload's processes may take to appear.")
    interpreters: tuple[Path, ...] = Field(
        (), description="Python interpreters offered as host images besides the usual."
    )
    host_directories: tuple[Path, ...] = Field(
        (), description="Host directories shown read-only at the same place in every session on a host image."
    )
    images_directory: Path | None = Field(
        None, description="Where rootfs images are; default: images/ in the data directory."
    )
    runner_directory: Path | None = Field(None, description="The runner's files; default: the installed ones.")
