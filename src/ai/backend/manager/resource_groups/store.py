"""Interfaces of resource groups: their store, and what their service asks higher features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ai.backend.common.ids import AgentId
from ai.backend.manager.resource_groups.model import Beneficiary, ResourceGroup


class ResourceGroupUse(Protocol):
    """Reports what uses a resource group."""

    async def living_agents(self, name: str) -> Sequence[AgentId]:
        """Returns the agents of the group that are alive."""

    async def count_live_sessions(self, name: str) -> int: ...


class ResourceGroupStore(Protocol):
    """Stores resource groups. Every method is one transaction."""

    async def put_resource_group(self, group: ResourceGroup, *, only_new: bool = False) -> None:
        """Inserts or replaces a group. Raises Conflict for an existing name if ``only_new``."""

    async def change_resource_group(self, name: str, **values: Any) -> ResourceGroup | None:
        """Sets fields of a group. Returns None if there is no such group."""

    async def delete_resource_group(self, name: str) -> bool:
        """Deletes a group with its associations. Returns False if there is no such group."""

    async def resource_group(self, name: str) -> ResourceGroup | None: ...
    async def resource_groups(
        self, beneficiaries: Sequence[Beneficiary] = (), *, is_active: bool | None = None
    ) -> list[ResourceGroup]:
        """Returns all groups, or the public ones and those open to any of the beneficiaries."""

    async def associate(self, name: str, beneficiary: Beneficiary) -> None:
        """Opens a group to a beneficiary. Does nothing if the group is open already."""

    async def dissociate(self, name: str | None, beneficiary: Beneficiary) -> int:
        """Removes the association with one group, or with all (None). Returns the number of removed associations."""
