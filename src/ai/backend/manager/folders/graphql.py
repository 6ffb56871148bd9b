"""Virtual folders, storage volumes and quota scopes (spec 03-09, client wire contract 3)."""

from __future__ import annotations

from operator import attrgetter
from typing import Any
from uuid import UUID

from ai.backend.common.errors import NotFound, NotSupported
from ai.backend.common.ids import GroupId, UserId
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.folders.model import FolderKind, FolderRow, ScopeUsage
from ai.backend.manager.graphql.context import Info, caller_of, context_of, list_all_pages, page_fields_of
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
_ORDER_ALIASES = {"user": "user_id", "group": "group_id"}


def quota_scope_view(host: str, scope: str, usage: ScopeUsage) -> View:
    """Converts a quota scope of a storage host and its usage to the GraphQL type.

    ``hard_limit_bytes`` is null without a limit; ``enforcement`` names the component that enforces the limit.
    """
    usage_fields = {"usage_bytes": usage.used_bytes, "usage_count": usage.file_count, "enforcement": usage.enforcement}
    return {**_scope_view(host, scope), "details": {**usage_fields, "hard_limit_bytes": usage.limit_bytes}}


def _scope_view(host: str, scope: str) -> View:
    return {"id": f"{scope}:{host}", "quota_scope_id": scope, "storage_host_name": host}


def folder_view(row: FolderRow) -> View:
    """Converts a folder to the GraphQL type, without its usage. The number of its files has no limit."""
    folder = row.folder
    owner = {"user": folder.user_id, "user_email": row.owner_email, "quota_scope_id": folder.quota_scope}
    group = {"group": folder.group_id, "group_name": row.group_name}
    enum_values = {
        name: getattr(folder, name).value for name in ("status", "usage_mode", "permission", "ownership_type")
    }
    return {**attributes_of(folder), "folder": folder, "max_files": 0, **owner, **group, **enum_values}


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
        empty_page: View = {"items": [], "total_count": 0}
        if self._folders is None:
            return empty_page
        owner: UserId | None = None
        if arguments.get("access_key"):
            try:
                owner = (await self._identity.keypair(caller_of(info), arguments["access_key"])).user_id
            except NotFound:
                return empty_page
        group_id = GroupId(arguments["group_id"]) if arguments.get("group_id") is not None else None
        options = {**arguments, "kind": _KIND_OF_FIELD[info.field_name], "group_id": group_id, "owner_id": owner}
        return await self._page(info, **options)

    async def _page(
        self,
        info: Info,
        *,
        kind: FolderKind | None = None,
        group_id: GroupId | None = None,
        domain_name: str | None = None,
        owner_id: UserId | None = None,
        **arguments: Any,
    ) -> View:
        folders, query = self._require_folders().service, ListQuery(**page_fields_of(arguments, _ORDER_ALIASES))
        selection: dict[str, Any] = {"group_id": group_id, "domain_name": domain_name, "owner_id": owner_id}
        page = await folders.page(caller_of(info), query, kind=kind, **selection)
        return {"items": [folder_view(row) for row in page.items], "total_count": page.total_count}

    @field("VirtualFolder", "num_files")
    @field("VirtualFolder", "cur_size")
    async def folder_usage(self, view: View, info: Info) -> int | None:
        """Returns the number or the total size in bytes of a folder's files, as its storage proxy counts them.

        Returns null for folders whose files are not counted, and if the storage proxy does not answer.
        """
        loader = context_of(info).loader("folder usage", self._require_folders().service.usages, attrgetter("id"))
        usage = await loader.get(view["folder"])
        if usage is None:
            return None
        return usage.files if info.field_name == "num_files" else usage.bytes

    @field("KeyPair", "vfolders")
    async def keypair_folders(self, view: View, info: Info) -> list[View]:
        """Returns the live folders of the user."""
        if self._folders is None:
            return []
        return await list_all_pages(self._page, info, "vfolder_list", kind="own", owner_id=UserId(view["user"]))

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
        """Returns the current usage and limit of a quota scope; reads them anew for a scope that was just changed."""
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
        hard_limit_bytes = props.get("hard_limit_bytes") if props is not None else None
        async with context.audit_change(info.field_name, "quota-scope", f"{quota_scope_id} {storage_host_name}"):
            await self._require_folders().quotas.set_limit(
                context.caller, storage_host_name, quota_scope_id, hard_limit_bytes
            )
        return {"quota_scope": _scope_view(storage_host_name, quota_scope_id)}
