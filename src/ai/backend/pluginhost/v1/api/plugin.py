"""Defines the base classes of v1: names of ``ai.backend.agent.resources`` and ``ai.backend.common.plugin``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from ai.backend.common.errors import PluginError
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.pluginhost.v1.api.alloc_maps import AbstractAllocMap
from ai.backend.pluginhost.v1.api.statistics import (
    ContainerMeasurement,
    NodeMeasurement,
    ProcessMeasurement,
    StatContext,
)
from ai.backend.pluginhost.v1.api.types import (
    AcceleratorMetadata,
    Container,
    DeviceAllocation,
    DeviceModelInfo,
    HardwareMetadata,
    MountInfo,
    SlotTypes,
)

__all__ = [
    "AbstractComputeDevice", "AbstractComputePlugin", "AbstractPlugin", "DeviceAllocation",
    "get_resource_spec_from_container",
]  # fmt: skip


async def get_resource_spec_from_container(container: Any) -> NoReturn:
    """Stands in for a function that ``restore_from_container`` of published plugins calls. Raises PluginError."""
    raise PluginError("a v1 plugin cannot read a container here: the agent keeps what workloads hold")


class AbstractComputeDevice:
    """Describes a device of a v1 plugin; devices of the same name and id are equal."""

    def __init__(
        self,
        device_id: DeviceId,
        hw_location: str,
        memory_size: int,
        processing_units: int,
        numa_node: int | None = None,
        device_name: DeviceName | None = None,
    ) -> None:
        self.device_id = device_id
        self.hw_location = hw_location
        self.memory_size = memory_size
        self.processing_units = processing_units
        self.numa_node = numa_node
        self._device_name = device_name

    @property
    def device_name(self) -> DeviceName:
        return self._device_name or DeviceName(type(self).__name__.removesuffix("Device").lower())

    def __hash__(self) -> int:
        return hash(f"{self.device_name}-{self.device_id}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AbstractComputeDevice):
            return NotImplemented
        return (self.device_name, self.device_id) == (other.device_name, other.device_id)


class AbstractPlugin(ABC):  # noqa: B024  # what is abstract differs by kind of plugin
    config_watch_enabled: ClassVar[bool] = True

    def __init__(self, plugin_config: Mapping[str, Any], local_config: Mapping[str, Any]) -> None:
        self.plugin_config = plugin_config
        self.local_config = local_config

    async def init(self, context: Any = None) -> None: ...

    async def cleanup(self) -> None: ...

    async def update_plugin_config(self, plugin_config: Mapping[str, Any]) -> None:
        """Replaces the settings. The agent never calls this method: it reads settings when it starts."""
        self.plugin_config = plugin_config


class AbstractComputePlugin(AbstractPlugin):
    """The base of v1 plugins; only necessary methods are abstract, so that plugins of every v1 release load."""

    key: DeviceName
    slot_types: Sequence[tuple[SlotName, SlotTypes]]
    exclusive_slot_types: Collection[str] = frozenset()

    def get_metadata(self) -> AcceleratorMetadata:
        return {
            "slot_name": self.slot_types[0][0],
            "description": "",
            "human_readable_name": self.key,
            "display_unit": "Unit",
            "number_format": {"binary": False, "round_length": 0},
            "display_icon": "",
        }

    @abstractmethod
    async def list_devices(self) -> Collection[AbstractComputeDevice]: ...

    @abstractmethod
    async def available_slots(self) -> Mapping[SlotName, Decimal]: ...

    @abstractmethod
    async def create_alloc_map(self) -> AbstractAllocMap: ...

    @abstractmethod
    async def generate_docker_args(self, docker: Any, device_alloc: DeviceAllocation) -> Mapping[str, Any]: ...

    def get_version(self) -> str:
        return ""

    async def extra_info(self) -> Mapping[str, str]:
        return {}

    async def get_node_hwinfo(self) -> HardwareMetadata:
        raise NotImplementedError

    async def get_hooks(self, distro: str, arch: str) -> Sequence[Path]:
        return []

    async def generate_resource_data(self, device_alloc: DeviceAllocation) -> Mapping[str, str]:
        return {}

    async def restore_from_container(self, container: Container, alloc_map: AbstractAllocMap) -> None:
        """Does nothing, and is never called: the agent itself stores the allocations of workloads.

        In v1 this method restores the allocations of a container.
        """

    async def get_attached_devices(self, device_alloc: DeviceAllocation) -> Sequence[DeviceModelInfo]:
        return []

    async def get_docker_networks(self, device_alloc: DeviceAllocation) -> list[str]:
        return []

    async def generate_mounts(self, source_path: Path, device_alloc: DeviceAllocation) -> list[MountInfo]:
        return []

    def get_additional_gids(self) -> list[int]:
        return []

    def get_additional_allowed_syscalls(self) -> list[str]:
        return []

    async def gather_node_measures(self, ctx: StatContext) -> Sequence[NodeMeasurement]:
        return []

    async def gather_container_measures(
        self, ctx: StatContext, container_ids: Sequence[str]
    ) -> Sequence[ContainerMeasurement]:
        return []

    async def gather_process_measures(
        self, ctx: StatContext, pid_map: MutableMapping[int, str]
    ) -> Sequence[ProcessMeasurement]:
        return []
