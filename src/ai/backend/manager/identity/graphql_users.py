"""Mutations of users and keypairs (spec 03-09, client wire contract 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import AccessKey, GroupId, UserId
from ai.backend.common.states import UserRole, UserStatus
from ai.backend.infra.http.addresses import parse_network
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.graphql.context import Info, context_of
from ai.backend.manager.graphql.resolvers import mutation
from ai.backend.manager.graphql.values import View
from ai.backend.manager.identity.graphql import change, keypair_view, user_view, uuid_of
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.users import UserService

E = TypeVar("E", bound=StrEnum)
_USER_FIELDS = (
    *("username", "need_password_change", "full_name", "description"),
    *("domain_name", "resource_policy", "main_access_key", "totp_activated", "sudo_session_enabled"),
)
_KEYPAIR_FIELDS = ("is_active", "is_admin", "resource_policy", "rate_limit", "concurrency_limit")
_MAX_NETWORKS = 64


def _enum_member(enum_type: type[E], field: str, value: Any) -> E:
    """Returns the member of an enumeration by its value; also accepts upper case, spaces around, and ``_`` for ``-``.

    Published clients may write the name of a member in place of its value.
    """
    try:
        return enum_type(str(value).strip().lower().replace("_", "-"))
    except ValueError:
        raise InvalidInput(f"{field} is one of {', '.join(enum_type)}.", data={field: "unknown"}) from None


def _user_values(props: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: props[name] for name in _USER_FIELDS if props.get(name) is not None}
    if props.get("role") is not None:
        values["role"] = _enum_member(UserRole, "role", props["role"])
    if props.get("status") is not None:
        values["status"] = _enum_member(UserStatus, "status", props["status"])
    elif props.get("is_active") is not None:
        values["status"] = UserStatus.ACTIVE if props["is_active"] else UserStatus.INACTIVE
    if props.get("allowed_client_ip") is not None:
        values["allowed_client_ip"] = _read_networks(props["allowed_client_ip"])
    if props.get("group_ids") is not None:
        values["group_ids"] = [GroupId(uuid_of(id_text, "group_ids")) for id_text in props["group_ids"]]
    return values


def _read_networks(network_texts: list[Any]) -> tuple[str, ...]:
    """Returns networks and addresses in their canonical text; an empty tuple allows every address."""
    if len(network_texts) > _MAX_NETWORKS:
        raise InvalidInput(f"At most {_MAX_NETWORKS} networks are allowed.", data={"allowed_client_ip": "too many"})
    try:
        return tuple(
            dict.fromkeys(
                str(parse_network(str(network_text)))
                for network_text in network_texts
                if str(network_text or "").strip()
            )
        )
    except ValueError as e:
        raise InvalidInput(f"allowed_client_ip: {e}"[:200], data={"allowed_client_ip": "malformed"}) from None


def _keypair_values(props: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: props[name] for name in _KEYPAIR_FIELDS if props.get(name) is not None}
    if props.get("allowed_client_ip") is not None:
        values["allowed_client_ip"] = _read_networks(props["allowed_client_ip"])
    for name in ("rate_limit", "concurrency_limit"):
        if values.get(name, 0) < 0:
            raise InvalidInput(f"{name} is 0 (no limit) or more.", data={name: "negative"})
    return values


class UserResolvers:
    """Answers the mutations of users and keypairs."""

    def __init__(self, users: UserService, identity: IdentityService) -> None:
        self._users = users
        self._identity = identity

    @mutation("create_user")
    async def create_user(self, info: Info, email: str, props: View) -> View:
        async def work(caller: Caller) -> Any:
            user, _keypair = await self._users.create_user(caller, email, str(props["password"]), _user_values(props))
            return await self._identity.user(caller, uuid=user.uuid)

        return await change(info, "user", email, work, user_view)

    @mutation("modify_user")
    async def modify_user(self, info: Info, email: str, props: View) -> View:
        password, address = props.get("password") or None, context_of(info).address

        async def work(caller: Caller) -> Any:
            values = _user_values(props)
            return await self._users.modify_user(caller, email, values, password=password, address=address)

        return await change(info, "user", email, work, user_view)

    @mutation("delete_user")
    async def delete_user(self, info: Info, email: str) -> View:
        return await change(info, "user", email, lambda caller: self._users.delete_user(caller, email))

    @mutation("purge_user")
    async def purge_user(self, info: Info, email: str, props: View) -> View:
        purge, purge_shared = self._users.purge_user, bool(props.get("purge_shared_vfolders"))
        return await change(info, "user", email, lambda caller: purge(caller, email, purge_shared=purge_shared))

    @mutation("create_keypair")
    async def create_keypair(self, info: Info, user_id: str, props: View) -> View:
        """Creates a keypair of a user whom the client names by e-mail address or UUID."""

        async def work(caller: Caller) -> View:
            try:
                uuid = UserId(UUID(user_id))
            except ValueError:
                email = user_id
            else:
                email = (await self._identity.user(caller, uuid=uuid)).email
            new_keypair = await self._users.create_keypair(caller, email, _keypair_values(props))
            keypair = await self._identity.keypair(caller, new_keypair.access_key)
            return {**keypair_view(keypair), "secret_key": new_keypair.secret_key}

        return await change(info, "keypair", user_id, work, lambda view: view)

    @mutation("modify_keypair")
    async def modify_keypair(self, info: Info, access_key: str, props: View) -> View:
        async def work(caller: Caller) -> Any:
            return await self._users.modify_keypair(caller, access_key, _keypair_values(props))

        return await change(info, "keypair", access_key, work, keypair_view)

    @mutation("rotate_keypair")
    async def rotate_keypair(self, info: Info, access_key: str) -> View:
        async def work(caller: Caller) -> View:
            new_keypair = await self._users.rotate_keypair(caller, access_key)
            keypair = await self._identity.keypair(caller, access_key)
            return {**keypair_view(keypair), "secret_key": new_keypair.secret_key}

        return await change(info, "keypair", access_key, work, lambda view: view)

    @mutation("delete_keypair")
    async def delete_keypair(self, info: Info, access_key: str) -> View:
        key = AccessKey(access_key)
        return await change(info, "keypair", key, lambda caller: self._users.delete_keypair(caller, key))
