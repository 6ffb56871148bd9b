"""Defines data that NVML lacks: architectures, precisions, memory, link speeds, Xids, names of metrics.

Sources: CUDA C++ Programming Guide, "Compute Capabilities"; NVIDIA's data sheets and white papers (memory, NVLink);
"Xid Errors", r580, "GPU Memory Error Management" (https://docs.nvidia.com/deploy/); DCGM API "Field Identifiers".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ai.backend.plugin.accelerator.plugin import ExportedName, MetricKind

Capability = tuple[int, int]
_STATS, _MAX_STATS = ("avg", "max"), ("max",)


class Generation(msgspec.Struct, frozen=True):
    """Describes a GPU architecture and the compute capability from which GPUs belong to it.

    ``native``: formats that its units multiply in hardware.
    """

    since: Capability
    arch: str
    cores_per_sm: int
    tensor_cores_per_sm: int
    native: tuple[str, ...]


FORMATS = ("FP64", "FP32", "TF32", "BF16", "FP16", "FP8", "FP4", "INT8", "INT4")
EMULATED: Mapping[str, Capability] = {"FP16": (5, 3), "BF16": (7, 0), "INT8": (5, 0)}
"""Maps formats that CUDA's libraries emulate at lower speed, where they are not native, to the lowest capability."""
GENERATIONS = (
    Generation((12, 0), "blackwell", 128, 4, ("FP64", "FP32", "TF32", "BF16", "FP16", "FP8", "FP4", "INT8")),
    Generation((10, 0), "blackwell", 128, 4, ("FP64", "FP32", "TF32", "BF16", "FP16", "FP8", "FP4", "INT8")),
    Generation((9, 0), "hopper", 128, 4, ("FP64", "FP32", "TF32", "BF16", "FP16", "FP8", "INT8")),
    Generation((8, 9), "ada", 128, 4, ("FP64", "FP32", "TF32", "BF16", "FP16", "FP8", "INT8", "INT4")),
    Generation((8, 6), "ampere", 128, 4, ("FP64", "FP32", "TF32", "BF16", "FP16", "INT8", "INT4")),
    Generation((8, 0), "ampere", 64, 4, ("FP64", "FP32", "TF32", "BF16", "FP16", "INT8", "INT4")),
    Generation((7, 5), "turing", 64, 8, ("FP64", "FP32", "FP16", "INT8", "INT4")),
    Generation((7, 0), "volta", 64, 8, ("FP64", "FP32", "FP16", "INT8")),
    Generation((6, 1), "pascal", 128, 0, ("FP64", "FP32", "INT8")),
    Generation((6, 0), "pascal", 64, 0, ("FP64", "FP32", "FP16")),
    Generation((5, 0), "maxwell", 128, 0, ("FP64", "FP32")),
    Generation((3, 0), "kepler", 192, 0, ("FP64", "FP32")),
)
"""The newest first. An unknown newer capability counts as the newest that is known."""


def generation(capability: Capability) -> Generation | None:
    return next((candidate for candidate in GENERATIONS if candidate.since <= capability), None)


MEMORY_TYPES = (
    ("GB300|B300|GB200|B200|H200|GH200 144G", "HBM3E"),
    ("GH200|H20|HBM3|H100 NVL", "HBM3"),
    ("H100", "HBM2E"),
    ("H800", "HBM3"),
    ("A100-SXM4-80GB|A100 80GB", "HBM2E"),
    ("A100", "HBM2"),
    ("A800", "HBM2E"),
    ("A30|V100|P100", "HBM2"),
    (r"RTX PRO|RTX 50\d\d", "GDDR7"),
    (r"L40S?|L4|A40|A16|A10|A2|T4|RTX 6000 Ada|RTX A\d+", "GDDR6"),
    (r"RTX 40[89]0", "GDDR6X"),
)
"""Maps an expression in the model's name to the type of its memory. The first that occurs as whole words counts."""
NVLINK_GB_S: Mapping[int, float] = {1: 20, 2: 25, 3: 25, 4: 25, 5: 50}
"""NVLink version -> 10^9 bytes per second of one link in one direction."""


class Blame(StrEnum):
    """Names the cause of an Xid: the application or the hardware."""

    APPLICATION = "application"
    """The program caused the error, or can simply be started again. The device goes on."""
    NOTICE = "notice"
    """The device has handled the error; it is to be inspected at the next maintenance."""
    DEVICE = "device"
    """The device must be reset or mended before it is used again."""


XIDS: Mapping[int, tuple[Blame, str]] = {
    8: (Blame.APPLICATION, "GPU stopped processing"),
    11: (Blame.APPLICATION, "invalid or corrupted push buffer stream"),
    13: (Blame.APPLICATION, "graphics engine exception"),
    31: (Blame.APPLICATION, "GPU memory page fault"),
    32: (Blame.APPLICATION, "invalid or corrupted push buffer stream"),
    43: (Blame.APPLICATION, "GPU stopped processing"),
    44: (Blame.APPLICATION, "graphics engine fault during context switch"),
    45: (Blame.APPLICATION, "preemptive cleanup, due to previous errors"),
    46: (Blame.DEVICE, "GPU stopped processing"),
    48: (Blame.DEVICE, "uncorrectable ECC error"),
    61: (Blame.DEVICE, "internal micro-controller breakpoint"),
    62: (Blame.DEVICE, "internal micro-controller halt"),
    63: (Blame.NOTICE, "row remapping or page retirement recorded; it takes effect with the next reset"),
    64: (Blame.DEVICE, "row remapping or page retirement failed"),
    66: (Blame.APPLICATION, "illegal access by driver"),
    68: (Blame.APPLICATION, "video processor exception"),
    69: (Blame.APPLICATION, "graphics engine class error"),
    74: (Blame.DEVICE, "NVLink error"),
    79: (Blame.DEVICE, "GPU has fallen off the bus"),
    92: (Blame.NOTICE, "high rate of corrected ECC errors"),
    94: (Blame.NOTICE, "contained ECC error: only the program that met it was ended"),
    95: (Blame.DEVICE, "uncontained ECC error"),
    109: (Blame.APPLICATION, "context switch timeout"),
    110: (Blame.DEVICE, "security fault"),
    119: (Blame.DEVICE, "timeout of a call to the GPU system processor"),
    120: (Blame.DEVICE, "error of the GPU system processor"),
    121: (Blame.NOTICE, "corrected error of the chip-to-chip link"),
    137: (Blame.APPLICATION, "fault of an access over NVLink"),
    140: (Blame.DEVICE, "unrecovered ECC error"),
    143: (Blame.DEVICE, "GPU initialisation failed"),
    145: (Blame.DEVICE, "NVLink error (RLW)"),
}
"""Maps the number of an Xid to its cause and text. Any other Xid counts as the device's: NVIDIA's own health checks do
the same.
"""


class Metric(msgspec.Struct, frozen=True):
    """Describes a metric of GPUs. ``exported``: its form in DCGM's exporter; ``otel``: OpenTelemetry's name."""

    unit: str
    text: str
    otel: str
    exported: ExportedName
    kind: MetricKind
    stats: frozenset[str]


def _metric(
    unit: str,
    description: str,
    otel: str,
    dcgm: str,
    dcgm_unit: str,
    factor: float = 1.0,
    stats: tuple[str, ...] = _STATS,
) -> Metric:
    name = ExportedName(name=f"DCGM_FI_DEV_{dcgm}", help=f"{description.capitalize()} ({dcgm_unit}).", factor=factor)
    kind = MetricKind.ACCUMULATED if unit == "joule" else MetricKind.GAUGE
    return Metric(unit, description, otel, name, kind, frozenset(stats))


METRICS: Mapping[str, Metric] = {
    "cuda_mem": _metric(
        "bytes", "memory in use, of the memory of the device", "hw.gpu.memory.usage", "FB_USED", "MiB", 1 / 2**20
    ),
    "cuda_util": _metric(
        "percent", "time in which any kernel ran on the device", "hw.gpu.utilization", "GPU_UTIL", "%"
    ),
    "cuda_mem_util": _metric("percent", "time in which memory was read or written", "", "MEM_COPY_UTIL", "%"),
    "cuda_power": _metric("watt", "power drawn, of the limit in force", "hw.power", "POWER_USAGE", "W"),
    "cuda_temperature": _metric("celsius", "temperature of the GPU", "hw.temperature", "GPU_TEMP", "C"),
    "cuda_energy": _metric(
        "joule", "energy drawn since the driver was loaded", "hw.energy", "TOTAL_ENERGY_CONSUMPTION", "mJ", 1000.0, ()
    ),
    "cuda_sm_clock": _metric("hertz", "clock of the multiprocessors, of the highest", "", "SM_CLOCK", "MHz", 1e-6),
    "cuda_ecc_errors": _metric(
        "count",
        "uncorrectable memory errors since the last reset",
        "hw.errors",
        "ECC_DBE_VOL_TOTAL",
        "errors",
        1.0,
        _MAX_STATS,
    ),
    "cuda_xid": _metric(
        "count", "last Xid that the agent heard of, 0 for none", "", "XID_ERRORS", "number of the Xid", 1.0, ()
    ),
}
"""The metrics that the plugin measures. The four of the platform are ``cuda_mem``, ``cuda_util``, ``cuda_power``,
``cuda_temperature``; workloads and processes have the first two.
"""

DRIVER_LIBRARIES = (
    "libcuda.so.1", "libcudadebugger.so.1", "libnvidia-allocator.so.1", "libnvidia-cfg.so.1", "libnvidia-encode.so.1",
    "libnvidia-ml.so.1", "libnvidia-nvvm.so.4", "libnvidia-opencl.so.1", "libnvidia-opticalflow.so.1",
    "libnvidia-ptxjitcompiler.so.1", "libnvcuvid.so.1",
)  # fmt: skip
"""The names by which programs that compute load the driver's libraries."""
DRIVER_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
