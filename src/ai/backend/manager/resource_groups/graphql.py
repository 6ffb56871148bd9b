"""GraphQL queries and mutations of resource groups and their associations (spec 03-09, client wire contract 3.2)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from msgspec.structs import asdict

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import GroupId
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.graphql.context import Info, context_of, decode_json_text, run_mutation
from ai.backend.manager.graphql.resolvers import field, mutation, query
from ai.backend.manager.graphql.values import View
from ai.backend.manager.resource_groups.model import Beneficiary, ResourceGroup
from ai.backend.manager.resource_groups.service import ResourceGroupService


def _stored_values(props: View) -> View:
    return {
        name: decode_json_text(name, value) if name.endswith("_opts") else value
        for name, value in props.items()
        if value is not None
    }


def _beneficiary(domain: str | None, user_group: Any, access_key: str | None) -> Beneficiary:
    """Returns the domain, group or keypair that the arguments of a mutation name, to get or lose a resource group.

    The published client sends ``user_group`` as a UUID or as a string.
    """
    if domain:
        return Beneficiary.domain(domain)
    if not user_group:
        return Beneficiary.keypair(access_key or "")
    try:
        return Beneficiary.group(GroupId(UUID(str(user_group))))
    except ValueError:
        raise InvalidInput("user_group is a UUID.", data={"user_group": "malformed"}) from None


def resource_group_view(group: ResourceGroup, caller: Caller) -> View:
    shows_options = is_permitted(caller, Operation.SEE_SCHEDULER_OPTIONS)
    return {
        **asdict(group),
        "driver_opts": json.dumps(dict(group.driver_opts)) if shows_options else None,
        "scheduler_opts": json.dumps(dict(group.scheduler_opts)) if shows_options else None,
        "wsproxy_api_token": None,
    }


class ResourceGroupResolvers:
    """Answers the GraphQL fields of resource groups."""

    def __init__(self, resource_groups: ResourceGroupService) -> None:
        self._resource_groups = resource_groups

    @mutation("create_scaling_group")
    @mutation("modify_scaling_group")
    async def put(self, info: Info, name: str, props: View) -> View:
        context = context_of(info)
        service = self._resource_groups
        is_new = info.field_name.startswith("create")
        create_or_modify = service.create if is_new else service.modify
        # The manual knows groups that associations open, and no public ones; published clients always say which.
        values = _stored_values({**({"is_public": False} if is_new else {}), **props})
        return await run_mutation(
            info,
            "scaling_group",
            name,
            lambda: create_or_modify(context.caller, name, values),
            lambda group: resource_group_view(group, context.caller),
        )

    @mutation("delete_scaling_group")
    async def delete(self, info: Info, name: str) -> View:
        context = context_of(info)
        return await run_mutation(
            info, "scaling_group", name, lambda: self._resource_groups.delete(context.caller, name)
        )

    @mutation("associate_scaling_group_with_domain")
    @mutation("associate_scaling_group_with_user_group")
    @mutation("associate_scaling_group_with_keypair")
    @mutation("disassociate_scaling_group_with_domain")
    @mutation("disassociate_scaling_group_with_user_group")
    @mutation("disassociate_scaling_group_with_keypair")
    @mutation("disassociate_all_scaling_groups_with_domain")
    @mutation("disassociate_all_scaling_groups_with_group")
    async def change_association(
        self,
        info: Info,
        scaling_group: str | None = None,
        domain: str | None = None,
        user_group: Any = None,
        access_key: str | None = None,
    ) -> View:
        context = context_of(info)
        service = self._resource_groups

        async def work() -> None:
            beneficiary = _beneficiary(domain, user_group, access_key)
            if info.field_name.startswith("associate"):
                await service.associate(context.caller, str(scaling_group), beneficiary)
            else:
                await service.dissociate(context.caller, scaling_group, beneficiary)

        return await run_mutation(info, "scaling_group", scaling_group or "all", work)

    @query("scaling_groups")
    async def scaling_groups(self, info: Info, name: str | None = None, is_active: bool | None = None) -> list[View]:
        """Returns the resource groups that the caller may use."""
        context = context_of(info)
        groups = await self._resource_groups.available_groups(context.caller, is_active=is_active)
        return [resource_group_view(group, context.caller) for group in groups if name in (None, group.name)]

    @query("scaling_group")
    async def scaling_group(self, info: Info, name: str | None = None) -> View | None:
        return next(iter(await self.scaling_groups(info, name)), None) if name else None

    @query("scaling_groups_for_domain")
    @query("scaling_groups_for_user_group")
    @query("scaling_groups_for_keypair")
    async def scaling_groups_for(
        self, info: Info, domain: str | None = None, user_group: str | None = None, **options: Any
    ) -> list[View]:
        caller = context_of(info).caller
        groups = await self._resource_groups.groups_open_to(caller, domain_name=domain, group=user_group, **options)
        return [resource_group_view(group, caller) for group in groups]

    @field("Domain", "scaling_groups")
    async def domain_scaling_groups(self, view: View, info: Info) -> list[str]:
        context = context_of(info)
        groups = await self._resource_groups.groups_open_to(context.caller, domain_name=view["name"])
        return [group.name for group in groups]

    @field("Group", "scaling_groups")
    async def group_scaling_groups(self, view: View, info: Info) -> list[str]:
        context = context_of(info)
        groups = await self._resource_groups.groups_open_to(context.caller, group=str(view["id"]))
        return [group.name for group in groups]
