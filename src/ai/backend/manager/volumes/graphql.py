"""GraphQL fields of volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from ai.backend.common.errors import BackendError, NotFound
from ai.backend.common.folders import HostPermission
from ai.backend.manager.graphql.context import Info, caller_of, page_fields_of
from ai.backend.manager.graphql.resolvers import field, query
from ai.backend.manager.graphql.values import View, json_or_null
from ai.backend.manager.query.memory import select
from ai.backend.manager.query.model import ListQuery
from ai.backend.manager.volumes.model import Volume
from ai.backend.manager.volumes.service import VolumeService


class _VolumeItem(msgspec.Struct, frozen=True):
    """A volume under the field names by which clients filter and order."""

    id: str
    backend: str
    fsprefix: str
    path: str
    capabilities: Sequence[str]

    @classmethod
    def of(cls, volume: Volume) -> _VolumeItem:
        return cls(volume.host, volume.backend, volume.fsprefix, volume.path, list(volume.capabilities))


class VolumeResolvers:
    """Answers the GraphQL fields of storage volumes."""

    def __init__(self, volumes: VolumeService) -> None:
        self._volumes = volumes

    @query("vfolder_host_permissions")
    async def vfolder_host_permissions(self, info: Info) -> View:
        return {"vfolder_host_permission_list": [permission.value for permission in HostPermission]}

    @query("storage_volume_list")
    async def storage_volume_list(self, info: Info, **args: Any) -> View:
        volumes = [_VolumeItem.of(volume) for volume in await self._volumes.all(caller_of(info))]
        page = select(volumes, ListQuery(**page_fields_of(args)), default_field="id", descending=False)
        return {"items": [asdict(volume) for volume in page.items], "total_count": page.total_count}

    @query("storage_volume")
    async def storage_volume(self, info: Info, id: str) -> View | None:  # noqa: A002  # the wire's name
        try:
            return asdict(_VolumeItem.of(await self._volumes.get(caller_of(info), id)))
        except NotFound:
            return None

    @field("StorageVolume", "hardware_metadata")
    @field("StorageVolume", "performance_metric")
    @field("StorageVolume", "usage")
    async def volume_detail(self, view: View, info: Info) -> str | None:
        """Returns a detail of a volume as JSON; null where the storage proxy does not report that detail."""
        volumes, caller, host = self._volumes, caller_of(info), view["id"]
        try:
            match info.field_name:
                case "hardware_metadata":
                    return json_or_null(asdict(await volumes.health(caller, host)))
                case "performance_metric":
                    return json_or_null(dict(await volumes.metric(caller, host)))
                case _:
                    return json_or_null(dict(await volumes.usage(caller, host)))
        except BackendError:
            return None
