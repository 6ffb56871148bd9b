"""Shows storage volumes to superadmins (client wire contract 3.1, ``storage_volume``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ai.backend.common.errors import NotFound
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.volumes.gateway import VolumeGateway
from ai.backend.manager.volumes.model import Volume, VolumeHealth, VolumeMount


class VolumeService:
    """Describes volumes to superadmins, and raises Forbidden for other callers. A host is ``proxy:volume``."""

    def __init__(self, volumes: VolumeGateway) -> None:
        self._volumes = volumes

    async def all(self, caller: Caller) -> Sequence[Volume]:
        """Returns all volumes, sorted by host."""
        require(caller, Operation.SEE_ALL_HOSTS)
        return [volume for _, volume in sorted((await self._volumes.volumes()).items())]

    async def get(self, caller: Caller, host: str) -> Volume:
        """Returns a volume. Raises NotFound."""
        for volume in await self.all(caller):
            if volume.host == host:
                return volume
        raise NotFound(f"There is no storage host {host[:64]!r} now.", data={"id": "unknown"})

    async def health(self, caller: Caller, host: str) -> VolumeHealth:
        """Returns the health of a volume."""
        return await self._volumes.volume_health((await self.get(caller, host)).host)

    async def usage(self, caller: Caller, host: str) -> Mapping[str, int]:
        """Returns the capacity and the used bytes of a volume."""
        return await self._volumes.volume_usage((await self.get(caller, host)).host)

    async def metric(self, caller: Caller, host: str) -> Mapping[str, float]:
        """Returns the I/O counters of a volume."""
        return await self._volumes.volume_metric((await self.get(caller, host)).host)

    async def mounts(self, caller: Caller) -> Mapping[str, Sequence[VolumeMount]]:
        """Returns the mounts of volumes by storage proxy; proxies that do not answer are left out."""
        await self.all(caller)
        return await self._volumes.mounts()
