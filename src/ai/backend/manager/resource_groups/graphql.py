"""GraphQL queries and mutations of resource groups and their associations (spec 03-09, client wire contract 3.2)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from ariadne import MutationType, ObjectType, QueryType

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import AccessKey, DomainName, GroupId
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.graphql import values
from ai.backend.manager.graphql.context import Info, answer, context_of, structured
from ai.backend.manager.graphql.values import View
from ai.backend.manager.resource_groups.model import ResourceGroup
from ai.backend.manager.resource_groups.service import Beneficiary

query = QueryType()
domain_type = ObjectType("Domain")
group_type = ObjectType("Group")

mutation = MutationType()
_FIELDS = (
    "description",
    "is_active",
    "is_public",
    "driver",
    "driver_opts",
    "scheduler",
    "scheduler_opts",
    "use_host_network",
    "wsproxy_addr",
    "wsproxy_api_token",
)


def _values(props: values.View) -> values.View:
    return {
        name: structured(name, props[name]) if name.endswith("_opts") else props[name]
        for name in _FIELDS
        if props.get(name) is not None
    }


@mutation.field("create_scaling_group")
@mutation.field("modify_scaling_group")
async def put(_: Any, info: Info, name: str, props: values.View) -> values.View:
    context = context_of(info)
    service = context.services.resource_groups
    change = service.create if info.field_name.startswith("create") else service.modify
    return await answer(
        info,
        "scaling_group",
        name,
        lambda: change(context.caller, name, _values(props)),
        lambda group: resource_group_view(group, context.caller),
    )


@mutation.field("delete_scaling_group")
async def delete(_: Any, info: Info, name: str) -> values.View:
    context = context_of(info)
    return await answer(
        info, "scaling_group", name, lambda: context.services.resource_groups.delete(context.caller, name)
    )


def _beneficiary(domain: str | None, user_group: Any, access_key: str | None) -> Beneficiary:
    """Reads a beneficiary. The published client sends ``user_group`` as a UUID or a string."""
    try:
        return Beneficiary(
            domain_name=DomainName(domain) if domain else None,
            group_id=GroupId(UUID(str(user_group))) if user_group else None,
            access_key=AccessKey(access_key) if access_key else None,
        )
    except ValueError:
        raise InvalidInput("user_group is a UUID.", data={"user_group": "malformed"}) from None


@mutation.field("associate_scaling_group_with_domain")
@mutation.field("associate_scaling_group_with_user_group")
@mutation.field("associate_scaling_group_with_keypair")
@mutation.field("disassociate_scaling_group_with_domain")
@mutation.field("disassociate_scaling_group_with_user_group")
@mutation.field("disassociate_scaling_group_with_keypair")
@mutation.field("disassociate_all_scaling_groups_with_domain")
@mutation.field("disassociate_all_scaling_groups_with_group")
async def change_association(
    _: Any,
    info: Info,
    scaling_group: str | None = None,
    domain: str | None = None,
    user_group: Any = None,
    access_key: str | None = None,
) -> values.View:
    context = context_of(info)
    service = context.services.resource_groups

    async def work() -> None:
        beneficiary = _beneficiary(domain, user_group, access_key)
        if info.field_name.startswith("associate"):
            await service.associate(context.caller, str(scaling_group), beneficiary)
        else:
            await service.dissociate(context.caller, scaling_group, beneficiary)

    return await answer(info, "scaling_group", scaling_group or "all", work)


@query.field("scaling_groups")
async def scaling_groups(
    _: Any, info: Info, name: str | None = None, is_active: bool | None = None
) -> list[values.View]:
    """Return the resource groups that the caller may use."""
    context = context_of(info)
    groups = await context.services.resource_groups.available(context.caller, is_active=is_active)
    return [resource_group_view(g, context.caller) for g in groups if name in (None, g.name)]


@query.field("scaling_group")
async def scaling_group(_: Any, info: Info, name: str | None = None) -> values.View | None:
    return next(iter(await scaling_groups(_, info, name)), None) if name else None


@query.field("scaling_groups_for_domain")
@query.field("scaling_groups_for_user_group")
@query.field("scaling_groups_for_keypair")
async def scaling_groups_for(
    _: Any,
    info: Info,
    domain: str | None = None,
    user_group: str | None = None,
    access_key: str | None = None,
    is_active: bool | None = None,
) -> list[values.View]:
    context = context_of(info)
    groups = await context.services.resource_groups.open_to(
        context.caller, domain_name=domain, group=user_group, access_key=access_key, is_active=is_active
    )
    return [resource_group_view(g, context.caller) for g in groups]


@domain_type.field("scaling_groups")
async def domain_scaling_groups(view: values.View, info: Info) -> list[str]:
    context = context_of(info)
    groups = await context.services.resource_groups.open_to(context.caller, domain_name=view["name"])
    return [g.name for g in groups]


@group_type.field("scaling_groups")
async def group_scaling_groups(view: values.View, info: Info) -> list[str]:
    context = context_of(info)
    groups = await context.services.resource_groups.open_to(context.caller, group=str(view["id"]))
    return [g.name for g in groups]


def resource_group_view(group: ResourceGroup, caller: Caller) -> View:
    shows_options = is_permitted(caller, Operation.SEE_SCHEDULER_OPTIONS)
    return {
        "name": group.name,
        "description": group.description,
        "is_active": group.is_active,
        "is_public": group.is_public,
        "created_at": group.created_at,
        "driver": group.driver,
        "driver_opts": json.dumps(dict(group.driver_opts)) if shows_options else None,
        "scheduler": group.scheduler,
        "scheduler_opts": json.dumps(dict(group.scheduler_opts)) if shows_options else None,
        "use_host_network": group.use_host_network,
        "wsproxy_addr": group.wsproxy_addr,
        "wsproxy_api_token": None,
    }


RESOURCE_GROUP_BINDABLES = (query, mutation, domain_type, group_type)
