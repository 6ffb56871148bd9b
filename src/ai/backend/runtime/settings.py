"""The settings that the process runtime and the Docker runtime have in common."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ai.backend.plugin.settings import Settings

MIB = 1024 * 1024
GIB = 1024 * MIB


class RuntimeSettings(Settings):
    """Holds the settings that the process runtime and the Docker runtime have in common.

    The defaults suit a laptop and a server alike.
    """

    kernel_uid: int = Field(
        59500, ge=1, le=2**31 - 2, description="Host user id of all sessions where the agent runs as root; never 0."
    )
    kernel_gid: int = Field(59500, ge=1, le=2**31 - 2, description="Host group id likewise.")
    cgroup_root: Path = Field(Path("/sys/fs/cgroup"), description="Where the control group file systems are mounted.")
    default_pids: int = Field(1024, ge=16, description="Processes and threads of a workload that asks for no limit.")
    tmp_bytes: int = Field(1 * GIB, ge=MIB, description="Size of the private /tmp, which is memory.")
    shmem_bytes: int = Field(64 * MIB, ge=MIB, description="Size of /dev/shm where the workload asks for none.")
    home_bytes: int | None = Field(None, ge=MIB, description="Size of a home where the workload asks for none.")
    homes_directory: Path | None = Field(
        None,
        description="Where homes of sessions are; default: in the data directory. Change it while there is no session.",
    )
    reserved_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="Disk space kept for the platform: when less is left, who filled it is ended and nothing starts.",
    )
    log_bytes: int = Field(10 * MIB, ge=8192, description="Session log kept for a workload.")
    replay_bytes: int = Field(8 * MIB, ge=65536, description="Unacknowledged runner messages kept for the agent.")
    watch_interval_s: float = Field(
        5.0, ge=1.0, description="How often the sizes of homes and other watched limits are checked."
    )
    start_timeout_s: float = Field(30.0, gt=0, description="How long a workload's processes may take to appear.")
    runner_directory: Path | None = Field(None, description="The runner's files; default: the installed ones.")

    @property
    def homes(self) -> Path | None:
        return None if self.homes_directory is None else self.homes_directory.expanduser().absolute()
