"""A runtime: processes without a sandbox, with a limit of processes that its settings name."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, Field

from ai.backend.plugin.settings import PluginSettings
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings


class BareSettings(PluginSettings):
    processes: int = Field(64, ge=16)


class BareRuntime(ProcessRuntime):
    name: ClassVar[str] = "bare"
    settings_model: ClassVar[type[BaseModel] | None] = BareSettings

    def __init__(self, settings: BareSettings, state_path: Path) -> None:
        super().__init__(ProcessRuntimeSettings(sandbox="off", default_pids=settings.processes), state_path)
