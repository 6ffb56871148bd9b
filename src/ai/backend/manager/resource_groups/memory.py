"""Stores resource groups in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AccessKey, DomainName, GroupId, ResourceGroupName
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.resource_groups.model import ResourceGroup


class MemoryResourceGroupStore:
    """Implements :class:`ai.backend.manager.resource_groups.store.ResourceGroupStore`."""

    def __init__(self) -> None:
        self._groups: dict[str, ResourceGroup] = {}
        self._links: set[tuple[str, str, str]] = set()

    async def put_resource_group(self, group: ResourceGroup, *, only_new: bool = False) -> None:
        check_fence()
        if only_new and group.name in self._groups:
            raise Conflict(f"{group.name!r} is taken already.", data={"name": "taken"})
        self._groups[group.name] = group

    async def change_resource_group(self, name: str, **values: Any) -> ResourceGroup | None:
        check_fence()
        if name in self._groups:
            self._groups[name] = replace(self._groups[name], **values)
        return self._groups.get(name)

    async def delete_resource_group(self, name: str) -> bool:
        check_fence()
        self._links = {link for link in self._links if link[0] != name}
        return self._groups.pop(name, None) is not None

    async def resource_group(self, name: str) -> ResourceGroup | None:
        return self._groups.get(name)

    async def resource_groups(
        self,
        *,
        domain_name: str | None = None,
        group_ids: Sequence[GroupId] = (),
        access_key: str | None = None,
        is_active: bool | None = None,
    ) -> list[ResourceGroup]:
        targets = {
            *({("domain", domain_name)} if domain_name is not None else ()),
            *(("group", str(g)) for g in group_ids),
            *({("keypair", access_key)} if access_key is not None else ()),
        }
        return [
            group
            for name, group in sorted(self._groups.items())
            if is_active in (None, group.is_active)
            and (not targets or group.is_public or any((name, *target) in self._links for target in targets))
        ]

    async def associate(
        self,
        resource_group: ResourceGroupName,
        *,
        domain_name: DomainName | None = None,
        group_id: GroupId | None = None,
        access_key: AccessKey | None = None,
    ) -> None:
        check_fence()
        self._links |= {(str(resource_group), *target) for target in _targets(domain_name, group_id, access_key)}

    async def dissociate(
        self,
        resource_group: ResourceGroupName | None,
        *,
        domain_name: DomainName | None = None,
        group_id: GroupId | None = None,
        access_key: AccessKey | None = None,
    ) -> int:
        check_fence()
        targets = _targets(domain_name, group_id, access_key)
        removed = {link for link in self._links if link[1:] in targets and resource_group in (None, link[0])}
        self._links -= removed
        return len(removed)

    def remove_links(self, kind: str, targets: Iterable[str]) -> None:
        """Removes the associations of deleted domains, groups or keypairs."""
        removed = {(kind, target) for target in targets}
        self._links = {link for link in self._links if link[1:] not in removed}


def _targets(
    domain_name: DomainName | None, group_id: GroupId | None, access_key: AccessKey | None
) -> set[tuple[str, str]]:
    targets = {"domain": domain_name, "group": group_id, "keypair": access_key}
    return {(kind, str(target)) for kind, target in targets.items() if target is not None}
