"""Stores resource groups in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ai.backend.common.errors import Conflict
from ai.backend.manager.db.fence import check_fence
from ai.backend.manager.resource_groups.model import Beneficiary, ResourceGroup


class MemoryResourceGroupStore:
    """Implements :class:`ai.backend.manager.resource_groups.store.ResourceGroupStore`."""

    def __init__(self) -> None:
        self._groups: dict[str, ResourceGroup] = {}
        self._links: set[tuple[str, Beneficiary]] = set()

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
        self, beneficiaries: Sequence[Beneficiary] = (), *, is_active: bool | None = None
    ) -> list[ResourceGroup]:
        linked = {name for name, beneficiary in self._links if beneficiary in beneficiaries}
        return [
            group
            for name, group in sorted(self._groups.items())
            if is_active in (None, group.is_active) and (not beneficiaries or group.is_public or name in linked)
        ]

    async def associate(self, name: str, beneficiary: Beneficiary) -> None:
        check_fence()
        self._links.add((name, beneficiary))

    async def dissociate(self, name: str | None, beneficiary: Beneficiary) -> int:
        check_fence()
        removed = {link for link in self._links if link[1] == beneficiary and name in (None, link[0])}
        self._links -= removed
        return len(removed)

    def remove_links(self, kind: str, ids: Iterable[str]) -> None:
        """Removes the associations of deleted domains, groups or keypairs."""
        removed = {Beneficiary(kind, id_) for id_ in ids}
        self._links = {link for link in self._links if link[1] not in removed}
