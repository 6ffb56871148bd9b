"""Virtual folders, storage volumes and quota scopes (spec 03-09, client wire contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from ariadne import MutationType, ObjectType, QueryType

from ai.backend.common.errors import BackendError, NotFound, NotSupported
from ai.backend.common.folders import HostPermission
from ai.backend.common.ids import GroupId, UserId
from ai.backend.manager.api.graphql import views
from ai.backend.manager.api.graphql.limits import MAX_PAGE
from ai.backend.manager.api.graphql.resolvers import Context, Info, context_of, page_of
from ai.backend.manager.model.folder import FolderKind, Volume
from ai.backend.manager.model.query import ListQuery
from ai.backend.manager.model.selecting import select
from ai.backend.manager.services.folders.bundle import Folders

query = QueryType()
mutation = MutationType()
keypair_type = ObjectType("KeyPair")
volume_type = ObjectType("StorageVolume")
quota_scope_type = ObjectType("QuotaScope")

_KINDS: dict[str, FolderKind | None] = {
    "vfolder_list": None,
    "vfolder_own_list": "own",
    "vfolder_invited_list": "invited",
    "vfolder_project_list": "project",
}


def _folders(context: Context) -> Folders:
    if context.services.folders is None:
        raise NotSupported("This manager keeps no virtual folders.")
    return context.services.folders


# ---- folders ---------------------------------------------------------------------------------------------


@query.field("vfolder_list")
@query.field("vfolder_own_list")
@query.field("vfolder_invited_list")
@query.field("vfolder_project_list")
async def vfolder_list(_: Any, info: Info, **args: Any) -> views.View:
    context = context_of(info)
    if context.services.folders is None:
        return {"items": [], "total_count": 0}
    owner: UserId | None = None
    if args.get("access_key"):
        try:
            owner = (await context.services.identity.keypair(context.caller, args["access_key"])).user_id
        except NotFound:
            return {"items": [], "total_count": 0}
    page = await context.services.folders.life.page(
        context.caller,
        ListQuery(**page_of(args)),
        kind=_KINDS[info.field_name],
        group_id=GroupId(args["group_id"]) if args.get("group_id") is not None else None,
        domain_name=args.get("domain_name"),
        owner_id=owner,
    )
    return {"items": [views.folder_view(row) for row in page.items], "total_count": page.total_count}


@keypair_type.field("vfolders")
async def keypair_folders(view: views.View, info: Info) -> list[views.View]:
    """The newest of the user's own."""
    context = context_of(info)
    if context.services.folders is None:
        return []
    newest = ListQuery(limit=MAX_PAGE)
    page = await context.services.folders.life.page(context.caller, newest, owner_id=UserId(view["user"]))
    return [views.folder_view(row) for row in page.items if row.folder.user_id == view["user"]]


@query.field("vfolder")
async def vfolder(_: Any, info: Info, id: UUID) -> views.View | None:  # noqa: A002  # the wire's name
    context = context_of(info)
    try:
        return views.folder_view((await _folders(context).life.get(context.caller, str(id))).row)
    except NotFound:
        return None


@query.field("vfolder_host_permissions")
async def vfolder_host_permissions(_: Any, info: Info) -> views.View:
    context_of(info)
    return {"vfolder_host_permission_list": [permission.value for permission in HostPermission]}


# ---- volumes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Listed:
    """A volume under the names by which clients filter and order."""

    id: str
    backend: str
    fsprefix: str
    path: str
    capabilities: Sequence[str]

    @classmethod
    def of(cls, volume: Volume) -> _Listed:
        return cls(volume.host, volume.backend, volume.fsprefix, volume.path, list(volume.capabilities))


@query.field("storage_volume_list")
async def storage_volume_list(_: Any, info: Info, **args: Any) -> views.View:
    context = context_of(info)
    found = [_Listed.of(volume) for volume in await _folders(context).volumes.all(context.caller)]
    page = select(found, ListQuery(**page_of(args)), default="id", descending=False)
    return {"items": [asdict(volume) for volume in page.items], "total_count": page.total_count}


@query.field("storage_volume")
async def storage_volume(_: Any, info: Info, id: str) -> views.View | None:  # noqa: A002  # the wire's name
    context = context_of(info)
    try:
        return asdict(_Listed.of(await _folders(context).volumes.get(context.caller, id)))
    except NotFound:
        return None


@volume_type.field("hardware_metadata")
@volume_type.field("performance_metric")
@volume_type.field("usage")
async def volume_detail(view: views.View, info: Info) -> str | None:
    """Null where the storage proxy does not tell it."""
    context = context_of(info)
    volumes = _folders(context).volumes
    try:
        match info.field_name:
            case "hardware_metadata":
                return views.json_or_null(asdict(await volumes.health(context.caller, view["id"])))
            case "performance_metric":
                return views.json_or_null(dict(await volumes.metric(context.caller, view["id"])))
            case _:
                return views.json_or_null(dict(await volumes.usage(context.caller, view["id"])))
    except BackendError:
        return None


# ---- quota scopes ----------------------------------------------------------------------------------------


@query.field("quota_scope")
async def quota_scope(_: Any, info: Info, storage_host_name: str, quota_scope_id: str) -> views.View:
    context = context_of(info)
    usage = await _folders(context).quotas.get(context.caller, storage_host_name, quota_scope_id)
    return views.quota_scope_view(storage_host_name, quota_scope_id, usage)


@quota_scope_type.field("details")
async def quota_scope_details(view: views.View, info: Info) -> views.View:
    """Of a scope that was just changed, as it is now."""
    if "details" in view:
        return dict(view["details"])
    told: views.View = await quota_scope(None, info, view["storage_host_name"], view["quota_scope_id"])
    return dict(told["details"])


@mutation.field("set_quota_scope")
@mutation.field("unset_quota_scope")
async def set_quota_scope(
    _: Any, info: Info, storage_host_name: str, quota_scope_id: str, props: views.View | None = None
) -> views.View:
    context = context_of(info)
    limit = props.get("hard_limit_bytes") if props is not None else None
    async with context.audited(info.field_name, "quota-scope", f"{quota_scope_id} {storage_host_name}"):
        await _folders(context).quotas.set_limit(context.caller, storage_host_name, quota_scope_id, limit)
    scope = {"id": f"{quota_scope_id}:{storage_host_name}", "quota_scope_id": quota_scope_id}
    return {"quota_scope": {**scope, "storage_host_name": storage_host_name}}


FOLDER_BINDABLES = (query, mutation, keypair_type, volume_type, quota_scope_type)
