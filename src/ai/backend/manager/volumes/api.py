"""REST routes about storage hosts and the file systems of the nodes, for superadmins (client wire contract 2.5)."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import NotSupported
from ai.backend.infra.http.routes import Call, Nothing, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.volumes import schemas
from ai.backend.manager.volumes.service import VolumeService


class VolumesApi:
    """Shows volumes and mounts. Nodes mount file systems with their own tools, so requests to mount are refused."""

    def __init__(self, volumes: VolumeService) -> None:
        self._volumes = volumes

    @route("GET", "/folders/_/perf-metric", query=schemas.HostQuery)
    async def metric(self, call: Call[Nothing, schemas.HostQuery]) -> dict[str, Any]:
        """Returns the I/O counters of a volume."""
        return {"metric": dict(await self._volumes.metric(caller_of(call), call.query.folder_host))}

    @route("GET", "/folders/_/mounts")
    async def mounts(self, call: Call) -> dict[str, Any]:
        """Lists the file systems under the volumes of each storage proxy (spec 03-01)."""
        mounts_by_proxy = await self._volumes.mounts(caller_of(call))
        return {
            "manager": {
                "success": True,
                "mounts": [m.path for mounts in mounts_by_proxy.values() for m in mounts],
                "message": "",
            },
            "storage_proxy": {
                proxy: {
                    "success": True,
                    "mounts": [
                        f"{m.source} on {m.mount_point} type {m.fstype}: {m.volume} at {m.path}" for m in mounts
                    ],
                    "message": "",
                }
                for proxy, mounts in mounts_by_proxy.items()
            },
            "agents": {},
        }

    @route("GET", "/folders/_/fstab", query=schemas.FstabQuery)
    async def fstab(self, call: Call[Nothing, schemas.FstabQuery]) -> None:
        """Refuses: nodes manage their own file systems."""
        await self._refuse(call)

    @route("POST", "/folders/_/mounts", body=schemas.MountBody, audited=False)
    async def mount(self, call: Call[schemas.MountBody]) -> None:
        """Refuses: nodes mount file systems with their own tools."""
        await self._refuse(call)

    @route("DELETE", "/folders/_/mounts", query=schemas.MountBody, audited=False)
    async def unmount(self, call: Call[Nothing, schemas.MountBody]) -> None:
        """Refuses: nodes unmount file systems with their own tools."""
        await self._refuse(call)

    async def _refuse(self, call: Call[Any, Any]) -> None:
        await self._volumes.all(caller_of(call))
        raise NotSupported("This server mounts no file systems: do so on the nodes, and name them as volumes.")
