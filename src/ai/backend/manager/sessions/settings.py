"""Settings of sessions."""

from __future__ import annotations

from ipaddress import IPv4Network

from pydantic import Field, field_validator

from ai.backend.infra.settings import Settings


class SessionSettings(Settings):
    """Limits and deadlines of sessions. A session never stays in a transient state for longer than its deadline."""

    start_timeout_s: float = Field(300.0, gt=0, description="From being scheduled to RUNNING, in seconds.")
    pull_timeout_s: float = Field(7200.0, gt=0, description="As start-timeout-s while an image is being pulled.")
    restart_timeout_s: float = Field(60.0, gt=0, description="In RESTARTING, in seconds.")
    terminate_timeout_s: float = Field(
        60.0, gt=0, description="In TERMINATING until the end is forced, in seconds; given up after three times that."
    )
    destroy_wait_s: float = Field(10.0, ge=0, description="How long, in seconds, a destroy request waits for the end.")
    retry_backoff_s: float = Field(
        1.0, ge=0, description="Pause in seconds before a failed creation is placed again; doubles with each attempt."
    )
    max_live_sessions: int = Field(
        10_000,
        ge=0,
        description="Waiting and running sessions of one keypair, at most, where its policy says none. 0: any number.",
    )
    max_claims: int = Field(
        64, ge=0, description="Device claims of one keypair, at most, where its policy says none. 0: any number."
    )
    claim_idle_timeout_s: float = Field(
        3600.0,
        ge=0,
        description="Seconds without a session after which a device claim returns its devices, where it says none; the"
        " policy of its keypair bounds that. 0: never.",
    )
    max_array_size: int = Field(10_000, ge=1, description="Elements of one array of batch sessions, at most.")
    max_cluster_size: int = Field(64, ge=1, description="Kernels of one session, at most.")
    max_environ_bytes: int = Field(65_536, ge=0, description="Size of all environment variables of a session.")
    max_script_bytes: int = Field(65_536, ge=0, description="Size of a bootstrap script or start-up command.")
    network_pool: IPv4Network = Field(
        IPv4Network("10.214.0.0/16"),
        description="Addresses of networks over several agents. Each session gets a part of it; no agent may have"
        " routes to any of them.",
    )
    network_numbers: tuple[int, int] = Field(
        (4096, 16_777_215), description="The first and the last number (VNI) of such networks; 1 to 16777215."
    )
    encrypt_networks: bool = Field(
        False,
        description="Whether each network over several agents is encrypted between them, and not only those of sessions"
        " that ask for it.",
    )
    default_shmem: str = Field("64m", description="Shared memory of a kernel whose request names none.")
    log_tail_bytes: int = Field(262_144, ge=0, description="How much of a kernel's log is kept after its end.")

    @field_validator("network_numbers")
    @classmethod
    def _check_number_range(cls, numbers: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= numbers[0] <= numbers[1] <= 16_777_215:
            raise ValueError("numbers of networks are 1 to 16777215, the first not above the last")
        return numbers


class FileSettings(Settings):
    """Limits of file transfer (spec 03-08)."""

    max_upload_files: int = Field(20, ge=1, description="Files in one upload.")
    max_upload_bytes: int = Field(1_048_576, ge=1, description="Size of one uploaded file, in bytes.")
    max_download_files: int = Field(5, ge=1, description="Files in one download.")
    max_download_bytes: int = Field(67_108_864, ge=1, description="Size of all archives of a download, in bytes.")
