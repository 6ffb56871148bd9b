"""What may be done on which storage host (spec 03-01, "Volume-level permissions")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ai.backend.common.errors import Forbidden
from ai.backend.common.folders import HostPermission
from ai.backend.common.ids import GroupId
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity.host_permissions import _KNOWN, _WORDS
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.volumes.gateway import VolumeGateway
from ai.backend.manager.volumes.model import HostRights


def merge_rights(allowed: Iterable[Mapping[str, Any]]) -> HostRights:
    """What any of several ``allowed_vfolder_hosts`` gives. Unknown permissions give nothing."""
    merged: dict[str, frozenset[HostPermission]] = {}
    for hosts in allowed:
        for host, permissions in hosts.items():
            known = frozenset(_KNOWN[p] for p in permissions if p in _KNOWN)
            merged[host] = merged.get(host, frozenset()) | known
    return merged


CLONE = "clone-vfolder"
"""Blocked on a volume as HostPermission are, but given by none of the policies."""


def require(allowed: Collection[HostPermission], permission: HostPermission, host: str) -> None:
    """Raises Forbidden, which names the host and what is missing."""
    if permission not in allowed:
        raise Forbidden(
            f"You may not {_WORDS[permission]} on {host[:128]!r}.",
            data={"host": host, "permission": permission.value},
        )


@dataclass(frozen=True, slots=True)
class FolderScope:
    """What bounds a caller.

    Attributes:
        groups: those that they are in.
        stores: model stores, with what may be done on which host for the sake of each.
        rights: what they may do on which host.
        blocked: what nobody may do on a host, superadmins neither.
        max_count: how many folders they may have (0: any).
        max_size: bytes of their quota scope on each volume; None is no limit.
    """

    groups: frozenset[GroupId]
    stores: Mapping[GroupId, HostRights]
    rights: HostRights
    blocked: Mapping[str, frozenset[str]]
    max_count: int
    max_size: int | None

    @property
    def all_groups(self) -> frozenset[GroupId]:
        """Those whose folders the caller may read."""
        return self.groups | frozenset(self.stores)

    def allowed(self, host: str, group_id: GroupId | None = None) -> frozenset[HostPermission]:
        """On a host, for folders of that group if it is a model store."""
        mine = self.rights.get(host, frozenset())
        if group_id is not None and group_id in self.stores:
            mine |= self.stores[group_id].get(host, frozenset())
        blocked = self.blocked.get(host, frozenset())
        return frozenset(p for p in mine if p.value not in blocked)


class FolderScopes:
    """Says what bounds whom: the domain, the groups, the policies, and what is blocked on volumes."""

    def __init__(self, identities: IdentityStore, volumes: VolumeGateway) -> None:
        self._identities = identities
        self._volumes = volumes

    async def of(self, caller: Caller, group_id: GroupId | None = None) -> FolderScope:
        """``group_id`` adds the rights of a group that the caller is not in."""
        found = await self._identities.surroundings(caller.domain_name, caller.user_id, caller.resource_policy)
        groups = list(found.groups)
        mine = frozenset(g.id for g in groups)
        if group_id is not None and group_id not in mine:
            groups += [g for g in await self._identities.groups() if g.id == group_id]
        sources = (found.domain, found.policy, *groups)
        rights = merge_rights(source.allowed_vfolder_hosts for source in sources if source is not None)
        counts = [p.max_vfolder_count for p in (found.policy, found.storage_policy) if p is not None]
        size = found.storage_policy.max_quota_scope_size if found.storage_policy is not None else -1
        return FolderScope(
            groups=mine,
            stores={g.id: merge_rights([g.allowed_vfolder_hosts]) for g in found.model_stores},
            rights=rights,
            blocked=await self._volumes.blocked(),
            max_count=min((count for count in counts if count), default=0),
            max_size=size if size >= 0 else None,
        )
