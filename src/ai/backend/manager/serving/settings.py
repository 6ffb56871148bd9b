"""Settings of model services."""

from __future__ import annotations

from pydantic import Field

from ai.backend.infra.settings import Settings


class ServingSettings(Settings):
    """Settings of model services."""

    drain_s: float = Field(
        30.0, ge=0, description="Seconds that open requests of a replica may take to end when the replica is to go."
    )
    start_timeout_s: float = Field(
        1800.0, gt=0, description="Seconds after which a replica that was never ready is replaced."
    )
    unhealthy_s: float = Field(60.0, ge=0, description="Seconds after which an unhealthy replica is replaced.")
    usage_days: int = Field(400, ge=1, description="Days for which the use of endpoints is kept.")
    max_endpoints: int = Field(256, ge=1, description="Living endpoints of one user.")
    max_replicas: int = Field(64, ge=1, le=1024, description="Replicas of one endpoint.")
    prometheus_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s]+$",
        description="A server of Prometheus, whose metrics rules of autoscaling may name by the source prometheus.",
    )
    prometheus_queries: dict[str, str] = Field(
        {},
        description="Queries that users may choose as such metrics, by name; $endpoint stands for the endpoint's id,"
        " and $name for its name. What a query gives is summed up over all replicas.",
    )
    max_token_days: float = Field(3650.0, gt=0, description="The longest life of a token of an endpoint, in days.")
