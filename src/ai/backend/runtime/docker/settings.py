"""Settings of the Docker runtime, the ``[runtime]`` part of the agent's settings where ``runtime = "docker"``."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from pydantic import Field

from ai.backend.plugin.settings import Settings

MIB = 1024 * 1024
GIB = 1024 * MIB


class DockerRuntimeSettings(Settings):
    """Every field has a default that suits a laptop and a server alike."""

    docker_host: str | None = Field(
        None, description="The engine's address, `unix:///...`; default: DOCKER_HOST, then the usual socket."
    )
    network: str = Field(
        "auto",
        description="Network of a session that no plugin gives one: `none` (a loopback of its own), `bridge`, `host`"
        " or a network's name. `auto` is `bridge` where the engine has it, else `none`.",
    )
    session_networks: IPv4Network = Field(
        IPv4Network("10.213.0.0/16"),
        description="Addresses for the private networks of cluster sessions; each gets a part of it that nobody uses.",
    )
    stats_type: Literal["cgroup", "docker"] = Field(
        "cgroup", description="Where statistics come from: control group files, or the engine's API (slow)."
    )
    root_filesystem: Literal["read-only", "writable"] = Field(
        "read-only",
        description="Whether a session may write in the image's world-writable folders besides its home and /tmp."
        " What it writes there counts as its home.",
    )
    seccomp: Literal["auto", "engine"] = Field(
        "auto", description="Filter system calls by the published allow-list, or as the engine does by default."
    )
    kernel_uid: int = Field(
        59500, ge=1, le=2**31 - 2, description="User id of all sessions where the agent runs as root; never 0."
    )
    kernel_gid: int = Field(59500, ge=1, le=2**31 - 2, description="Group id likewise.")
    cgroup_root: Path = Field(Path("/sys/fs/cgroup"), description="Where the control group file systems are mounted.")
    cgroup_parent: str = Field("", description="Control group above the containers'; default: the engine's.")
    default_pids: int = Field(1024, ge=16, description="Processes and threads of a workload that asks for no limit.")
    tmp_bytes: int = Field(1 * GIB, ge=MIB, description="Size of the private /tmp, which is memory.")
    shmem_bytes: int = Field(64 * MIB, ge=MIB, description="Size of /dev/shm where the workload asks for none.")
    home_bytes: int | None = Field(None, ge=MIB, description="Size of a home where the workload asks for none.")
    reserved_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="Disk space kept for the platform: when less is left, the session with the largest home is ended.",
    )
    open_files: int | None = Field(None, ge=256, description="Open files of one process; default: the engine's.")
    locked_memory_bytes: int | None = Field(
        None,
        ge=-1,
        description="Memory that a process may lock, as RDMA and GPU libraries do; -1 is no limit; default: the"
        " engine's.",
    )
    log_bytes: int = Field(10 * MIB, ge=8192, description="Session log kept for a workload.")
    replay_bytes: int = Field(8 * MIB, ge=65536, description="Unacknowledged runner messages kept for the agent.")
    watch_interval_s: float = Field(5.0, ge=1.0, description="How often the sizes of homes are looked at.")
    reconcile_interval_s: float = Field(
        60.0, ge=1.0, description="How often containers and records are compared, beyond the engine's events."
    )
    start_timeout_s: float = Field(30.0, gt=0, description="How long a container's first process may take to appear.")
    engine_timeout_s: float = Field(30.0, gt=0, description="How long an agent that starts waits for the engine.")
    commit_directory: Path | None = Field(
        None, description="Where archives of committed sessions are kept; default: commits/ in the data directory."
    )
    runner_directory: Path | None = Field(None, description="The runner's files; default: the installed ones.")
    interpreter_directory: Path | None = Field(
        None,
        description="Where the interpreter for images without Python is unpacked; default: in the data directory.",
    )
