"""Defines the interface of drivers that act on devices for operations (spec 02, goals: bare metal and IaaS
implementations).

A driver states what it can; what it cannot is refused before anything begins. ``tests/contract/kubeacc`` has the suite
that every driver passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

import msgspec

from ai.backend.common.device_operations import OperationVerb
from ai.backend.common.errors import InvalidInput
from ai.backend.kubeacc.crd.operations import Artifact
from ai.backend.kubeacc.crd.vocabulary import AcceleratorType, Attachment, AttachState, PowerState

ImageSource = Callable[[Artifact, BinaryIO, int], Awaitable[None]]
"""Writes an image of at most so many bytes to a file, which has its beginning already where an earlier attempt was
interrupted: a source goes on at the file's end, or empties it. Raises BackendError, OSError."""


class DriverDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a device that a driver reports.

    ``node_name`` None: a remote device that is attached nowhere, or to a machine that is no node. ``program`` None: the
    driver cannot tell.
    """

    device_id: str
    type: AcceleratorType = AcceleratorType.OTHER
    attachment: Attachment = Attachment.LOCAL
    node_name: str | None = None
    model: str = ""
    attach_state: AttachState = AttachState.ATTACHED
    power_state: PowerState = PowerState.UNKNOWN
    program: str | None = None
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)


class AbstractAcceleratorDriver(ABC):
    """Base class of drivers, which attach, program and diagnose devices. An action returns once it has had its effect.

    Every action is safe to repeat. Actions raise NotFound for an unknown device, Conflict while a workload holds it,
    InvalidInput for what the device cannot do, and an error that is ``retryable`` where the same action may succeed
    later.
    """

    name: ClassVar[str]
    """Letters, digits and hyphens; the ``driver`` of its accelerators."""
    operations: frozenset[OperationVerb] = frozenset()
    """The operations that the driver supports; ``discover`` and ``diagnose`` are possible with every one."""

    @classmethod
    def from_settings(cls, table: Mapping[str, Any]) -> Self:
        """Creates the driver from its table in the controllers' settings. Raises InvalidInput, which names the key."""
        if table:
            raise InvalidInput(f"the driver {cls.name} has no settings, but {', '.join(sorted(table))} is set")
        return cls()

    @property
    def image_sources(self) -> Mapping[str, ImageSource]:
        """Returns the image sources of the driver's IaaS, by the scheme of the URI."""
        return {}

    @abstractmethod
    async def discover(self) -> Sequence[DriverDevice]:
        """Returns all devices, attached or not attached."""

    async def attach(self, device_id: str, node_name: str) -> None:
        self._refuse(OperationVerb.ATTACH)

    async def detach(self, device_id: str) -> None:
        self._refuse(OperationVerb.DETACH)

    async def program(self, device_id: str, image: Path) -> None:
        """Loads an image whose digest and signature have been verified."""
        self._refuse(OperationVerb.PROGRAM)

    async def power(self, device_id: str, state: PowerState) -> None:
        self._refuse(OperationVerb.POWER)

    async def reset(self, device_id: str) -> None:
        self._refuse(OperationVerb.RESET)

    async def create_partition(self, device_id: str, profile: str) -> str:
        """Creates a partition and returns its id."""
        self._refuse(OperationVerb.PARTITION)
        return ""

    async def destroy_partition(self, device_id: str) -> None:
        self._refuse(OperationVerb.PARTITION)

    async def diagnose(self, device_id: str) -> Mapping[str, str]:
        """Returns facts about a device for people, without changing the device."""
        for device in await self.discover():
            if device.device_id == device_id:
                return {"attached": device.attach_state, "power": device.power_state, **device.properties}
        return {"attached": AttachState.UNKNOWN}

    def _refuse(self, verb: OperationVerb) -> None:
        supported_operations = ", ".join(sorted(self.operations)) or "nothing"
        raise InvalidInput(f"the driver {self.name} cannot {verb}; what it can: {supported_operations}")
