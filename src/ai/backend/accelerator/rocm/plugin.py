"""Serves AMD GPUs through the sysfs of amdgpu and of the KFD. No vendor library is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, Field

from ai.backend.accelerator.rocm.scan import NAMESPACE_NAME, PLUGIN_KEY, gpus, process_memory, scan
from ai.backend.common.devices import SlotDisplay, VariantFeature, VariantMatchMode, VariantNamespace
from ai.backend.common.ids import DeviceName, KernelId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import (
    Measurement,
    NodeInfo,
    PluginCapabilities,
    StatContext,
    Workload,
    WorkloadConfig,
)
from ai.backend.plugin.sysfs.base import GAUGE_STATS, Raw, ScannedDevice, TreePlugin, TreeSettings
from ai.backend.plugin.sysfs.pci import pci_at

_VERSION_TEXT = re.compile(r"\d+(?:\.\d+){1,3}")
_NAMESPACE = VariantNamespace(
    namespace=NAMESPACE_NAME,
    features=(
        VariantFeature(name="rocm_version", match_mode=VariantMatchMode.MINIMUM),
        VariantFeature(name="gfx_arch"),
        VariantFeature(name="precision", multi_value=True),
        VariantFeature(name="memory_type"),
        VariantFeature(name="memory_gib", match_mode=VariantMatchMode.MINIMUM),
        VariantFeature(name="model"),
    ),
)


class RocmSettings(TreeSettings):
    """Settings of the plugin, ``[plugins.rocm]`` of agent.toml."""

    rocm_version_file: Path = Field(
        default=Path("/opt/rocm/.info/version"), description="Where the node's ROCm says its version."
    )
    max_uncorrectable_errors: int = Field(
        default=0, ge=0, description="How many uncorrectable errors a block of a healthy GPU has at most."
    )


class RocmPlugin(TreePlugin):
    """Serves AMD GPUs, or their partitions where an administrator has cut them, each as a whole."""

    key: ClassVar[DeviceName] = PLUGIN_KEY
    version: ClassVar[str] = "1"
    settings_model: ClassVar[type[BaseModel] | None] = RocmSettings
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities(process_metrics=True, diagnosable=True)

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        self._config = settings if isinstance(settings, RocmSettings) else RocmSettings()

    def _rocm_version(self) -> str | None:
        try:
            with self._config.rocm_version_file.open(encoding="utf-8", errors="replace") as file:
                match = _VERSION_TEXT.match(file.read(64))
        except OSError:
            return None
        return match[0] if match is not None else None

    def scan(self) -> Sequence[ScannedDevice]:
        limit = self._config.max_uncorrectable_errors
        return scan(self.tree, max_uncorrectable=limit, rocm_version=self._rocm_version())

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [
            SlotDisplay(
                slot_name=SlotName("rocm.device"),
                slot_type=SlotType.COUNT,
                description="ROCm-capable GPU",
                human_readable_name="ROCm Device",
                display_unit="GPU",
                display_icon="rocm",
            )
        ]

    async def variant_namespaces(self) -> Sequence[VariantNamespace]:
        return (_NAMESPACE,)

    def config(self, held: Sequence[ScannedDevice], workload: Workload) -> WorkloadConfig:
        """Returns a config whose variables name the workload's GPUs, by unique id if possible and by number otherwise.

        Unique ids are used if each GPU is whole and has one. In a container numbers begin anew: ROCr counts the GPUs
        that it can open.
        """
        device_ids = [scanned.device.device_id for scanned in held]
        names_ids = all(device_id.startswith("GPU-") for device_id in device_ids) and all(
            gpu.fields["partitions"] == "1" for gpu in held
        )
        ranks = range(len(held)) if workload.type == "container" else [scanned.fields["rank"] for scanned in held]
        return WorkloadConfig(
            env_vars={
                "ROCR_VISIBLE_DEVICES": ",".join(device_ids if names_ids else map(str, ranks)),
                "HIP_VISIBLE_DEVICES": ",".join(str(rank) for rank in range(len(held))),
            },
            resource_data={
                "ROCM_GLOBAL_DEVICE_IDS": ",".join(f"{rank}:{device_id}" for rank, device_id in enumerate(device_ids))
            },
        )

    def measure(self, scanned: Sequence[ScannedDevice]) -> Sequence[Raw]:
        """Reads the sensors of each GPU once: its partitions share them."""
        readings: list[Raw] = []
        measured_gpus: set[str] = set()
        for device in scanned:
            if device.fields["pci"] not in measured_gpus:
                measured_gpus.add(device.fields["pci"])
                readings += self._gpu_readings(device)
        return readings

    def _gpu_readings(self, scanned: ScannedDevice) -> Sequence[Raw]:
        pci = pci_at(self.tree, scanned.fields["pci"])
        if pci is None:
            return ()
        hwmon = next(iter(self.tree.glob(f"{pci.path}/hwmon/hwmon*")), f"{pci.path}/hwmon")

        def first_value(*paths: str) -> float | None:
            values = (self.tree.value(path) for path in paths)
            return next((value for value in values if value is not None), None)

        sensors = (
            ("mem", "bytes", 1.0, f"{pci.path}/mem_info_vram_used", first_value(f"{pci.path}/mem_info_vram_total")),
            ("util", "percent", 1.0, f"{pci.path}/gpu_busy_percent", 100.0),
            ("power", "watt", 1e-6, f"{hwmon}/power1_average", first_value(f"{hwmon}/power1_cap")),
            ("temperature", "celsius", 1e-3, f"{hwmon}/temp1_input", first_value(f"{hwmon}/temp1_crit")),
        )
        fallback_path_of = {"power": f"{hwmon}/power1_input", "temperature": f"{hwmon}/temp2_input"}
        return [
            Raw(
                key=f"rocm_{key}",
                device_id=scanned.device.device_id,
                value=value * factor,
                unit=unit,
                capacity=capacity * factor if capacity is not None else None,
                together="max" if unit == "celsius" else "sum",
            )
            for key, unit, factor, path, capacity in sensors
            if (value := first_value(path, fallback_path_of.get(key, path))) is not None
        ]

    async def gather_process_metrics(
        self, ctx: StatContext, pids: Mapping[int, KernelId]
    ) -> Mapping[int, Sequence[Measurement]]:
        """Returns ``rocm_mem`` of each process that uses GPUs: its bytes of memory on all GPUs together."""
        used_bytes = await self.reading(lambda: {pid: process_memory(self.tree, pid) for pid in pids})
        return {
            pid: [Measurement(key="rocm_mem", value=float(sum(memory.values())), unit_hint="bytes", stats=GAUGE_STATS)]
            for pid, memory in used_bytes.items()
            if memory
        }

    async def get_node_info(self) -> NodeInfo:
        def read_info() -> NodeInfo:
            listed_gpus = list(gpus(self.tree))
            mode_of_gpu = {
                f"compute_partition.{address}": mode
                for address in dict.fromkeys(gpu.address for gpu in listed_gpus)
                if (pci := pci_at(self.tree, address)) is not None
                and (mode := self.tree.text(f"{pci.path}/current_compute_partition")) is not None
            }
            return NodeInfo(
                driver_version=self.tree.text("/sys/module/amdgpu/version"),
                runtime_version=self._rocm_version(),
                extra={**mode_of_gpu, "gfx": ", ".join(dict.fromkeys(gpu.gfx for gpu in listed_gpus))},
            )

        return await self.reading(read_info)
