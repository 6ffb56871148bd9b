"""GraphQL fields of volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ariadne import ObjectType, QueryType

from ai.backend.common.errors import BackendError, NotFound
from ai.backend.common.folders import HostPermission
from ai.backend.manager.graphql import values
from ai.backend.manager.graphql.context import Info, context_of, page_of
from ai.backend.manager.query.memory import select
from ai.backend.manager.query.model import ListQuery
from ai.backend.manager.volumes.model import Volume

query = QueryType()
volume_type = ObjectType("StorageVolume")


@query.field("vfolder_host_permissions")
async def vfolder_host_permissions(_: Any, info: Info) -> values.View:
    context_of(info)
    return {"vfolder_host_permission_list": [permission.value for permission in HostPermission]}


@dataclass(frozen=True, slots=True)
class _VolumeItem:
    """Holds a volume under the field names by which clients filter and order."""

    id: str
    backend: str
    fsprefix: str
    path: str
    capabilities: Sequence[str]

    @classmethod
    def of(cls, volume: Volume) -> _VolumeItem:
        return cls(volume.host, volume.backend, volume.fsprefix, volume.path, list(volume.capabilities))


@query.field("storage_volume_list")
async def storage_volume_list(_: Any, info: Info, **args: Any) -> values.View:
    context = context_of(info)
    volumes = [_VolumeItem.of(volume) for volume in await context.services.volumes.all(context.caller)]
    page = select(volumes, ListQuery(**page_of(args)), default="id", descending=False)
    return {"items": [asdict(volume) for volume in page.items], "total_count": page.total_count}


@query.field("storage_volume")
async def storage_volume(_: Any, info: Info, id: str) -> values.View | None:  # noqa: A002  # the wire's name
    context = context_of(info)
    try:
        return asdict(_VolumeItem.of(await context.services.volumes.get(context.caller, id)))
    except NotFound:
        return None


@volume_type.field("hardware_metadata")
@volume_type.field("performance_metric")
@volume_type.field("usage")
async def volume_detail(view: values.View, info: Info) -> str | None:
    """Resolves details of a volume; null where the storage proxy reports none."""
    context = context_of(info)
    volumes = context.services.volumes
    try:
        match info.field_name:
            case "hardware_metadata":
                return values.json_or_null(asdict(await volumes.health(context.caller, view["id"])))
            case "performance_metric":
                return values.json_or_null(dict(await volumes.metric(context.caller, view["id"])))
            case _:
                return values.json_or_null(dict(await volumes.usage(context.caller, view["id"])))
    except BackendError:
        return None


VOLUME_BINDABLES = (query, volume_type)
