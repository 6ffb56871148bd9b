"""Properties of AMD's GPUs that sysfs lacks, by instruction set and PCI id.

Source: AMD's data sheets and the ROCm documentation ("Accelerator and GPU hardware specifications", "Precision
support"). Not checked on the hardware.
"""

from __future__ import annotations

from collections.abc import Mapping

MEMORY_TYPES: Mapping[str, str] = {
    "gfx906": "HBM2",
    "gfx908": "HBM2",
    "gfx90a": "HBM2E",
    "gfx942": "HBM3",
    "gfx950": "HBM3E",
    "gfx1030": "GDDR6",
    "gfx1100": "GDDR6",
    "gfx1101": "GDDR6",
    "gfx1200": "GDDR6",
    "gfx1201": "GDDR6",
}
MEMORY_TYPES_OF_DEVICES: Mapping[int, str] = {0x74A5: "HBM3E"}
"""By PCI device id, where that of the instruction set is wrong: MI325X."""

NAMES: Mapping[int, str] = {
    0x738C: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X/MI250",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
}
"""Used where the driver has no ``product_name``."""

_MATRIX = ("FP64", "FP32", "BF16", "FP16", "INT8")
PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "gfx906": ("FP64", "FP32", "FP16", "INT8"),
    "gfx908": _MATRIX,
    "gfx90a": _MATRIX,
    "gfx942": (*_MATRIX, "TF32", "FP8"),
    "gfx950": (*_MATRIX, "FP8", "FP6", "FP4"),
    "gfx1030": ("FP32", "FP16", "INT8"),
    "gfx1100": ("FP32", "BF16", "FP16", "INT8", "INT4"),
    "gfx1101": ("FP32", "BF16", "FP16", "INT8", "INT4"),
    "gfx1200": ("FP32", "BF16", "FP16", "FP8", "INT8", "INT4"),
    "gfx1201": ("FP32", "BF16", "FP16", "FP8", "INT8", "INT4"),
}


def memory_type(gfx: str, device: int) -> str | None:
    return MEMORY_TYPES_OF_DEVICES.get(device) or MEMORY_TYPES.get(gfx)
