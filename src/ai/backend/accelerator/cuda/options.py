"""Options that a session gives to the plugin (``plugin_options``)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ai.backend.plugin.accelerator import PluginOptions


class CudaOptions(PluginOptions):
    """Options of a session on NVIDIA's GPUs."""

    driver_capabilities: tuple[Literal["compute", "utility", "graphics", "video", "display", "compat32"], ...] = Field(
        default=("compute", "utility"),
        min_length=1,
        max_length=6,
        description="Parts of the driver that the session sees, where NVIDIA's own runtime shows it.",
    )
    active_thread_percentage: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Percent of a GPU's threads that each program of the session may use under MPS; never more than"
        " its share.",
    )


NO_OPTIONS = CudaOptions()
