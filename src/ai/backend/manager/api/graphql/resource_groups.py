"""Mutations of resource groups and of whom they are open to (spec 03-09, client wire contract 3.2)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ariadne import MutationType

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import AccessKey, DomainName, GroupId
from ai.backend.manager.api.graphql import views
from ai.backend.manager.api.graphql.administration import answer, structured
from ai.backend.manager.api.graphql.resolvers import Info, context_of
from ai.backend.manager.services.resource_groups import Beneficiary

mutation = MutationType()
_KEPT = (
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


def _values(props: views.View) -> views.View:
    return {
        name: structured(name, props[name]) if name.endswith("_opts") else props[name]
        for name in _KEPT
        if props.get(name) is not None
    }


@mutation.field("create_scaling_group")
@mutation.field("modify_scaling_group")
async def put(_: Any, info: Info, name: str, props: views.View) -> views.View:
    context = context_of(info)
    service = context.services.resource_groups
    change = service.create if info.field_name.startswith("create") else service.modify
    return await answer(
        info,
        "scaling_group",
        name,
        lambda: change(context.caller, name, _values(props)),
        lambda made: views.resource_group_view(made, context.caller),
    )


@mutation.field("delete_scaling_group")
async def delete(_: Any, info: Info, name: str) -> views.View:
    context = context_of(info)
    return await answer(
        info, "scaling_group", name, lambda: context.services.resource_groups.delete(context.caller, name)
    )


def _beneficiary(domain: str | None, user_group: Any, access_key: str | None) -> Beneficiary:
    """``user_group`` is a UUID, which the published client declares as such or as a string."""
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
async def open_or_close(
    _: Any,
    info: Info,
    scaling_group: str | None = None,
    domain: str | None = None,
    user_group: Any = None,
    access_key: str | None = None,
) -> views.View:
    context = context_of(info)
    service = context.services.resource_groups

    async def work() -> None:
        whom = _beneficiary(domain, user_group, access_key)
        if info.field_name.startswith("associate"):
            await service.associate(context.caller, str(scaling_group), whom)
        else:
            await service.dissociate(context.caller, scaling_group, whom)

    return await answer(info, "scaling_group", scaling_group or "all", work)


RESOURCE_GROUP_BINDABLES = (mutation,)
