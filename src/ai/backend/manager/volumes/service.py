"""Storage volumes as superadmins look at them (client wire contract 3.1, ``storage_volume``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ai.backend.common.errors import Forbidden, NotFound
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.volumes.gateway import VolumeGateway
from ai.backend.manager.volumes.model import Volume, VolumeHealth, VolumeMount


class VolumeService:
    """For superadmins; Forbidden for others. A host is ``proxy:volume``."""

    def __init__(self, volumes: VolumeGateway) -> None:
        self._volumes = volumes

    async def all(self, caller: Caller) -> Sequence[Volume]:
        """By host."""
        if not caller.is_superadmin:
            raise Forbidden("Only superadmins look at storage volumes.")
        return [volume for _, volume in sorted((await self._volumes.volumes()).items())]

    async def get(self, caller: Caller, host: str) -> Volume:
        """Raises NotFound."""
        for volume in await self.all(caller):
            if volume.host == host:
                return volume
        raise NotFound(f"There is no storage host {host[:64]!r} now.", data={"id": "unknown"})

    async def health(self, caller: Caller, host: str) -> VolumeHealth:
        """Whether it works."""
        return await self._volumes.volume_health((await self.get(caller, host)).host)

    async def usage(self, caller: Caller, host: str) -> Mapping[str, int]:
        """How large and how full it is."""
        return await self._volumes.volume_usage((await self.get(caller, host)).host)

    async def metric(self, caller: Caller, host: str) -> Mapping[str, float]:
        """What it has read and written."""
        return await self._volumes.volume_metric((await self.get(caller, host)).host)

    async def mounts(self, caller: Caller) -> Mapping[str, Sequence[VolumeMount]]:
        """Storage proxy -> what each of its volumes lies on; proxies that do not answer are left out."""
        await self.all(caller)
        return await self._volumes.mounts()
