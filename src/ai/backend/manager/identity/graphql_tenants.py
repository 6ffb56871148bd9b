"""Mutations of domains, groups and policies. A refused one replies ``ok: false`` with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from ai.backend.common.errors import InvalidInput, InvalidQuantity
from ai.backend.common.folders import HostPermission, parse_host
from ai.backend.common.ids import GroupId, UserId
from ai.backend.common.images import check_registry_name
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import GroupType
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.graphql.context import Info, caller_of, decode_json_text
from ai.backend.manager.graphql.resolvers import field, mutation, query
from ai.backend.manager.graphql.values import View
from ai.backend.manager.identity import graphql
from ai.backend.manager.identity.graphql import change
from ai.backend.manager.identity.model import ALL_REGISTRIES
from ai.backend.manager.identity.tenants import TenantService

_DEFAULT_FOR_UNSPECIFIED = ("LIMITED", "UNLIMITED")


def _slots_reader(field: str) -> Callable[[Any], ResourceSlot]:
    def read(value: Any) -> ResourceSlot:
        slots = decode_json_text(field, value)
        if not isinstance(slots, dict):
            raise InvalidInput("Resource slots are an object.", data={field: "malformed"})
        try:
            return ResourceSlot.parse(slots)
        except InvalidQuantity as e:
            raise InvalidQuantity(e.message, data={field: "malformed"}) from None

    return read


def _read_hosts(value: Any) -> dict[str, tuple[str, ...]]:
    """Returns the permissions on each storage host, read from an object, or from a list of hosts with all permissions.

    The formats are those of spec 03-09.
    """
    hosts, all_permissions = (
        decode_json_text("allowed_vfolder_hosts", value),
        [permission.value for permission in HostPermission],
    )
    if isinstance(hosts, list) and all(isinstance(host, str) for host in hosts):
        hosts = dict.fromkeys(hosts, all_permissions)
    if not isinstance(hosts, dict):
        raise InvalidInput("Hosts are an object of host to permissions.", data={"allowed_vfolder_hosts": "malformed"})
    for host, permissions in hosts.items():
        parse_host(host)
        is_list = isinstance(permissions, list | tuple)
        unknown_permissions = (
            [name for name in permissions if name not in all_permissions] if is_list else [permissions]
        )
        if unknown_permissions:
            message = f"{str(unknown_permissions[0])[:64]!r} is not one of {', '.join(all_permissions)}."
            raise InvalidInput(message, data={"allowed_vfolder_hosts": host})
    return {host: tuple(dict.fromkeys(permissions)) for host, permissions in hosts.items()}


def _read_registries(value: Any) -> list[str]:
    """Returns the hosts of registries; the published client sends them as one string, with commas. ``*`` is all."""
    registry_texts = value.split(",") if isinstance(value, str) else value
    names = [str(name).strip() for name in registry_texts if str(name or "").strip()]
    return [name if name == ALL_REGISTRIES else check_registry_name(name) for name in names]


def _read_group_type(value: Any) -> GroupType:
    type_of_text = {kind.value: kind for kind in GroupType}
    if str(value).upper().replace("-", "_") not in type_of_text:
        raise InvalidInput(f"A group's type is one of {', '.join(type_of_text)}.", data={"type": "unknown"})
    return type_of_text[str(value).upper().replace("-", "_")]


def _read_unspecified_rule(value: Any) -> str:
    if str(value) not in _DEFAULT_FOR_UNSPECIFIED:
        raise InvalidInput(
            "default_for_unspecified is LIMITED or UNLIMITED.", data={"default_for_unspecified": "unknown"}
        )
    return str(value)


def _read_count(value: Any) -> int:
    """Returns a limit as it is stored: the number, or 0 (no limit) for 0 and negative numbers.

    The published client also writes no limit as null, which is left out before.
    """
    return max(0, int(value))


def _read_signed_limit(value: Any) -> int:
    """Returns a limit for which -1, as any negative number, is no limit, and zero has a meaning of its own."""
    return max(-1, int(value))


_COUNT_FIELDS = (
    *("max_session_lifetime", "max_concurrent_sessions", "max_containers_per_session", "max_pending_session_count"),
    *("max_claims", "max_claim_idle_time", "max_vfolder_count", "max_vfolder_size"),
)
_SLOT_FIELDS = ("total_resource_slots", "max_pending_session_resource_slots")
_FIELD_READERS: Mapping[str, Callable[[Any], Any]] = {
    **{name: _slots_reader(name) for name in _SLOT_FIELDS},
    **dict.fromkeys(_COUNT_FIELDS, _read_count),
    "allowed_vfolder_hosts": _read_hosts,
    "allowed_docker_registries": _read_registries,
    "type": _read_group_type,
    "default_for_unspecified": _read_unspecified_rule,
    "idle_timeout": _read_signed_limit,
    "max_quota_scope_size": _read_signed_limit,
}
_TENANT_FIELDS = ("name", "description", "is_active", "total_resource_slots", "allowed_vfolder_hosts", "integration_id")
_DOMAIN_FIELDS = (*_TENANT_FIELDS, "allowed_docker_registries")
_GROUP_FIELDS = (*_TENANT_FIELDS, "domain_name", "type", "resource_policy")
_POLICY_FIELDS = (*_SLOT_FIELDS, *_COUNT_FIELDS, "idle_timeout", "default_for_unspecified", "allowed_vfolder_hosts")
_MEMBER_CHANGES = ("add", "remove", "add-admins", "remove-admins")
_STORAGE_POLICY_FIELDS = ("max_vfolder_count", "max_quota_scope_size")
"""Fields of each object that are stored. Other fields that clients send are accepted and have no effect."""


def _read_values(fields: tuple[str, ...], props: View) -> View:
    values = {name: props[name] for name in fields if props.get(name) is not None}
    return {name: _FIELD_READERS[name](value) if name in _FIELD_READERS else value for name, value in values.items()}


def _policy_kind(info: Info) -> QuotaScopeKind | None:
    """Returns the kind of owner of the policies of a GraphQL field: user or project, or None for keypairs."""
    kind_of_field_part = {"user_resource": QuotaScopeKind.USER, "project_resource": QuotaScopeKind.PROJECT}
    return next((kind for field_part, kind in kind_of_field_part.items() if field_part in info.field_name), None)


class TenantResolvers:
    """Answers the mutations of domains, groups and policies. Methods of the service are named as mutations."""

    def __init__(self, tenants: TenantService) -> None:
        self._tenants = tenants

    @mutation("create_domain")
    @mutation("modify_domain")
    async def put_domain(self, info: Info, name: str, props: View) -> View:
        create_or_modify = getattr(self._tenants, info.field_name)
        return await change(
            info,
            "domain",
            name,
            lambda caller: create_or_modify(caller, name, _read_values(_DOMAIN_FIELDS, props)),
            graphql.domain_view,
        )

    @mutation("delete_domain")
    @mutation("purge_domain")
    async def remove_domain(self, info: Info, name: str) -> View:
        delete_or_purge = getattr(self._tenants, info.field_name)
        return await change(info, "domain", name, lambda caller: delete_or_purge(caller, name))

    @mutation("delete_group")
    @mutation("purge_group")
    async def remove_group(self, info: Info, gid: UUID | None = None, name: str | None = None) -> View:
        delete_or_purge = getattr(self._tenants, info.field_name)

        async def work(caller: Caller) -> None:
            await delete_or_purge(caller, await self._group_id(caller, gid, name))

        return await change(info, "group", str(gid or name), work)

    async def _group_id(self, caller: Caller, gid: UUID | None, name: str | None) -> GroupId:
        """Returns the id of the group that a mutation names by ``gid`` or by ``name``.

        Published clients send ``gid``; the manual says ``name`` (spec 03-09:484).
        """
        if gid is not None:
            return GroupId(gid)
        if not name:
            raise InvalidInput("Name the group by gid or name.", data={"gid": "missing"})
        return await self._tenants.find_group_id(caller, name)

    @mutation("create_group")
    async def create_group(self, info: Info, name: str, props: View) -> View:
        create = self._tenants.create_group
        return await change(
            info,
            "group",
            name,
            lambda caller: create(caller, name, _read_values(_GROUP_FIELDS, props)),
            graphql.group_view,
        )

    @mutation("modify_group")
    async def modify_group(self, info: Info, props: View, gid: UUID | None = None, name: str | None = None) -> View:
        async def work(caller: Caller) -> Any:
            member_change = props.get("user_update_mode")
            if member_change not in (None, *_MEMBER_CHANGES):
                allowed_changes = ", ".join(_MEMBER_CHANGES)
                raise InvalidInput(
                    f"user_update_mode is one of {allowed_changes}.", data={"user_update_mode": "unknown"}
                )
            users = [UserId(graphql.uuid_of(user_text, "user_uuids")) for user_text in props.get("user_uuids") or ()]
            group_id = await self._group_id(caller, gid, name)
            emails = [str(user_text) for user_text in props.get("user_emails") or ()]
            if emails:
                users += await self._tenants.find_user_ids(caller, group_id, emails)
            values = _read_values(_GROUP_FIELDS, props)
            members = {member_change.replace("-", "_"): users} if member_change is not None else {}
            return await self._tenants.modify_group(caller, group_id, values, **members)

        return await change(info, "group", str(gid or name), work, graphql.group_view)

    @field("Group", "admins")
    async def group_admins(self, view: View, info: Info) -> list[str]:
        return [str(user_id) for user_id in await self._tenants.group_admins(GroupId(view["id"]))]

    @query("user_resource_policies")
    @query("project_resource_policies")
    async def storage_policies(self, info: Info, name: str | None = None) -> list[View]:
        policies = await self._tenants.storage_policies(
            caller_of(info), _policy_kind(info) or QuotaScopeKind.PROJECT, name
        )
        return [graphql.storage_policy_view(policy) for policy in policies]

    @query("user_resource_policy")
    @query("project_resource_policy")
    async def storage_policy(self, info: Info, name: str | None = None) -> View | None:
        return next(iter(await self.storage_policies(info, name or "default")), None)

    @mutation("create_keypair_resource_policy")
    @mutation("modify_keypair_resource_policy")
    @mutation("create_user_resource_policy")
    @mutation("modify_user_resource_policy")
    @mutation("create_project_resource_policy")
    @mutation("modify_project_resource_policy")
    async def put_policy(self, info: Info, name: str, props: View) -> View:
        kind, tenants = _policy_kind(info), self._tenants
        create_or_modify = tenants.create_policy if info.field_name.startswith("create") else tenants.modify_policy
        fields = _POLICY_FIELDS if kind is None else _STORAGE_POLICY_FIELDS
        view = graphql.policy_view if kind is None else graphql.storage_policy_view
        return await change(
            info,
            "resource_policy",
            name,
            lambda caller: create_or_modify(caller, kind, name, _read_values(fields, props)),
            view,
        )

    @mutation("delete_keypair_resource_policy")
    @mutation("delete_user_resource_policy")
    @mutation("delete_project_resource_policy")
    async def delete_policy(self, info: Info, name: str) -> View:
        kind = _policy_kind(info)
        return await change(
            info, "resource_policy", name, lambda caller: self._tenants.delete_policy(caller, kind, name)
        )
