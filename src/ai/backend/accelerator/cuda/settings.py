"""Settings of the plugin, ``[plugins.cuda]`` of agent.toml."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import Field

from ai.backend.common.devices import AllocationStrategy
from ai.backend.plugin.settings import PluginSettings, Quantity, Size


class CudaSettings(PluginSettings):
    """The settings that docs/reference/accelerators/cuda.md describes."""

    allocation_mode: Literal["discrete", "fractional", "either"] = Field(
        default="discrete",
        description="Whole GPUs (cuda.device), parts of them (cuda.shares), or whichever is asked of a GPU first.",
    )
    unit_mem: Size = Field(default=2 * 2**30, ge=1, description="Device memory of 1.0 share.")
    unit_proc: int = Field(default=8, ge=1, description="Multiprocessors of 1.0 share.")
    quantum_size: Quantity = Field(default=Decimal("0.01"), gt=0, le=1, description="Smallest step of a share.")
    reserved_memory: Size = Field(
        default=64 * 2**20, ge=0, description="Memory of each GPU that shares never include: for the driver's own use."
    )
    strategy: AllocationStrategy = Field(
        default=AllocationStrategy.EVENLY, description="How requests are spread over devices."
    )
    device_mask: tuple[str, ...] = Field(
        default=(), description="UUIDs of GPUs or MIG instances to leave out, a GPU with its instances."
    )
    manage_partitions: bool = Field(
        default=False, description="Whether MIG instances may be created and destroyed through the agent."
    )
    tolerated_ecc_errors: int = Field(
        default=0, ge=0, description="Uncorrectable memory errors since a reset that a GPU may have and be offered."
    )
    ignored_xids: tuple[int, ...] = Field(
        default=(), description="Xids that do not take a GPU out of use, besides those that are the program's fault."
    )
    sharing: Literal["time-slicing", "mps"] = Field(
        default="time-slicing",
        description="How the holders of one GPU's shares run: in turns, with limits that only their own libraries keep"
        " (time-slicing), or beside each other under limits of CUDA's Multi-Process Service (mps), one daemon a GPU."
        " With mps, the holders of one GPU share a /dev/shm in which each can read and change what the others keep:"
        " choose it only where they trust each other.",
    )
    mps_control: str = Field(
        default="", description="Path of nvidia-cuda-mps-control; default: that of the system's search path."
    )
    mps_dir: Path = Field(
        default=Path("/var/lib/backend.ai/mps"), description="Folder of the sockets and logs of MPS, one for each GPU."
    )
    mps_shared_memory: Size = Field(
        default=256 * 2**20, ge=2**20, description="Shared memory of one GPU's MPS with all its clients."
    )
    mount_libraries: bool = Field(
        default=False,
        description="Show the driver's libraries to process trees, for images with a root file system of their own.",
    )
