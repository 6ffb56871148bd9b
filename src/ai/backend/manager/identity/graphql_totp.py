"""GraphQL fields of one-time passwords: what ``/totp`` has as REST."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from ai.backend.manager.access.caller import Caller
from ai.backend.manager.graphql.context import Info, caller_of, context_of
from ai.backend.manager.graphql.resolvers import field, mutation, query
from ai.backend.manager.graphql.values import View
from ai.backend.manager.identity.graphql import change
from ai.backend.manager.identity.model import User
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.totp import NewDevice, TotpService
from ai.backend.manager.identity.users import UserService


def _device_view(device: NewDevice) -> View:
    return {"totp_key": device.key, "totp_uri": device.uri}


def _codes_view(codes: Sequence[str]) -> View:
    return {"recovery_codes": list(codes)}


class TotpResolvers:
    """Answers the query and the mutations of one-time passwords.

    The audit trail gets the user whose one-time passwords are changed, and no codes.
    """

    def __init__(self, identity: IdentityService, users: UserService, totp: TotpService) -> None:
        self._identity = identity
        self._users = users
        self._totp = totp

    @query("totp")
    async def totp(self, info: Info) -> View:
        device = await self._totp.status(caller_of(info).user_id)
        if device is None or not device.is_active:
            return {"activated": False, "activated_at": None, "recovery_codes_left": 0}
        return {
            "activated": True,
            "activated_at": device.created_at,
            "recovery_codes_left": device.recovery_codes,
        }

    @field("User", "totp_activated_at")
    async def activated_at(self, view: View, info: Info) -> datetime | None:
        device = await self._totp.status(view["uuid"]) if view["totp_activated"] else None
        return device.created_at if device is not None and device.is_active else None

    @mutation("initialize_totp")
    async def initialize(self, info: Info) -> View:
        return await self._change_own(info, self._totp.begin, _device_view)

    @mutation("activate_totp")
    async def activate(self, info: Info, otp: str) -> View:
        return await self._change_own(info, lambda user: self._totp.confirm(user, otp), _codes_view)

    @mutation("renew_totp_recovery_codes")
    async def renew_recovery_codes(self, info: Info, otp: str) -> View:
        return await self._change_own(info, lambda user: self._totp.new_recovery_codes(user, otp), _codes_view)

    @mutation("remove_totp")
    async def remove(self, info: Info, otp: str | None = None, email: str | None = None) -> View:
        async def work(caller: Caller) -> None:
            await self._users.remove_totp(caller, email=email, otp=otp or "", address=context_of(info).address)

        return await change(info, "totp", email or caller_of(info).email, work)

    async def _change_own(
        self, info: Info, change_user: Callable[[User], Awaitable[Any]], view: Callable[[Any], View]
    ) -> View:
        async def change_caller(caller: Caller) -> Any:
            return await change_user(await self._identity.user(caller))

        reply = await change(info, "totp", caller_of(info).email, change_caller, view)
        return {**reply, **(reply["totp"] or {})}
