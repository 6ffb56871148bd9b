"""Declares the interface to the volumes of the storage proxies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ai.backend.manager.volumes.model import Volume, VolumeHealth, VolumeMount


class VolumeGateway(Protocol):
    """Describes the volumes of storage proxies; a host is written ``proxy:volume``. Raises Unavailable while its proxy
    does not answer, and NotFound.
    """

    async def volumes(self) -> Mapping[str, Volume]:
        """Returns the volumes of every proxy that answers, by host."""
        ...

    async def default_host(self) -> str | None:
        """Returns the host for new folders whose request names no host, or None."""
        ...

    async def blocked(self) -> Mapping[str, frozenset[str]]:
        """Returns, by host, the operations that nobody may use there: HostPermission values and ``clone-vfolder``."""
        ...

    async def volume_health(self, host: str) -> VolumeHealth: ...
    async def volume_usage(self, host: str) -> Mapping[str, int]:
        """Returns the ``capacity_bytes`` and the ``used_bytes`` of a volume."""
        ...

    async def volume_metric(self, host: str) -> Mapping[str, float]:
        """Returns the I/O counters of a volume. Raises BackendError where the volume measures nothing."""
        ...

    async def mounts(self) -> Mapping[str, Sequence[VolumeMount]]:
        """Returns, by proxy, the file systems under its volumes, for every proxy that answers."""
        ...
