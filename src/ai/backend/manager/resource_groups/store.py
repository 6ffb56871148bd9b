"""Declares the store of resource groups, and what their service asks of higher features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ai.backend.common.ids import AgentId
from ai.backend.manager.resource_groups.model import Beneficiary, ResourceGroup


class ResourceGroupUse(Protocol):
    """Reports the living agents of a resource group, and the number of its live sessions."""

    async def living_agents(self, name: str) -> Sequence[AgentId]:
        """Returns the agents of a resource group that are alive."""

    async def count_live_sessions(self, name: str) -> int: ...


class ResourceGroupStore(Protocol):
    """Stores resource groups. Every method is one transaction."""

    async def put_resource_group(self, group: ResourceGroup, *, only_new: bool = False) -> None:
        """Inserts or replaces a resource group. Raises Conflict for an existing name if ``only_new``."""

    async def change_resource_group(self, name: str, **values: Any) -> ResourceGroup | None:
        """Changes fields of a resource group. Returns None if there is no such group."""

    async def delete_resource_group(self, name: str) -> bool:
        """Deletes a resource group with its associations. Returns False if there is no such group."""

    async def resource_group(self, name: str) -> ResourceGroup | None: ...
    async def resource_groups(
        self, beneficiaries: Sequence[Beneficiary] = (), *, is_active: bool | None = None
    ) -> list[ResourceGroup]:
        """Returns all resource groups, or only public ones and those that one of the beneficiaries may use."""

    async def associate(self, name: str, beneficiary: Beneficiary) -> None:
        """Allows a domain, group or keypair to use a resource group. Does nothing if the group is open already."""

    async def dissociate(self, name: str | None, beneficiary: Beneficiary) -> int:
        """Withdraws from a beneficiary the right to use the resource group ``name``, or all groups if ``name`` is None.
        Returns the number of removed associations.
        """
