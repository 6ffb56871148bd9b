"""REST routes of resource groups."""

from __future__ import annotations

from typing import Any

from ai.backend.infra.http.fields import Name
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.identity.service import IdentityService


class GroupsQuery(Schema, frozen=True):
    group: Name | None = None


class ResourceGroupsApi:
    """The route that lists the resource groups of the caller."""

    def __init__(self, identity: IdentityService) -> None:
        self._identity = identity

    @route("GET", "/scaling-groups", query=GroupsQuery)
    async def scaling_groups(self, call: Call[Nothing, GroupsQuery]) -> dict[str, Any]:
        """List the resource groups that the caller may use."""
        groups = await self._identity.resource_groups(caller_of(call), group=call.query.group)
        return {"scaling_groups": [{"name": group.name} for group in groups]}
