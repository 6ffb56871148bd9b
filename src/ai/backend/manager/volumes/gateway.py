"""Port to the volumes of the storage proxies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ai.backend.manager.volumes.model import Volume, VolumeHealth, VolumeMount


class VolumeGateway(Protocol):
    """Describes volumes; a host is ``proxy:volume``. Raises Unavailable while its proxy does not answer, and
    NotFound."""

    async def volumes(self) -> Mapping[str, Volume]:
        """Returns host -> volume for every proxy that answers."""
        ...

    async def default_host(self) -> str | None:
        """Returns the host of folders whose request names none."""
        ...

    async def blocked(self) -> Mapping[str, frozenset[str]]:
        """Returns host -> operations that nobody may use there: HostPermission values and ``clone-vfolder``."""
        ...

    async def volume_health(self, host: str) -> VolumeHealth: ...
    async def volume_usage(self, host: str) -> Mapping[str, int]:
        """Returns ``capacity_bytes`` and ``used_bytes``."""
        ...

    async def volume_metric(self, host: str) -> Mapping[str, float]:
        """Returns I/O counters. Raises BackendError where the volume measures nothing."""
        ...

    async def mounts(self) -> Mapping[str, Sequence[VolumeMount]]:
        """Returns proxy -> the file systems under its volumes, for every proxy that answers."""
        ...
