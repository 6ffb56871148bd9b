"""Virtual folders, storage volumes and quota scopes (spec 03-09, client wire contract 3)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ai.backend.common.errors import NotFound, NotSupported
from ai.backend.common.ids import GroupId, UserId
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.folders.model import FolderKind, FolderRow, ScopeUsage
from ai.backend.manager.graphql.context import Info, caller_of, context_of, page_of
from ai.backend.manager.graphql.limits import MAX_PAGE
from ai.backend.manager.graphql.resolvers import field, mutation, query
from ai.backend.manager.graphql.values import View, attributes_of
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.query.model import ListQuery

_KIND_OF_FIELD: dict[str, FolderKind | None] = {
    "vfolder_list": None,
    "vfolder_own_list": "own",
    "vfolder_invited_list": "invited",
    "vfolder_project_list": "project",
}


def quota_scope_view(host: str, scope: str, usage: ScopeUsage) -> View:
    """Returns a quota scope; ``hard_limit_bytes`` null means no limit, ``enforcement`` names who enforces it."""
    details = {"usage_bytes": usage.used_bytes, "usage_count": usage.file_count, "enforcement": usage.enforcement}
    return {**_scope_view(host, scope), "details": {**details, "hard_limit_bytes": usage.limit_bytes}}


def _scope_view(host: str, scope: str) -> View:
    return {"id": f"{scope}:{host}", "quota_scope_id": scope, "storage_host_name": host}


def folder_view(row: FolderRow) -> View:
    """Returns a folder. File counts and sizes are zero: the storage proxy would have to count them for each folder."""
    folder = row.folder
    counts = {"max_files": 0, "num_files": 0, "cur_size": 0}
    owner = {"user": folder.user_id, "user_email": row.owner_email, "quota_scope_id": folder.quota_scope}
    group = {"group": folder.group_id, "group_name": row.group_name}
    words = {name: getattr(folder, name).value for name in ("status", "usage_mode", "permission", "ownership_type")}
    return {**attributes_of(folder), **counts, **owner, **group, **words}


class FolderResolvers:
    """Answers the GraphQL fields of virtual folders and quota scopes."""

    def __init__(self, folders: Folders | None, identity: IdentityService) -> None:
        self._folders = folders
        self._identity = identity

    def _require_folders(self) -> Folders:
        if self._folders is None:
            raise NotSupported("This manager keeps no virtual folders.")
        return self._folders

    @query("vfolder_list")
    @query("vfolder_own_list")
    @query("vfolder_invited_list")
    @query("vfolder_project_list")
    async def vfolder_list(self, info: Info, **arguments: Any) -> View:
        empty: View = {"items": [], "total_count": 0}
        if self._folders is None:
            return empty
        owner: UserId | None = None
        if arguments.get("access_key"):
            try:
                owner = (await self._identity.keypair(caller_of(info), arguments["access_key"])).user_id
            except NotFound:
                return empty
        group_id, domain_name = arguments.get("group_id"), arguments.get("domain_name")
        page = await self._folders.service.page(
            caller_of(info),
            ListQuery(**page_of(arguments)),
            kind=_KIND_OF_FIELD[info.field_name],
            group_id=GroupId(group_id) if group_id is not None else None,
            domain_name=domain_name,
            owner_id=owner,
        )
        return {"items": [folder_view(row) for row in page.items], "total_count": page.total_count}

    @field("KeyPair", "vfolders")
    async def keypair_folders(self, view: View, info: Info) -> list[View]:
        """Returns the newest folders of the user."""
        if self._folders is None:
            return []
        newest = ListQuery(limit=MAX_PAGE)
        page = await self._folders.service.page(caller_of(info), newest, owner_id=UserId(view["user"]))
        return [folder_view(row) for row in page.items if row.folder.user_id == view["user"]]

    @query("vfolder")
    async def vfolder(self, info: Info, id: UUID) -> View | None:  # noqa: A002  # the wire's name
        try:
            return folder_view((await self._require_folders().service.get(caller_of(info), str(id))).row)
        except NotFound:
            return None

    @query("quota_scope")
    async def quota_scope(self, info: Info, storage_host_name: str, quota_scope_id: str) -> View:
        usage = await self._require_folders().quotas.get(caller_of(info), storage_host_name, quota_scope_id)
        return quota_scope_view(storage_host_name, quota_scope_id, usage)

    @field("QuotaScope", "details")
    async def quota_scope_details(self, view: View, info: Info) -> View:
        """Returns the current usage; the usage is missing from the view of a scope that was just changed."""
        if "details" in view:
            return dict(view["details"])
        scope = await self.quota_scope(info, view["storage_host_name"], view["quota_scope_id"])
        return dict(scope["details"])

    @mutation("set_quota_scope")
    @mutation("unset_quota_scope")
    async def set_quota_scope(
        self, info: Info, storage_host_name: str, quota_scope_id: str, props: View | None = None
    ) -> View:
        context = context_of(info)
        limit = props.get("hard_limit_bytes") if props is not None else None
        async with context.audited(info.field_name, "quota-scope", f"{quota_scope_id} {storage_host_name}"):
            await self._require_folders().quotas.set_limit(context.caller, storage_host_name, quota_scope_id, limit)
        return {"quota_scope": _scope_view(storage_host_name, quota_scope_id)}
