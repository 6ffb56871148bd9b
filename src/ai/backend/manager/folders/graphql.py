"""GraphQL fields of virtual folders and quota scopes (spec 03-09, client wire contract 3)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ariadne import MutationType, ObjectType, QueryType

from ai.backend.common.errors import NotFound, NotSupported
from ai.backend.common.ids import GroupId, UserId
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.folders.model import FolderKind, FolderRow, ScopeUsage
from ai.backend.manager.graphql import values
from ai.backend.manager.graphql.context import Context, Info, context_of, page_of
from ai.backend.manager.graphql.limits import MAX_PAGE
from ai.backend.manager.graphql.values import View
from ai.backend.manager.query.model import ListQuery

query = QueryType()
mutation = MutationType()
keypair_type = ObjectType("KeyPair")
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
async def vfolder_list(_: Any, info: Info, **args: Any) -> values.View:
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
    return {"items": [folder_view(row) for row in page.items], "total_count": page.total_count}


@keypair_type.field("vfolders")
async def keypair_folders(view: values.View, info: Info) -> list[values.View]:
    """Resolves the newest folders of the user."""
    context = context_of(info)
    if context.services.folders is None:
        return []
    newest = ListQuery(limit=MAX_PAGE)
    page = await context.services.folders.life.page(context.caller, newest, owner_id=UserId(view["user"]))
    return [folder_view(row) for row in page.items if row.folder.user_id == view["user"]]


@query.field("vfolder")
async def vfolder(_: Any, info: Info, id: UUID) -> values.View | None:  # noqa: A002  # the wire's name
    context = context_of(info)
    try:
        return folder_view((await _folders(context).life.get(context.caller, str(id))).row)
    except NotFound:
        return None


# ---- quota scopes ----------------------------------------------------------------------------------------


@query.field("quota_scope")
async def quota_scope(_: Any, info: Info, storage_host_name: str, quota_scope_id: str) -> values.View:
    context = context_of(info)
    usage = await _folders(context).quotas.get(context.caller, storage_host_name, quota_scope_id)
    return quota_scope_view(storage_host_name, quota_scope_id, usage)


@quota_scope_type.field("details")
async def quota_scope_details(view: values.View, info: Info) -> values.View:
    """Resolves the current usage of a scope that was just changed."""
    if "details" in view:
        return dict(view["details"])
    scope: values.View = await quota_scope(None, info, view["storage_host_name"], view["quota_scope_id"])
    return dict(scope["details"])


@mutation.field("set_quota_scope")
@mutation.field("unset_quota_scope")
async def set_quota_scope(
    _: Any, info: Info, storage_host_name: str, quota_scope_id: str, props: values.View | None = None
) -> values.View:
    context = context_of(info)
    limit = props.get("hard_limit_bytes") if props is not None else None
    async with context.audited(info.field_name, "quota-scope", f"{quota_scope_id} {storage_host_name}"):
        await _folders(context).quotas.set_limit(context.caller, storage_host_name, quota_scope_id, limit)
    scope = {"id": f"{quota_scope_id}:{storage_host_name}", "quota_scope_id": quota_scope_id}
    return {"quota_scope": {**scope, "storage_host_name": storage_host_name}}


FOLDER_BINDABLES = (query, mutation, keypair_type, quota_scope_type)


def quota_scope_view(host: str, scope: str, usage: ScopeUsage) -> View:
    """Returns the view of a quota scope; ``hard_limit_bytes`` null is no limit."""
    return {
        "id": f"{scope}:{host}",
        "quota_scope_id": scope,
        "storage_host_name": host,
        "details": {
            "usage_bytes": usage.used_bytes,
            "usage_count": usage.file_count,
            "hard_limit_bytes": usage.limit_bytes,
            "enforcement": usage.enforcement,
        },
    }


def folder_view(row: FolderRow) -> View:
    """Returns the view of a folder; its contents are not counted, because the proxy would have to walk the files."""
    folder = row.folder
    return {
        "id": folder.id,
        "host": folder.host,
        "quota_scope_id": folder.quota_scope,
        "name": folder.name,
        "user": folder.user_id,
        "user_email": row.owner_email,
        "group": folder.group_id,
        "group_name": row.group_name,
        "creator": folder.creator,
        "status": folder.status.value,
        "unmanaged_path": folder.unmanaged_path,
        "usage_mode": folder.usage_mode.value,
        "permission": folder.permission.value,
        "ownership_type": folder.ownership_type.value,
        "max_files": 0,
        "max_size": folder.max_size,
        "created_at": folder.created_at,
        "last_used": folder.last_used,
        "num_files": 0,
        "cur_size": 0,
        "cloneable": folder.cloneable,
    }
