"""GraphQL mutations of users and keypairs (spec 03-09, client wire contract 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from ariadne import MutationType

from ai.backend.common.errors import InvalidInput, NotSupported
from ai.backend.common.ids import AccessKey, GroupId, UserId
from ai.backend.common.states import UserRole, UserStatus
from ai.backend.infra.http.addresses import parse_network
from ai.backend.manager.graphql import values as views
from ai.backend.manager.graphql.context import Context, Info, answer, context_of
from ai.backend.manager.identity import graphql

mutation = MutationType()
E = TypeVar("E", bound=StrEnum)
_USER_FIELDS = (
    "username",
    "need_password_change",
    "full_name",
    "description",
    "domain_name",
    "resource_policy",
    "main_access_key",
)
_KEYPAIR_FIELDS = ("is_active", "is_admin", "resource_policy", "rate_limit")
_NOT_SUPPORTED = ("totp_activated", "sudo_session_enabled")
_MAX_NETWORKS = 64


def _member(kind: type[E], field: str, value: Any) -> E:
    """Returns a member of an enumeration by its value or its name: published clients write either."""
    word = str(value).strip().lower().replace("_", "-")
    try:
        return kind(word)
    except ValueError:
        raise InvalidInput(f"{field} is one of {', '.join(kind)}.", data={field: "unknown"}) from None


def _user_values(props: Mapping[str, Any]) -> dict[str, Any]:
    for name in _NOT_SUPPORTED:
        if props.get(name):
            raise NotSupported(f"This server does not support {name}.", data={name: "not supported"})
    values = {name: props[name] for name in _USER_FIELDS if props.get(name) is not None}
    if props.get("role") is not None:
        values["role"] = _member(UserRole, "role", props["role"])
    if props.get("status") is not None:
        values["status"] = _member(UserStatus, "status", props["status"])
    elif props.get("is_active") is not None:
        values["status"] = UserStatus.ACTIVE if props["is_active"] else UserStatus.INACTIVE
    if props.get("allowed_client_ip") is not None:
        values["allowed_client_ip"] = _networks(props["allowed_client_ip"])
    if props.get("group_ids") is not None:
        values["group_ids"] = [GroupId(_uuid(text)) for text in props["group_ids"]]
    return values


def _networks(networks: list[Any]) -> tuple[str, ...]:
    """Returns networks and addresses in canonical form, without duplicates."""
    if len(networks) > _MAX_NETWORKS:
        raise InvalidInput(f"At most {_MAX_NETWORKS} networks are allowed.", data={"allowed_client_ip": "too many"})
    try:
        return tuple(dict.fromkeys(str(parse_network(str(text))) for text in networks if str(text or "").strip()))
    except ValueError as e:
        raise InvalidInput(f"allowed_client_ip: {e}"[:200], data={"allowed_client_ip": "malformed"}) from None


def _uuid(text: Any) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise InvalidInput(f"{str(text)[:64]!r} is not a UUID.", data={"group_ids": "malformed"}) from None


@mutation.field("create_user")
async def create_user(_: Any, info: Info, email: str, props: views.View) -> views.View:
    context = context_of(info)
    service = context.services.people

    async def work() -> views.View:
        user, _pair = await service.create_user(context.caller, email, str(props["password"]), _user_values(props))
        return graphql.user_view(await context.services.identity.user(context.caller, uuid=user.uuid))

    return await answer(info, "user", email, work, lambda view: view)


@mutation.field("modify_user")
async def modify_user(_: Any, info: Info, email: str, props: views.View) -> views.View:
    context = context_of(info)
    service = context.services.people

    async def work() -> Any:
        password = props.get("password")
        return await service.modify_user(
            context.caller, email, _user_values(props), password=password or None, address=context.address
        )

    return await answer(info, "user", email, work, graphql.user_view)


@mutation.field("delete_user")
async def delete_user(_: Any, info: Info, email: str) -> views.View:
    context = context_of(info)
    return await answer(info, "user", email, lambda: context.services.people.delete_user(context.caller, email))


@mutation.field("purge_user")
async def purge_user(_: Any, info: Info, email: str, props: views.View) -> views.View:
    context = context_of(info)
    purge_shared = bool(props.get("purge_shared_vfolders"))
    return await answer(
        info,
        "user",
        email,
        lambda: context.services.people.purge_user(context.caller, email, purge_shared=purge_shared),
    )


# ---- keypairs --------------------------------------------------------------------------------------------


def _keypair_values(props: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: props[name] for name in _KEYPAIR_FIELDS if props.get(name) is not None}
    if values.get("rate_limit", 1) < 0:
        raise InvalidInput("rate_limit is 0 (no limit) or more.", data={"rate_limit": "negative"})
    return values


async def _email(context: Context, user_id: str) -> str:
    """Returns the e-mail address of a user, whom clients name by e-mail address or UUID."""
    try:
        uuid = UUID(user_id)
    except ValueError:
        return user_id
    return (await context.services.identity.user(context.caller, uuid=UserId(uuid))).email


@mutation.field("create_keypair")
async def create_keypair(_: Any, info: Info, user_id: str, props: views.View) -> views.View:
    context = context_of(info)

    async def work() -> views.View:
        email = await _email(context, user_id)
        pair = await context.services.people.create_keypair(context.caller, email, _keypair_values(props))
        keypair = await context.services.identity.keypair(context.caller, pair.access_key)
        return {**graphql.keypair_view(keypair), "secret_key": pair.secret_key}

    return await answer(info, "keypair", user_id, work, lambda view: view)


@mutation.field("modify_keypair")
async def modify_keypair(_: Any, info: Info, access_key: str, props: views.View) -> views.View:
    context = context_of(info)

    async def work() -> Any:
        return await context.services.people.modify_keypair(context.caller, access_key, _keypair_values(props))

    return await answer(info, "keypair", access_key, work, graphql.keypair_view)


@mutation.field("delete_keypair")
async def delete_keypair(_: Any, info: Info, access_key: str) -> views.View:
    context = context_of(info)
    key = AccessKey(access_key)
    return await answer(info, "keypair", key, lambda: context.services.people.delete_keypair(context.caller, key))


PEOPLE_BINDABLES = (mutation,)
