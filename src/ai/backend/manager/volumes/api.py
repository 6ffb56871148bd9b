"""What superadmins ask about storage hosts and the nodes' file systems (client wire contract 2.5)."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import NotSupported
from ai.backend.infra.http.routes import Call, Nothing, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.folders import schemas as schema
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.volumes import schemas


class FolderHostsApi:
    """File systems are mounted with the tools of the node: the API shows them and changes none (decision 0090)."""

    def __init__(self, folders: Folders) -> None:
        self._life = folders.life
        self._volumes = folders.volumes
        self._quotas = folders.quotas

    @route("GET", "/folders/_/perf-metric", query=schemas.HostQuery)
    async def metric(self, call: Call[Nothing, schemas.HostQuery]) -> dict[str, Any]:
        """What a volume has read and written."""
        return {"metric": dict(await self._volumes.metric(caller_of(call), call.query.folder_host))}

    @route("GET", "/folders/_/mounts")
    async def mounts(self, call: Call) -> dict[str, Any]:
        """What the volumes of each storage proxy lie on; agents see them at the same paths (spec 03-01)."""
        told = await self._volumes.mounts(caller_of(call))
        return {
            "manager": {"success": True, "mounts": [m.path for mounts in told.values() for m in mounts], "message": ""},
            "storage_proxy": {
                proxy: {
                    "success": True,
                    "mounts": [
                        f"{m.source} on {m.mount_point} type {m.fstype}: {m.volume} at {m.path}" for m in mounts
                    ],
                    "message": "",
                }
                for proxy, mounts in told.items()
            },
            "agents": {},
        }

    @route("GET", "/folders/_/fstab", query=schemas.FstabQuery)
    async def fstab(self, call: Call[Nothing, schemas.FstabQuery]) -> None:
        """Refused: file systems are the affair of the node."""
        await self._refuse(call)

    @route("POST", "/folders/_/mounts", body=schemas.MountBody, audited=False)
    async def mount(self, call: Call[schemas.MountBody]) -> None:
        """Refused: file systems are mounted with the tools of the node."""
        await self._refuse(call)

    @route("DELETE", "/folders/_/mounts", query=schemas.MountBody, audited=False)
    async def unmount(self, call: Call[Nothing, schemas.MountBody]) -> None:
        """Refused: file systems are unmounted with the tools of the node."""
        await self._refuse(call)

    async def _refuse(self, call: Call[Any, Any]) -> None:
        await self._volumes.all(caller_of(call))
        raise NotSupported("This server mounts no file systems: do so on the nodes, and name them as volumes.")

    @route("GET", "/folders/_/quota", query=schema.QuotaQuery)
    async def quota(self, call: Call[Nothing, schema.QuotaQuery]) -> dict[str, Any]:
        """What the quota scope of a folder uses, and may use."""
        folder = (await self._life.get(caller_of(call), call.query.id)).folder
        usage = await self._quotas.get(caller_of(call), folder.host, folder.quota_scope)
        return {
            "quota_scope_id": folder.quota_scope,
            "used_bytes": usage.used_bytes,
            "limit_bytes": usage.limit_bytes,
            "enforcement": usage.enforcement,
        }

    @route("POST", "/folders/_/quota", body=schema.QuotaBody)
    async def set_quota(self, call: Call[schema.QuotaBody]) -> dict[str, Any]:
        """Limit the quota scope of a folder; for superadmins."""
        size = call.body.input.size_bytes
        folder = (await self._life.get(caller_of(call), call.body.id)).folder
        await self._quotas.set_limit(caller_of(call), folder.host, folder.quota_scope, size)
        return {"size_bytes": size}
