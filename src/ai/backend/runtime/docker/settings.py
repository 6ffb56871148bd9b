"""Settings of the Docker runtime, the ``[runtime]`` part of the agent's settings where ``runtime = "docker"``."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from pydantic import Field

from ai.backend.runtime.settings import RuntimeSettings


class DockerRuntimeSettings(RuntimeSettings):
    """The settings of the Docker runtime."""

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
    cgroup_parent: str = Field("", description="Control group above the containers'; default: the engine's.")
    open_files: int | None = Field(None, ge=256, description="Open files of one process; default: the engine's.")
    locked_memory_bytes: int | None = Field(
        None,
        ge=-1,
        description="Memory that a process may lock, as RDMA and GPU libraries do; -1 is no limit; default: the"
        " engine's.",
    )
    reconcile_interval_s: float = Field(
        60.0, ge=1.0, description="How often containers and records are compared, beyond the engine's events."
    )
    engine_timeout_s: float = Field(30.0, gt=0, description="How long an agent that starts waits for the engine.")
    commit_directory: Path | None = Field(
        None, description="Where archives of committed sessions are kept; default: commits/ in the data directory."
    )
    interpreter_directory: Path | None = Field(
        None,
        description="Where the interpreter for images without Python is unpacked; default: in the data directory.",
    )
