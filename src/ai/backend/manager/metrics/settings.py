"""Settings of the metrics that the manager keeps."""

from __future__ import annotations

from pydantic import Field, SecretStr

from ai.backend.infra.settings import Settings


class MetricSettings(Settings):
    """The history of sessions and agents, which is kept in memory, and what Prometheus may ask for."""

    history_mib: int = Field(
        64,
        ge=1,
        le=65_536,
        description="Memory for the last day of sessions and agents, in MiB; one metric takes 9 kB.",
    )
    targets_token: SecretStr | None = Field(
        None, description="The bearer token with which Prometheus lists what it scrapes; unset: nobody does."
    )
