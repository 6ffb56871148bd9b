"""GraphQL fields of identity."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from uuid import UUID

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import UserId
from ai.backend.common.states import GroupType
from ai.backend.infra.http.decode import refuse
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.graphql.context import Info, caller_of, list_all_pages, page_fields_of, run_mutation
from ai.backend.manager.graphql.resolvers import field, query
from ai.backend.manager.graphql.values import View, attributes_of, slots_json
from ai.backend.manager.identity.model import Domain, Group, Keypair, ResourcePolicy, StoragePolicy, User
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.query.model import ListQuery


def _filter_by_domain(groups: Iterable[Group], domain_name: str | None) -> list[Group]:
    return [group for group in groups if domain_name in (None, "", group.domain_name)]


def keypair_view(keypair: Keypair) -> View:
    """Converts a keypair to the GraphQL type, without its secrets."""
    return {
        **attributes_of(keypair),
        "user_id": keypair.user_email,
        "user": keypair.user_id,
        "user_info": {"email": keypair.user_email, "full_name": keypair.user_full_name},
        "secret_key": None,
        "allowed_client_ip": list(keypair.allowed_client_ip) or None,
        "ssh_private_key": None,
    }


def policy_view(policy: ResourcePolicy) -> View:
    """Converts a resource policy of keypairs to the GraphQL type."""
    return {
        **attributes_of(policy),
        "total_resource_slots": slots_json(policy.total_resource_slots),
        "max_pending_session_resource_slots": slots_json(policy.max_pending_session_resource_slots),
        "allowed_vfolder_hosts": json.dumps(dict(policy.allowed_vfolder_hosts)),
    }


def storage_policy_view(policy: StoragePolicy) -> View:
    """Converts a resource policy of users or projects to the GraphQL type."""
    return {**attributes_of(policy), "id": policy.name}


def user_view(user: User) -> View:
    """Converts a user with their groups to the GraphQL type."""
    return {
        **attributes_of(user),
        "id": user.uuid,
        "is_active": user.is_active,
        "role": user.role.value,
        "groups": [{"id": group.id, "name": group.name} for group in user.groups],
        "allowed_client_ip": list(user.allowed_client_ip) or None,
    }


def domain_view(domain: Domain) -> View:
    """Converts a domain to the GraphQL type."""
    return _tenant_view(domain)


def group_view(group: Group) -> View:
    """Converts a group to the GraphQL type."""
    return {**_tenant_view(group), "type": group.type.value}


def _tenant_view(tenant: Domain | Group) -> View:
    return {
        **attributes_of(tenant),
        "modified_at": tenant.modified_at or tenant.created_at,
        "total_resource_slots": slots_json(tenant.total_resource_slots),
        "allowed_vfolder_hosts": json.dumps(tenant.allowed_vfolder_hosts),
    }


async def change(
    info: Info,
    object_type: str,
    name: str,
    perform_change: Callable[[Caller], Awaitable[Any]],
    view: Callable[[Any], View] | None = None,
) -> View:
    """Runs a change by the caller and records it in the audit trail; replies with the object under ``object_type``."""
    return await run_mutation(info, object_type, name, lambda: perform_change(caller_of(info)), view)


def uuid_of(text: Any, field_name: str) -> UUID:
    """Parses a UUID. Raises InvalidInput, which names the field."""
    try:
        return UUID(str(text))
    except ValueError:
        raise InvalidInput(f"{str(text)[:64]!r} is not a UUID.", data={field_name: "malformed"}) from None


class IdentityResolvers:
    """Answers the queries of users, keypairs, domains, groups and policies."""

    def __init__(self, identity: IdentityService) -> None:
        self._identity = identity

    @query("keypair")
    async def keypair(self, info: Info, access_key: str | None = None, domain_name: str | None = None) -> View:
        return keypair_view(await self._identity.keypair(caller_of(info), access_key, domain_name=domain_name or None))

    @query("keypairs")
    async def keypairs(self, info: Info, **args: Any) -> list[View]:
        return await list_all_pages(self.keypair_list, info, "keypair_list", **args)

    @query("keypair_list")
    async def keypair_list(self, info: Info, **args: Any) -> View:
        page = await self._identity.keypairs(
            caller_of(info),
            ListQuery(**page_fields_of(args)),
            email=args.get("email"),
            is_active=args.get("is_active"),
            domain_name=args.get("domain_name"),
        )
        return {"items": [keypair_view(item) for item in page.items], "total_count": page.total_count}

    @field("KeyPair", "projects")
    async def keypair_projects(self, view: View, info: Info) -> list[str]:
        user = await self._identity.user(caller_of(info), uuid=UserId(view["user"]))
        return [group.name for group in user.groups]

    @query("keypair_resource_policy")
    async def keypair_resource_policy(self, info: Info, name: str | None = None) -> View:
        return policy_view(await self._identity.resource_policy(caller_of(info), name))

    @query("keypair_resource_policies")
    async def keypair_resource_policies(self, info: Info) -> list[View]:
        return [policy_view(policy) for policy in await self._identity.resource_policies(caller_of(info))]

    @query("user")
    async def user(self, info: Info, email: str | None = None, domain_name: str | None = None) -> View:
        return user_view(await self._identity.user(caller_of(info), email=email, domain_name=domain_name or None))

    @query("user_from_uuid")
    async def user_from_uuid(self, info: Info, user_id: str | None = None, domain_name: str | None = None) -> View:
        try:
            uuid = UserId(UUID(user_id)) if user_id else None
        except ValueError:
            raise refuse({"user_id": "not a UUID"}) from None
        return user_view(await self._identity.user(caller_of(info), uuid=uuid, domain_name=domain_name or None))

    @query("users")
    async def users(self, info: Info, **args: Any) -> list[View]:
        return await list_all_pages(self.user_list, info, "user_list", **args)

    @query("user_list")
    async def user_list(self, info: Info, **args: Any) -> View:
        page = await self._identity.users(
            caller_of(info),
            ListQuery(**page_fields_of(args)),
            status=args.get("status"),
            is_active=args.get("is_active") if args.get("status") is None else None,
            domain_name=args.get("domain_name") or None,
            group_id=args.get("group_id"),
        )
        return {"items": [user_view(item) for item in page.items], "total_count": page.total_count}

    @query("domain")
    async def domain(self, info: Info, name: str | None = None) -> View:
        return domain_view(await self._identity.domain(caller_of(info), name))

    @query("domains")
    async def domains(self, info: Info, is_active: bool | None = None) -> list[View]:
        """Returns all domains for superadmins, else the caller's own."""
        domains = await self._identity.domains(caller_of(info))
        return [domain_view(domain) for domain in domains if is_active in (None, domain.is_active)]

    @query("group")
    async def group(self, info: Info, id: UUID, domain_name: str | None = None) -> View | None:  # noqa: A002  # the wire's name
        groups = _filter_by_domain(await self._identity.groups(caller_of(info)), domain_name)
        return next((group_view(group) for group in groups if group.id == id), None)

    @query("groups")
    async def groups(
        self,
        info: Info,
        domain_name: str | None = None,
        is_active: bool | None = None,
        type: list[str] | None = None,  # noqa: A002  # the wire's name
    ) -> list[View]:
        groups = _filter_by_domain(await self._identity.groups(caller_of(info)), domain_name)
        group_types = (
            {kind.value for kind in GroupType}
            if type is None
            else {type_name.upper() for type_name in type if type_name}
        )
        return [
            group_view(group)
            for group in groups
            if is_active in (None, group.is_active) and group.type.value in group_types
        ]

    @query("groups_by_name")
    async def groups_by_name(self, info: Info, name: str, domain_name: str | None = None) -> list[View]:
        groups = _filter_by_domain(await self._identity.groups(caller_of(info), name=name), domain_name)
        return [group_view(group) for group in groups]
