"""Settings of the controllers of kube-acc: ``kube-acc-controllers.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from ai.backend.infra.settings.tables import LoggingSettings
from ai.backend.kubeacc.drivers.artifact_settings import ArtifactSettings
from ai.backend.plugin.settings import Settings


class ControllerSettings(Settings):
    """Configures the controllers. Without a driver of an IaaS they need no settings."""

    image_cache: Path = Field(
        Path("/var/cache/kube-acc/images"),
        description="Where checked images are kept; the controllers on one machine have a folder each.",
    )
    artifacts: ArtifactSettings = Field(
        ArtifactSettings(), description="Images by which operations program devices of an IaaS."
    )
    drivers: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Drivers of an IaaS that run, by their entry points, with their settings."
    )
    logging: LoggingSettings = Field(LoggingSettings(), description="Of the daemon itself.")
