"""Names of ``ai.backend.common.types`` and ``ai.backend.agent.types`` that v1 plugins use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, NewType, Self, TypedDict

from ai.backend.common import slots
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, KernelId, SessionId, SlotName
from ai.backend.common.slots import ResourceSlot

__all__ = [
    "PID", "AcceleratorMetadata", "AcceleratorNumberFormat", "AgentId", "BinarySize", "Container", "ContainerId",
    "DeviceAllocation", "DeviceId", "DeviceModelInfo", "DeviceName", "HardwareMetadata", "KernelId", "MetricKey",
    "MountInfo", "MountPermission", "MountTypes", "ResourceSlot", "SessionId", "SlotName", "SlotTypes",
]  # fmt: skip

MetricKey = NewType("MetricKey", str)
ContainerId = NewType("ContainerId", str)
PID = NewType("PID", int)
DeviceAllocation = Mapping[SlotName, Mapping[DeviceId, Decimal]]


class SlotTypes(StrEnum):
    COUNT = "count"
    BYTES = "bytes"
    UNIQUE = "unique"
    UNIFIED = "unified"
    """A slot type without a counterpart here. A plugin that uses it is refused."""


class MountTypes(StrEnum):
    BIND = "bind"
    VOLUME = "volume"
    TMPFS = "tmpfs"
    K8S_GENERIC = "k8s-generic"
    K8S_HOSTPATH = "k8s-hostpath"


class MountPermission(StrEnum):
    READ_ONLY = "ro"
    READ_WRITE = "rw"
    RW_DELETE = "wd"


class BinarySize(slots.BinarySize):
    """Represents a number of bytes, with the methods that v1 plugins call."""

    @classmethod
    def from_str(cls, text: str | int) -> Self:
        """Parses a size. Raises InvalidQuantity."""
        return cls.parse(text)

    @classmethod
    def finite_from_str(cls, text: str | int) -> Self:
        """Parses a size. Raises InvalidQuantity."""
        return cls.parse(text)

    def __format__(self, unit: str) -> str:
        """Formats the size in a unit (``k`` to ``e``), as the shortest exact text (``s`` or nothing) or an integer."""
        if unit in ("", "s"):
            return str(self)
        if unit in tuple("kmgtpe"):
            scaled_size = Decimal(int(self)) / 1024 ** ("kmgtpe".index(unit) + 1)
            return f"{scaled_size.normalize():f}{unit}"
        return int.__format__(self, unit)


class AcceleratorNumberFormat(TypedDict):
    binary: bool
    round_length: int


class AcceleratorMetadata(TypedDict):
    slot_name: str
    description: str
    human_readable_name: str
    display_unit: str
    number_format: AcceleratorNumberFormat
    display_icon: str


class HardwareMetadata(TypedDict):
    """Describes the state of the hardware. ``status`` is healthy, degraded, offline or unavailable."""

    status: str
    status_info: str | None
    metadata: dict[str, str]


class DeviceModelInfo(TypedDict):
    device_id: DeviceId
    model_name: str
    data: Mapping[str, Any]


@dataclass
class MountInfo:
    """Describes a host path to be shown in the container."""

    mode: MountTypes
    src_path: Path
    dst_path: Path


@dataclass(kw_only=True)
class Container:
    """Represents the argument of ``restore_from_container`` in the published agent. This agent makes none."""

    id: ContainerId
    status: str = ""
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[Any] = ()
    backend_obj: Any = None
