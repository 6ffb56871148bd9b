"""Settings of the process runtime, the ``[process-runtime]`` part of the agent's settings."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from pydantic import Field

from ai.backend.runtime.settings import RuntimeSettings

SESSION_UID_COUNT = 2**24


class ProcessRuntimeSettings(RuntimeSettings):
    """The settings of the process runtime."""

    sandbox: Literal["auto", "off"] = Field("auto", description="Use bubblewrap where it works.")
    user_namespaces: Literal["auto", "off"] = Field(
        "auto",
        description="Where the host forbids them to ordinary users, root's sandbox changes its user inside instead.",
    )
    gvisor: Literal["auto", "off"] = Field(
        "auto", description="Offer the runtime class `gvisor` where `runsc` starts a sandbox."
    )
    runsc: Path | None = Field(None, description="The program of gVisor; default: `runsc` on the agent's PATH.")
    default_runtime_class: Literal["", "gvisor"] = Field(
        "", description="What sessions that name no runtime class run in; empty: the sandbox of the host's kernel."
    )
    cgroups: Literal["auto", "off"] = Field("auto", description="Use control groups where they are writable.")
    seccomp: Literal["auto", "off"] = Field("auto", description="Filter system calls by the published allow-list.")
    network: Literal["auto", "host", "none"] = Field(
        "auto",
        description="'auto': a network of the session's own with a way out, where slirp4netns or pasta works, else"
        " 'host'; 'host': the session shares the host's network; 'none': it has a loopback of its own only.",
    )
    session_networks: IPv4Network = Field(
        IPv4Network("10.213.0.0/16"),
        description="Addresses in the private networks of cluster sessions, the same in each: no network sees another.",
    )
    cgroup_parent: str = Field(
        "backendai", pattern=r"^[A-Za-z0-9_.-]+$", description="Control group above those of the workloads."
    )
    session_uids: int = Field(
        0x7000_0000,
        ge=0,
        le=2**31 - 2 - SESSION_UID_COUNT,
        description="First of 16,777,216 host user ids for which the kernel counts inotify instances and the like, one"
        " for each session of an agent that is root. They own no files. 0: all sessions count for `kernel-uid`.",
    )
    ptys: int = Field(128, ge=1, le=3072, description="Terminals that the programs of one session may open.")
    open_files: int = Field(65536, ge=256, description="Open files of one process.")
    interpreters: tuple[Path, ...] = Field(
        (), description="Python interpreters offered as host images besides the usual."
    )
    host_directories: tuple[Path, ...] = Field(
        (), description="Host directories shown read-only at the same place in every session on a host image."
    )
    images_directory: Path | None = Field(
        None, description="Where rootfs images are; default: images/ in the data directory."
    )
