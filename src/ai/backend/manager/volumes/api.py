"""REST routes about storage hosts and the file systems of the nodes, for superadmins (client wire contract 2.5)."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from msgspec import Meta

from ai.backend.common.errors import NotSupported
from ai.backend.infra.http.fields import Word
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import STORAGE_PROBLEMS, caller_of
from ai.backend.manager.volumes.service import VolumeService

_Option = Annotated[str, Meta(max_length=4_096)]


class HostQuery(Schema, frozen=True):
    """Names a storage host."""

    folder_host: Word


class FstabQuery(Schema, frozen=True):
    """Names the agent whose file systems are listed."""

    agent_id: Word | None = None


class MountBody(Schema, frozen=True):
    """Names a file system to mount or unmount, as the published client sends it."""

    name: Word
    fs_location: _Option | None = None
    options: _Option | None = None
    edit_fstab: bool = False


class MetricReply(TypedDict):
    """The I/O counters of a volume, by name."""

    metric: dict[str, float]


class MountsView(TypedDict):
    success: bool
    mounts: list[str]
    message: str


class MountsReply(TypedDict):
    """The file systems of volumes, by storage proxy; ``agents`` is empty, for the published client."""

    manager: MountsView
    storage_proxy: dict[str, MountsView]
    agents: dict[str, MountsView]


class VolumesApi:
    """Shows volumes and mounts. Nodes mount file systems with their own tools, so requests to mount are refused."""

    problems = STORAGE_PROBLEMS

    def __init__(self, volumes: VolumeService) -> None:
        self._volumes = volumes

    @route("GET", "/folders/_/perf-metric", query=HostQuery)
    async def metric(self, call: Call[Nothing, HostQuery]) -> MetricReply:
        """Returns the I/O counters of a volume."""
        return {"metric": dict(await self._volumes.metric(caller_of(call), call.query.folder_host))}

    @route("GET", "/folders/_/mounts")
    async def mounts(self, call: Call) -> MountsReply:
        """Lists the file systems under the volumes of each storage proxy (spec 03-01)."""
        mounts_by_proxy = await self._volumes.mounts(caller_of(call))
        lines = {
            proxy: [
                f"{mount.source} on {mount.mount_point} type {mount.fstype}: {mount.volume} at {mount.path}"
                for mount in mounts
            ]
            for proxy, mounts in mounts_by_proxy.items()
        }
        paths = [mount.path for mounts in mounts_by_proxy.values() for mount in mounts]
        return {
            "manager": _mounts_view(paths),
            "storage_proxy": {proxy: _mounts_view(mounts) for proxy, mounts in lines.items()},
            "agents": {},
        }

    @route("GET", "/folders/_/fstab", query=FstabQuery)
    @route("POST", "/folders/_/mounts", body=MountBody, audited=False)
    async def mount(self, call: Call[Any, Any]) -> None:
        """Refuses: nodes manage and mount file systems with their own tools."""
        await self._volumes.all(caller_of(call))
        raise NotSupported("This server mounts no file systems: do so on the nodes, and name them as volumes.")

    @route("DELETE", "/folders/_/mounts", query=MountBody, audited=False)
    async def unmount(self, call: Call[Nothing, MountBody]) -> None:
        """Refuses: nodes unmount file systems with their own tools."""
        await self.mount(call)


def _mounts_view(mounts: list[str]) -> MountsView:
    return {"success": True, "mounts": mounts, "message": ""}
