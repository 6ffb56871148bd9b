"""Settings of the metrics that the manager keeps."""

from __future__ import annotations

from pydantic import Field

from ai.backend.infra.settings import Settings


class MetricSettings(Settings):
    """Limits of the history of sessions and agents, which is kept in memory."""

    history_mib: int = Field(
        64,
        ge=1,
        le=65_536,
        description="Memory for the last day of sessions and agents, in MiB; one metric takes 9 kB.",
    )
