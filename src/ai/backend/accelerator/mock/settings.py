"""Settings of the mock accelerator."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import Field

from ai.backend.common.devices import AllocationStrategy
from ai.backend.plugin.settings import PluginSettings, Quantity, Size


class MockSettings(PluginSettings):
    """Settings of the plugin (spec 03-06, peer facts 2.4)."""

    allocation_mode: Literal["discrete", "fractional"] = Field(
        default="discrete", description="Whole devices (<slot>.device) or parts of them (<slot>.shares)."
    )
    unit_mem: Size = Field(default=2 * 2**30, ge=1, description="Device memory of 1.0 share.")
    unit_proc: int = Field(default=8, ge=1, description="Sub-processors of 1.0 share.")
    quantum_size: Quantity = Field(default=Decimal("0.01"), gt=0, le=1, description="Smallest step of a share.")
    strategy: AllocationStrategy = Field(
        default=AllocationStrategy.EVENLY, description="How requests are spread over devices."
    )
    device_mask: tuple[str, ...] = Field(default=(), description="Ids of devices to leave out.")
    config_path: Path | None = Field(
        default=None, description="The declaration to read; default: mock-accelerator.toml on the search path."
    )
    control_path: Path | None = Field(
        default=None,
        description="What is read again when it changes; default: mock-control.toml beside the declaration.",
    )
    state_path: Path | None = Field(
        default=None, description="Where partitions and the like are kept; default: nowhere, a restart forgets them."
    )
    default_devices: int = Field(
        default=4, ge=0, le=1024, description="How many devices to pretend where nothing is declared."
    )
