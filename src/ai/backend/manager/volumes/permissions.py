"""Computes the permissions on storage hosts (spec 03-01, "Volume-level permissions")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from ai.backend.common.errors import Forbidden
from ai.backend.common.folders import HostPermission
from ai.backend.common.ids import GroupId
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import scope_of
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.volumes.gateway import VolumeGateway
from ai.backend.manager.volumes.model import HostRights

_PERMISSION_OF_WORD = {permission.value: permission for permission in HostPermission}
_ACTION_OF_PERMISSION = {
    HostPermission.CREATE: "create folders",
    HostPermission.MODIFY: "change folders",
    HostPermission.DELETE: "delete folders",
    HostPermission.MOUNT: "mount folders in sessions",
    HostPermission.UPLOAD: "upload files",
    HostPermission.DOWNLOAD: "download files",
    HostPermission.INVITE: "invite others",
    HostPermission.SET_USER_PERMISSION: "set what single users may do",
}


def merge_rights(host_maps: Iterable[Mapping[str, Any]]) -> HostRights:
    """Returns the union of several ``allowed_vfolder_hosts``; unknown permissions are ignored."""
    merged_rights: dict[str, frozenset[HostPermission]] = {}
    for permissions_of_host in host_maps:
        for host, permissions in permissions_of_host.items():
            granted_permissions = frozenset(
                _PERMISSION_OF_WORD[permission_word]
                for permission_word in permissions
                if permission_word in _PERMISSION_OF_WORD
            )
            merged_rights[host] = merged_rights.get(host, frozenset()) | granted_permissions
    return merged_rights


CLONE = "clone-vfolder"
"""The operation of cloning folders, which can be blocked on a volume, but which no policy grants."""


def require_permission(allowed_permissions: Collection[HostPermission], permission: HostPermission, host: str) -> None:
    """Raises Forbidden with the host and the missing permission if ``permission`` is not allowed."""
    if permission not in allowed_permissions:
        raise Forbidden(
            f"You may not {_ACTION_OF_PERMISSION[permission]} on {host[:128]!r}.",
            data={"host": host, "permission": permission.value},
        )


class FolderScope(msgspec.Struct, frozen=True):
    """Holds the groups, permissions and limits that apply to the folders of a caller.

    Attributes:
        groups: the caller's groups.
        stores: model store -> operations that it allows on each host.
        rights: operations that the caller's policies allow on each host.
        blocked: operations that are blocked on a host, also for superadmins.
        max_count: the largest number of folders (0: any).
        max_size: bytes of the caller's quota scope on each volume; None is no limit.
        max_folder_size: bytes of one folder; 0 is no limit.
    """

    groups: frozenset[GroupId]
    stores: Mapping[GroupId, HostRights]
    rights: HostRights
    blocked: Mapping[str, frozenset[str]]
    max_count: int
    max_size: int | None
    max_folder_size: int = 0

    @property
    def all_groups(self) -> frozenset[GroupId]:
        """Returns the groups whose folders the caller may read."""
        return self.groups | frozenset(self.stores)

    def allowed(self, host: str, group_id: GroupId | None = None) -> frozenset[HostPermission]:
        """Returns the operations that the caller may perform on a host. If ``group_id`` is a model store, its
        permissions are added.
        """
        allowed_permissions = self.rights.get(host, frozenset())
        if group_id is not None and group_id in self.stores:
            allowed_permissions |= self.stores[group_id].get(host, frozenset())
        blocked_words = self.blocked.get(host, frozenset())
        return frozenset(permission for permission in allowed_permissions if permission.value not in blocked_words)


class FolderScopes:
    """Computes the scope of a caller from domain, groups, policies, and the operations that are blocked on volumes."""

    def __init__(self, identities: IdentityStore, volumes: VolumeGateway) -> None:
        self._identities = identities
        self._volumes = volumes

    async def administered_groups(self, caller: Caller) -> frozenset[GroupId]:
        """Returns the groups in which the caller may create folders as an administrator, even without
        being a member.
        """
        scope = scope_of(caller, Operation.CREATE_GROUP_FOLDERS)
        if scope is Scope.NONE:
            return frozenset()
        domain_name = None if scope is Scope.ALL else caller.domain_name
        return frozenset(group.id for group in await self._identities.groups(domain_name=domain_name))

    async def of(self, caller: Caller, group_id: GroupId | None = None) -> FolderScope:
        """Returns the scope of a caller; ``group_id`` adds the rights of a group to which the caller
        does not belong.
        """
        user_scope = await self._identities.user_scope(caller.domain_name, caller.user_id, caller.resource_policy)
        groups = list(user_scope.groups)
        own_ids = frozenset(group.id for group in groups)
        if group_id is not None and group_id not in own_ids:
            groups += [group for group in await self._identities.groups() if group.id == group_id]
        rights_sources = (user_scope.domain, user_scope.policy, *groups)
        rights = merge_rights(source.allowed_vfolder_hosts for source in rights_sources if source is not None)
        folder_limits = [
            policy.max_vfolder_count for policy in (user_scope.policy, user_scope.storage_policy) if policy is not None
        ]
        size_limit = user_scope.storage_policy.max_quota_scope_size if user_scope.storage_policy is not None else -1
        return FolderScope(
            groups=own_ids,
            stores={group.id: merge_rights([group.allowed_vfolder_hosts]) for group in user_scope.model_stores},
            rights=rights,
            blocked=await self._volumes.blocked(),
            max_count=min((folder_limit for folder_limit in folder_limits if folder_limit), default=0),
            max_size=size_limit if size_limit >= 0 else None,
            max_folder_size=user_scope.policy.max_vfolder_size if user_scope.policy is not None else 0,
        )
