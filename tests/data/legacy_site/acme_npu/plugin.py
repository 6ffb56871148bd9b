# What it imports exists in its host process only, and v1 plugins read files where they are asked:
# mypy: ignore-errors
# ruff: noqa: ASYNC240
"""Two NPUs, given as a whole."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acme_npu import __version__
from ai.backend.agent.resources import (
    AbstractAllocMap,
    AbstractComputeDevice,
    AbstractComputePlugin,
    DeviceSlotInfo,
    DiscretePropertyAllocMap,
)
from ai.backend.agent.stats import (
    ContainerMeasurement,
    Measurement,
    MetricTypes,
    NodeMeasurement,
    ProcessMeasurement,
    StatContext,
)
from ai.backend.agent.types import Container, MountInfo
from ai.backend.agent.utils import update_nested_dict
from ai.backend.common.logging import BraceStyleAdapter
from ai.backend.common.types import (
    AcceleratorMetadata,
    BinarySize,
    DeviceId,
    DeviceModelInfo,
    DeviceName,
    HardwareMetadata,
    MetricKey,
    MountTypes,
    SlotName,
    SlotTypes,
)

if TYPE_CHECKING:
    import aiodocker

log = BraceStyleAdapter(logging.getLogger(__name__))
DeviceAllocation = Mapping[SlotName, Mapping[DeviceId, Decimal]]


class AcmeDevice(AbstractComputeDevice):
    model_name: str
    index: int

    def __init__(self, model_name: str, index: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_name = model_name
        self.index = index


class AcmePlugin(AbstractComputePlugin):
    key = DeviceName("acme")
    slot_types: Sequence[tuple[SlotName, SlotTypes]] = ((SlotName("acme.device"), SlotTypes.COUNT),)
    exclusive_slot_types: set[str] = {"acme.device*"}  # noqa: RUF012  # as vendors write it

    device_mask: Sequence[DeviceId] = ()
    enabled = False

    async def init(self, context: Any = None) -> None:
        if (mask := self.plugin_config.get("device_mask")) is not None:
            self.device_mask = [DeviceId(item) for item in mask.split(",")]
        self.enabled = True
        log.info("{} devices of {}", len(await self.list_devices()), self.key)  # noqa: PLE1205  # of str.format

    async def cleanup(self) -> None:
        self.enabled = False

    async def update_plugin_config(self, new_plugin_config: Mapping[str, Any]) -> None:
        self.plugin_config = new_plugin_config

    def get_metadata(self) -> AcceleratorMetadata:
        return {
            "slot_name": self.slot_types[0][0],
            "human_readable_name": "Acme NPU",
            "description": "A neural processing unit of Acme",
            "display_unit": "NPU",
            "number_format": {"binary": False, "round_length": 0},
            "display_icon": "npu",
        }

    async def list_devices(self) -> Collection[AcmeDevice]:
        return [
            AcmeDevice(
                model_name="Acme N1",
                index=index,
                device_id=DeviceId(f"ACME-{index}"),
                hw_location=f"0000:1{index}:00.0",
                memory_size=BinarySize.finite_from_str("16g"),
                processing_units=64,
                numa_node=None if index else 0,
            )
            for index in range(2)
            if f"ACME-{index}" not in self.device_mask
        ]

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return {SlotName("acme.device"): Decimal(len(await self.list_devices()))}

    def get_version(self) -> str:
        return __version__

    async def extra_info(self) -> Mapping[str, str]:
        return {"acme_driver": "5.1"}

    async def get_node_hwinfo(self) -> HardwareMetadata:
        status = self.plugin_config.get("status_file")
        if status and Path(status).exists():
            return {"status": "offline", "status_info": Path(status).read_text(), "metadata": {}}
        return {"status": "healthy", "status_info": None, "metadata": {"firmware": "7"}}

    async def create_alloc_map(self) -> AbstractAllocMap:
        return DiscretePropertyAllocMap(
            device_slots={
                device.device_id: DeviceSlotInfo(SlotTypes.COUNT, SlotName("acme.device"), Decimal(1))
                for device in await self.list_devices()
            },
            exclusive_slot_types=self.exclusive_slot_types,
        )

    def _indexes(self, device_alloc: DeviceAllocation) -> list[int]:
        return sorted(int(d.removeprefix("ACME-")) for devices in device_alloc.values() for d in devices)

    async def get_hooks(self, distro: str, arch: str) -> Sequence[Path]:
        return [Path(p) for p in self.plugin_config.get("hooks", "").split(",") if p]

    async def generate_docker_args(
        self, docker: aiodocker.docker.Docker, device_alloc: DeviceAllocation
    ) -> Mapping[str, Any]:
        indexes = self._indexes(device_alloc)
        args: MutableMapping[str, Any] = {
            "Env": [f"ACME_VISIBLE_DEVICES={','.join(map(str, indexes))}", "ACME_RUNTIME=v1"],
            "HostConfig": {
                "Devices": [
                    {
                        "PathOnHost": "/dev/null",
                        "PathInContainer": f"/dev/acme{index}",
                        "CgroupPermissions": "mrw",
                    }
                    for index in indexes
                ],
            },
        }
        if library := self.plugin_config.get("library"):
            update_nested_dict(args, {"HostConfig": {"Binds": [f"{library}:/opt/acme/lib:ro"]}})
        if wish := self.plugin_config.get("ulimits"):
            update_nested_dict(args, {"HostConfig": {"Ulimits": [{"Name": wish, "Soft": -1, "Hard": -1}]}})
        if self.plugin_config.get("ask_docker"):
            await docker.system.info()
        return args

    async def generate_resource_data(self, device_alloc: DeviceAllocation) -> Mapping[str, str]:
        return {"ACME_GLOBAL_DEVICE_IDS": ",".join(f"{n}:{i}" for n, i in enumerate(self._indexes(device_alloc)))}

    async def generate_mounts(self, source_path: Path, device_alloc: DeviceAllocation) -> list[MountInfo]:
        (source_path / "acme.conf").write_text(f"devices={len(self._indexes(device_alloc))}\n")
        return [MountInfo(MountTypes.BIND, source_path / "acme.conf", Path("/etc/acme.conf"))]

    async def restore_from_container(self, container: Container, alloc_map: AbstractAllocMap) -> None:
        raise RuntimeError("nobody calls this")

    async def get_attached_devices(self, device_alloc: DeviceAllocation) -> Sequence[DeviceModelInfo]:
        held = {device for devices in device_alloc.values() for device in devices}
        return [
            {
                "device_id": d.device_id,
                "model_name": d.model_name,
                "data": {"mem": BinarySize(d.memory_size), "smp": 64},
            }
            for d in await self.list_devices()
            if d.device_id in held
        ]

    async def get_docker_networks(self, device_alloc: DeviceAllocation) -> list[str]:
        return []

    def get_additional_gids(self) -> list[int]:
        return []

    def get_additional_allowed_syscalls(self) -> list[str]:
        return []

    async def gather_node_measures(self, ctx: StatContext) -> Sequence[NodeMeasurement]:
        per_device = {d.device_id: Measurement(Decimal(1 << 30), Decimal(16 << 30)) for d in await self.list_devices()}
        return [
            NodeMeasurement(
                MetricKey("acme_mem"),
                MetricTypes.USAGE,
                unit_hint="bytes",
                stats_filter=frozenset({"max"}),
                per_node=Measurement(Decimal(2 << 30), Decimal(32 << 30)),
                per_device=per_device,
            ),
            NodeMeasurement(
                MetricKey("acme_power"),
                MetricTypes.USAGE,
                unit_hint="Watts",
                stats_filter=frozenset({"avg", "max"}),
                per_node=Measurement(Decimal("75.5")),
            ),
        ]

    async def gather_container_measures(
        self, ctx: StatContext, container_ids: Sequence[str]
    ) -> Sequence[ContainerMeasurement]:
        return [
            ContainerMeasurement(
                MetricKey("acme_util"),
                MetricTypes.UTILIZATION,
                unit_hint="percent",
                stats_filter=frozenset({"avg", "max"}),
                per_container={cid: Measurement(Decimal(50), Decimal(100)) for cid in container_ids},
            )
        ]

    async def gather_process_measures(
        self, ctx: StatContext, pid_map: Mapping[int, str]
    ) -> Sequence[ProcessMeasurement]:
        return [
            ProcessMeasurement(
                MetricKey("acme_mem"),
                MetricTypes.USAGE,
                unit_hint="bytes",
                per_process={pid: Measurement(Decimal(1 << 20)) for pid in pid_map},
            )
        ]
