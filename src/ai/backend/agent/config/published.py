"""Tables of the published ``agent.toml`` (spec 03-02), and what they mean here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.tables import Address, HostPort, TlsSettings


class WatcherSettings(TlsSettings):
    """The table ``[watcher]``: who restarts the agent when it is asked to."""

    service_addr: Address = Field(HostPort(host="127.0.0.1", port=6009), description="Where the watcher listens.")
    target_service: str = Field("backendai-agent.service", description="The unit of systemd that is the agent.")
    soft_reset_available: bool = Field(
        False, description="Whether it may be asked to end all sessions of the node (`POST /soft-reset`)."
    )
    token: str | None = Field(
        None, description="What requests say in X-BackendAI-Watcher-Token; without one, no request is taken."
    )
    command: list[str] = Field(
        default_factory=list,
        description="Run instead of `systemctl ACTION UNIT`, with the action (start, stop, restart) as its last word.",
    )


class PublishedNode(Settings):
    """Keys of the table ``[agent]`` that are read and not used, or mean another key here."""

    mode: Literal["docker", "process", "dummy"] | None = Field(None, description="As `runtime`, which it wins over.")
    pid_file: Path | None = Field(None, description="Where the process id is written.")
    rpc_listen_addr: Any = Field(None, description="Read and not used: agents connect to managers.")
    event_loop: Literal["asyncio", "uvloop"] = Field("asyncio", description="Read and not used: asyncio.")
