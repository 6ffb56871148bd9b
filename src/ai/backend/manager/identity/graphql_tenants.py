"""Mutations of domains, groups and policies. A refused one replies ``ok: false`` with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import GroupId, UserId
from ai.backend.common.images import check_registry_name
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import GroupType
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.manager.graphql.context import Info, context_of, run_mutation, structured
from ai.backend.manager.graphql.resolvers import mutation, query
from ai.backend.manager.graphql.values import View
from ai.backend.manager.identity import graphql
from ai.backend.manager.identity.host_permissions import read_hosts
from ai.backend.manager.identity.tenants import TenantService

_DEFAULT_FOR_UNSPECIFIED = ("LIMITED", "UNLIMITED")


def _slots_of(field: str) -> Callable[[Any], ResourceSlot]:
    def read(value: Any) -> ResourceSlot:
        slots = structured(field, value)
        if not isinstance(slots, dict):
            raise InvalidInput("Resource slots are an object.", data={field: "malformed"})
        return ResourceSlot.parse(slots)

    return read


def _hosts(value: Any) -> dict[str, tuple[str, ...]]:
    return read_hosts(structured("allowed_vfolder_hosts", value))


def _registries(value: Any) -> list[str]:
    """Return the hosts of registries; the published client sends them as one string, with commas."""
    names = value.split(",") if isinstance(value, str) else value
    return [check_registry_name(str(name).strip()) for name in names if str(name or "").strip()]


def _group_type(value: Any) -> GroupType:
    words = {kind.value: kind for kind in GroupType}
    if str(value).upper().replace("-", "_") not in words:
        raise InvalidInput(f"A group's type is one of {', '.join(words)}.", data={"type": "unknown"})
    return words[str(value).upper().replace("-", "_")]


def _unspecified(value: Any) -> str:
    if str(value) not in _DEFAULT_FOR_UNSPECIFIED:
        raise InvalidInput(
            "default_for_unspecified is LIMITED or UNLIMITED.", data={"default_for_unspecified": "unknown"}
        )
    return str(value)


def _count(value: Any) -> int:
    """Return a limit; the published client writes no limit as null, 0 or a negative number."""
    return max(0, int(value))


def _size(value: Any) -> int:
    return max(-1, int(value))


_READERS: Mapping[str, Callable[[Any], Any]] = {
    **{name: _slots_of(name) for name in ("total_resource_slots", "max_pending_session_resource_slots")},
    "allowed_vfolder_hosts": _hosts,
    "allowed_docker_registries": _registries,
    "type": _group_type,
    "default_for_unspecified": _unspecified,
    "max_quota_scope_size": _size,
    **dict.fromkeys(
        (
            "max_session_lifetime",
            "max_concurrent_sessions",
            "max_containers_per_session",
            "max_pending_session_count",
            "idle_timeout",
            "max_vfolder_count",
            "max_vfolder_size",
        ),
        _count,
    ),
}
_FIELDS: dict[str, tuple[str, ...]] = {
    "domain": ("name", "description", "is_active", "total_resource_slots", "allowed_vfolder_hosts", "integration_id"),
    "policy": (
        "default_for_unspecified",
        "total_resource_slots",
        "max_session_lifetime",
        "max_concurrent_sessions",
        "max_containers_per_session",
        "max_pending_session_count",
        "max_pending_session_resource_slots",
        "idle_timeout",
        "max_vfolder_count",
        "max_vfolder_size",
        "allowed_vfolder_hosts",
    ),
    "storage_policy": ("max_vfolder_count", "max_quota_scope_size"),
}
_FIELDS["group"] = (*_FIELDS["domain"], "domain_name", "type", "resource_policy")
_FIELDS["domain"] += ("allowed_docker_registries",)
"""Fields of each object that are stored. Other fields that clients send are accepted and have no effect."""


def _values(kind: str, props: View) -> View:
    values = ((name, props.get(name)) for name in _FIELDS[kind])
    return {name: _READERS.get(name, lambda x: x)(value) for name, value in values if value is not None}


def _uuid(text: Any) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise InvalidInput(f"{str(text)[:64]!r} is not a UUID.", data={"user_uuids": "malformed"}) from None


def _kind(info: Info) -> QuotaScopeKind:
    return QuotaScopeKind.USER if "user_resource" in info.field_name else QuotaScopeKind.PROJECT


class TenantResolvers:
    """Answers the mutations of domains, groups and policies."""

    def __init__(self, tenants: TenantService) -> None:
        self._tenants = tenants

    @mutation("create_domain")
    @mutation("modify_domain")
    async def put_domain(self, info: Info, name: str, props: View) -> View:
        context = context_of(info)
        service = self._tenants
        change = service.create_domain if info.field_name == "create_domain" else service.modify_domain
        return await run_mutation(
            info, "domain", name, lambda: change(context.caller, name, _values("domain", props)), graphql.domain_view
        )

    @mutation("delete_domain")
    @mutation("purge_domain")
    async def remove_domain(self, info: Info, name: str) -> View:
        context = context_of(info)
        service = self._tenants
        remove = service.delete_domain if info.field_name == "delete_domain" else service.purge_domain
        return await run_mutation(info, "domain", name, lambda: remove(context.caller, name))

    @mutation("delete_group")
    @mutation("purge_group")
    async def remove_group(self, info: Info, gid: UUID) -> View:
        context = context_of(info)
        service = self._tenants
        remove = service.delete_group if info.field_name == "delete_group" else service.purge_group
        return await run_mutation(info, "group", str(gid), lambda: remove(context.caller, GroupId(gid)))

    @mutation("create_group")
    async def create_group(self, info: Info, name: str, props: View) -> View:
        context = context_of(info)
        service = self._tenants
        return await run_mutation(
            info,
            "group",
            name,
            lambda: service.create_group(context.caller, name, _values("group", props)),
            graphql.group_view,
        )

    @mutation("modify_group")
    async def modify_group(self, info: Info, gid: UUID, props: View) -> View:
        context = context_of(info)
        values = {**props, "domain_name": None}  # a group stays in its domain

        async def work() -> Any:
            mode = props.get("user_update_mode")
            if mode not in (None, "add", "remove"):
                raise InvalidInput("user_update_mode is add or remove.", data={"user_update_mode": "unknown"})
            users = [UserId(_uuid(text)) for text in props.get("user_uuids") or ()]
            return await self._tenants.modify_group(
                context.caller,
                GroupId(gid),
                _values("group", values),
                add=users if mode == "add" else (),
                remove=users if mode == "remove" else (),
            )

        return await run_mutation(info, "group", str(gid), work, graphql.group_view)

    @mutation("create_keypair_resource_policy")
    @mutation("modify_keypair_resource_policy")
    async def put_policy(self, info: Info, name: str, props: View) -> View:
        context = context_of(info)
        service = self._tenants
        change = service.create_policy if info.field_name.startswith("create") else service.modify_policy
        return await run_mutation(
            info,
            "resource_policy",
            name,
            lambda: change(context.caller, name, _values("policy", props)),
            graphql.policy_view,
        )

    @mutation("delete_keypair_resource_policy")
    async def delete_policy(self, info: Info, name: str) -> View:
        context = context_of(info)
        service = self._tenants
        return await run_mutation(info, "resource_policy", name, lambda: service.delete_policy(context.caller, name))

    @query("user_resource_policies")
    @query("project_resource_policies")
    async def storage_policies(self, info: Info) -> list[View]:
        context = context_of(info)
        policies = await self._tenants.storage_policies(context.caller, _kind(info))
        return [graphql.storage_policy_view(policy) for policy in policies]

    @query("user_resource_policy")
    @query("project_resource_policy")
    async def storage_policy(self, info: Info, name: str | None = None) -> View | None:
        context = context_of(info)
        policies = await self._tenants.storage_policies(context.caller, _kind(info), name or "default")
        return graphql.storage_policy_view(policies[0]) if policies else None

    @mutation("create_user_resource_policy")
    @mutation("modify_user_resource_policy")
    @mutation("create_project_resource_policy")
    @mutation("modify_project_resource_policy")
    async def put_storage_policy(self, info: Info, name: str, props: View) -> View:
        context = context_of(info)
        service, kind = self._tenants, _kind(info)
        is_new = info.field_name.startswith("create")
        return await run_mutation(
            info,
            "resource_policy",
            name,
            lambda: service.put_storage_policy(
                context.caller, kind, name, _values("storage_policy", props), is_new=is_new
            ),
            graphql.storage_policy_view,
        )

    @mutation("delete_user_resource_policy")
    @mutation("delete_project_resource_policy")
    async def delete_storage_policy(self, info: Info, name: str) -> View:
        context = context_of(info)
        service, kind = self._tenants, _kind(info)
        return await run_mutation(
            info, "resource_policy", name, lambda: service.delete_storage_policy(context.caller, kind, name)
        )
