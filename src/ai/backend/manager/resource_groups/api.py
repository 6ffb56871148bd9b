"""REST routes of resource groups."""

from __future__ import annotations

from typing import TypedDict

from ai.backend.infra.http.fields import Name
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.requests import OBJECT_PROBLEMS, caller_of
from ai.backend.manager.resource_groups.service import ResourceGroupService


class GroupsQuery(Schema, frozen=True):
    group: Name | None = None


class GroupItem(TypedDict):
    name: str


class GroupsReply(TypedDict):
    scaling_groups: list[GroupItem]


class ResourceGroupsApi:
    """The route that lists the resource groups of the caller."""

    problems = OBJECT_PROBLEMS

    def __init__(self, resource_groups: ResourceGroupService) -> None:
        self._resource_groups = resource_groups

    @route("GET", "/scaling-groups", query=GroupsQuery)
    async def scaling_groups(self, call: Call[Nothing, GroupsQuery]) -> GroupsReply:
        """Lists the resource groups that the caller may use."""
        groups = await self._resource_groups.available_groups(caller_of(call), group=call.query.group)
        return {"scaling_groups": [{"name": group.name} for group in groups]}
