"""Settings of retention."""

from __future__ import annotations

from pydantic import Field

from ai.backend.infra.settings import Settings


class RetentionSettings(Settings):
    """How long the manager keeps old rows."""

    events_days: float = Field(7.0, gt=0, description="How long events and kept logs stay, in days.")
    errors_days: float = Field(30.0, gt=0, description="How long reported errors stay, in days.")
    tokens_hours: float = Field(24.0, gt=0, description="How long a client token stays known, in hours.")
