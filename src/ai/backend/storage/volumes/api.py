"""Manager-facing routes of volumes and quota scopes (peer facts 5; docs/reference/storage-proxy-api.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from ai.backend.common.errors import InvalidInput, NotSupported
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.infra.http.routes import Call, route
from ai.backend.plugin.volume import VolumeCapability
from ai.backend.storage.volumes.quotas import QuotaAccounting
from ai.backend.storage.volumes.registry import Volumes
from ai.backend.storage.volumes.schemas import ScopeBody, ScopeParams, SomeVolumeParams, VolumeParams


@dataclass(slots=True)
class VolumeApi:
    """Routes about volumes and quota scopes."""

    registry: Volumes
    quota: QuotaAccounting
    node_id: str

    @route("GET", "/")
    async def info(self, call: Call) -> dict[str, str]:
        """Returns type and version of this API."""
        release = version("backendai")
        return {"status": "ok", "type": "manager-facing", "storage-proxy": release, "node-id": self.node_id}

    @route("GET", "/status")
    @route("GET", "/health")
    async def status(self, call: Call) -> dict[str, str]:
        """Returns the status ``ok`` while the API serves."""
        return {"status": "ok"}

    @route("GET", "/volumes")
    async def volumes(self, call: Call) -> dict[str, Any]:
        """Lists the volumes with their capabilities."""
        return {
            "volumes": [
                {
                    "name": volume.name,
                    "backend": volume.backend,
                    "path": str(volume.path),
                    "fsprefix": ".",
                    "capabilities": sorted(volume.capabilities),
                }
                for volume in self.registry
            ]
        }

    @route("GET", "/volume/hwinfo", query=VolumeParams)
    async def hwinfo(self, call: Call[Any, VolumeParams]) -> dict[str, Any]:
        """Returns the health of a volume."""
        problem = await self.registry.get(call.query.volume).check()
        return {"status": "unavailable" if problem else "healthy", "status_info": problem, "metadata": {}}

    @route("GET", "/volume/performance-metric", query=VolumeParams)
    async def metric(self, call: Call[Any, VolumeParams]) -> dict[str, Any]:
        """Returns the I/O counters of a volume."""
        volume = self.registry.get(call.query.volume)
        if VolumeCapability.METRIC not in volume.capabilities:
            raise NotSupported(f"The volume {volume.name} measures nothing.")
        return {"metric": asdict(await volume.metric())}

    @route("GET", "/volume/mounts", query=SomeVolumeParams)
    async def mounts(self, call: Call[Any, SomeVolumeParams]) -> dict[str, Any]:
        """Lists the file systems under all volumes, or under the named volume."""
        name = call.query.volume
        volumes = self.registry if name is None else [self.registry.get(name)]
        mounts = [(volume, await volume.mount()) for volume in volumes]
        return {
            "mounts": [
                {"volume": volume.name, "path": str(volume.path), **asdict(mount)}
                for volume, mount in mounts
                if mount is not None
            ]
        }

    @route("GET", "/folder/fs-usage", query=VolumeParams)
    async def fs_usage(self, call: Call[Any, VolumeParams]) -> dict[str, int]:
        """Returns capacity and usage of a volume."""
        return asdict(await self.registry.get(call.query.volume).usage())

    @route("POST", "/quota-scope", body=ScopeBody)
    async def create_scope(self, call: Call[ScopeBody]) -> None:
        """Creates a quota scope."""
        body = call.body
        volume, scope = self.registry.get(body.volume), QuotaScopeId.parse(body.qsid)
        await volume.create_scope(scope)
        if body.options is not None:
            await volume.set_scope_limit(scope, body.options.limit_bytes)

    @route("GET", "/quota-scope", query=ScopeParams)
    async def describe_scope(self, call: Call[Any, ScopeParams]) -> dict[str, Any]:
        """Returns usage and limit of a quota scope."""
        volume, scope = self.registry.get(call.query.volume), QuotaScopeId.parse(call.query.qsid)
        state = await self.quota.describe(volume, scope)
        return {
            "used_bytes": state.used,
            "file_count": state.files,
            "limit_bytes": -1 if state.limit is None else state.limit,
            "enforcement": state.enforcement,
        }

    @route("PATCH", "/quota-scope", body=ScopeBody)
    async def limit_scope(self, call: Call[ScopeBody]) -> None:
        """Sets the limit of a quota scope."""
        body = call.body
        if body.options is None:
            raise InvalidInput("There are no options.", data={"options": "required"})
        await self.registry.get(body.volume).set_scope_limit(QuotaScopeId.parse(body.qsid), body.options.limit_bytes)

    @route("DELETE", "/quota-scope/quota", query=ScopeParams)
    async def unlimit_scope(self, call: Call[Any, ScopeParams]) -> None:
        """Removes the limit of a quota scope."""
        await self.registry.get(call.query.volume).set_scope_limit(QuotaScopeId.parse(call.query.qsid), None)
