"""Settings of service ports."""

from __future__ import annotations

from pydantic import Field

from ai.backend.infra.settings import Settings


class TunnelSettings(Settings):
    """Settings of tunnels to the services of sessions."""

    max_per_session: int = Field(
        128, ge=1, description="Connections into one session at once; one that stalls holds up to 2 MiB of memory."
    )
    idle_timeout: float = Field(
        0.0, ge=0, description="Seconds after which a connection is closed that carried nothing; 0 is never."
    )
