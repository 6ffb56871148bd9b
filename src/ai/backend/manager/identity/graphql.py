"""GraphQL fields of identity."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from ai.backend.common.ids import UserId
from ai.backend.common.states import GroupType
from ai.backend.infra.http.decode import refuse
from ai.backend.manager.graphql.context import Info, context_of, page_of
from ai.backend.manager.graphql.limits import MAX_PAGE
from ai.backend.manager.graphql.resolvers import field, query
from ai.backend.manager.graphql.values import View, slots_json
from ai.backend.manager.identity.model import Domain, Group, Keypair, ResourcePolicy, StoragePolicy, User
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.query.model import ListQuery


def _in_domain(groups: Iterable[Group], domain_name: str | None) -> list[Group]:
    return [group for group in groups if domain_name in (None, "", group.domain_name)]


def keypair_view(keypair: Keypair) -> View:
    return {
        "user_id": keypair.user_email,
        "user": keypair.user_id,
        "user_info": {"email": keypair.user_email, "full_name": keypair.user_full_name},
        "access_key": keypair.access_key,
        "secret_key": None,
        "is_active": keypair.is_active,
        "is_admin": keypair.is_admin,
        "created_at": keypair.created_at,
        "modified_at": keypair.modified_at,
        "last_used": keypair.last_used,
        "resource_policy": keypair.resource_policy,
        "rate_limit": keypair.rate_limit,
        "num_queries": keypair.num_queries,
        "concurrency_used": keypair.concurrency_used,
        "ssh_public_key": keypair.ssh_public_key,
        "ssh_private_key": None,
    }


def policy_view(policy: ResourcePolicy) -> View:
    return {
        "name": policy.name,
        "created_at": policy.created_at,
        "default_for_unspecified": policy.default_for_unspecified,
        "total_resource_slots": slots_json(policy.total_resource_slots),
        "max_session_lifetime": policy.max_session_lifetime,
        "max_concurrent_sessions": policy.max_concurrent_sessions,
        "max_containers_per_session": policy.max_containers_per_session,
        "max_pending_session_count": policy.max_pending_session_count,
        "max_pending_session_resource_slots": slots_json(policy.max_pending_session_resource_slots),
        "idle_timeout": policy.idle_timeout,
        "max_vfolder_count": policy.max_vfolder_count,
        "max_vfolder_size": policy.max_vfolder_size,
        "allowed_vfolder_hosts": json.dumps(dict(policy.allowed_vfolder_hosts)),
    }


def storage_policy_view(policy: StoragePolicy) -> View:
    return {
        "id": policy.name,
        "name": policy.name,
        "created_at": policy.created_at,
        "max_vfolder_count": policy.max_vfolder_count,
        "max_quota_scope_size": policy.max_quota_scope_size,
    }


def user_view(user: User) -> View:
    return {
        "uuid": user.uuid,
        "id": user.uuid,
        "username": user.username,
        "email": user.email,
        "need_password_change": user.need_password_change,
        "full_name": user.full_name,
        "description": user.description,
        "is_active": user.is_active,
        "status": user.status,
        "status_info": user.status_info,
        "created_at": user.created_at,
        "modified_at": user.modified_at,
        "domain_name": user.domain_name,
        "role": user.role.value,
        "groups": [{"id": group.id, "name": group.name} for group in user.groups],
        "allowed_client_ip": list(user.allowed_client_ip) or None,
        "totp_activated": False,
        "sudo_session_enabled": False,
        "main_access_key": user.main_access_key,
        "resource_policy": user.resource_policy,
    }


def domain_view(domain: Domain) -> View:
    return {
        "name": domain.name,
        "description": domain.description,
        "is_active": domain.is_active,
        "created_at": domain.created_at,
        "modified_at": domain.created_at,
        "total_resource_slots": slots_json(domain.total_resource_slots),
        "allowed_vfolder_hosts": json.dumps(domain.allowed_vfolder_hosts),
        "allowed_docker_registries": list(domain.allowed_docker_registries or ()),
        "integration_id": domain.integration_id,
    }


def group_view(group: Group) -> View:
    return {
        "id": group.id,
        "name": group.name,
        "description": group.description,
        "is_active": group.is_active,
        "created_at": group.created_at,
        "modified_at": group.created_at,
        "domain_name": group.domain_name,
        "total_resource_slots": slots_json(group.total_resource_slots),
        "allowed_vfolder_hosts": json.dumps(group.allowed_vfolder_hosts),
        "integration_id": group.integration_id,
        "type": group.type.value,
        "resource_policy": group.resource_policy,
    }


class IdentityResolvers:
    """Answers the queries of users, keypairs, domains, groups and policies."""

    def __init__(self, identity: IdentityService) -> None:
        self._identity = identity

    @query("keypair")
    async def keypair(self, info: Info, access_key: str | None = None, domain_name: str | None = None) -> View:
        context = context_of(info)
        return keypair_view(await self._identity.keypair(context.caller, access_key))

    @query("keypairs")
    async def keypairs(self, info: Info, **args: Any) -> list[View]:
        items: list[View] = (await self.keypair_list(info, limit=MAX_PAGE, offset=0, **args))["items"]
        return items

    @query("keypair_list")
    async def keypair_list(self, info: Info, **args: Any) -> View:
        context = context_of(info)
        page = await self._identity.keypairs(
            context.caller,
            ListQuery(**page_of(args)),
            email=args.get("email"),
            is_active=args.get("is_active"),
            domain_name=args.get("domain_name"),
        )
        return {"items": [keypair_view(item) for item in page.items], "total_count": page.total_count}

    @field("KeyPair", "projects")
    async def keypair_projects(self, view: View, info: Info) -> list[str]:
        context = context_of(info)
        user = await self._identity.user(context.caller, uuid=UserId(view["user"]))
        return [group.name for group in user.groups]

    @query("keypair_resource_policy")
    async def keypair_resource_policy(self, info: Info, name: str | None = None) -> View:
        context = context_of(info)
        return policy_view(await self._identity.resource_policy(context.caller, name))

    @query("keypair_resource_policies")
    async def keypair_resource_policies(self, info: Info) -> list[View]:
        context = context_of(info)
        return [policy_view(p) for p in await self._identity.resource_policies(context.caller)]

    @query("user")
    async def user(self, info: Info, email: str | None = None, domain_name: str | None = None) -> View:
        context = context_of(info)
        return user_view(await self._identity.user(context.caller, email=email, domain_name=domain_name or None))

    @query("user_from_uuid")
    async def user_from_uuid(self, info: Info, user_id: str | None = None, domain_name: str | None = None) -> View:
        context = context_of(info)
        try:
            uuid = UserId(UUID(user_id)) if user_id else None
        except ValueError:
            raise refuse({"user_id": "not a UUID"}) from None
        return user_view(await self._identity.user(context.caller, uuid=uuid, domain_name=domain_name or None))

    @query("users")
    async def users(self, info: Info, **args: Any) -> list[View]:
        items: list[View] = (await self.user_list(info, limit=MAX_PAGE, offset=0, **args))["items"]
        return items

    @query("user_list")
    async def user_list(self, info: Info, **args: Any) -> View:
        context = context_of(info)
        status = args.get("status")
        if status is None and args.get("is_active") is not None:
            status = "active" if args["is_active"] else "inactive"
        page = await self._identity.users(
            context.caller,
            ListQuery(**page_of(args)),
            status=status,
            domain_name=args.get("domain_name") or None,
            group_id=args.get("group_id"),
        )
        return {"items": [user_view(item) for item in page.items], "total_count": page.total_count}

    @query("domain")
    async def domain(self, info: Info, name: str | None = None) -> View:
        context = context_of(info)
        return domain_view(await self._identity.domain(context.caller, name))

    @query("domains")
    async def domains(self, info: Info, is_active: bool | None = None) -> list[View]:
        """Return all domains for superadmins, else the caller's own."""
        context = context_of(info)
        domains = await self._identity.domains(context.caller)
        return [domain_view(d) for d in domains if is_active in (None, d.is_active)]

    @query("group")
    async def group(self, info: Info, id: UUID, domain_name: str | None = None) -> View | None:  # noqa: A002  # the wire's name
        context = context_of(info)
        groups = _in_domain(await self._identity.groups(context.caller), domain_name)
        return next((group_view(g) for g in groups if g.id == id), None)

    @query("groups")
    async def groups(
        self,
        info: Info,
        domain_name: str | None = None,
        is_active: bool | None = None,
        type: list[str] | None = None,  # noqa: A002  # the wire's name
    ) -> list[View]:
        context = context_of(info)
        groups = _in_domain(await self._identity.groups(context.caller), domain_name)
        kinds = {word.upper() for word in type} if type is not None else {kind.value for kind in GroupType}
        return [group_view(g) for g in groups if is_active in (None, g.is_active) and g.type.value in kinds]

    @query("groups_by_name")
    async def groups_by_name(self, info: Info, name: str, domain_name: str | None = None) -> list[View]:
        context = context_of(info)
        groups = _in_domain(await self._identity.groups(context.caller, name=name), domain_name)
        return [group_view(g) for g in groups]
