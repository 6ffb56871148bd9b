"""Leaving an installation; nobody joins one by themselves (peer facts 4.2)."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ai.backend.common.errors import NotSupported
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.manager.api.access import caller_of
from ai.backend.manager.services.passwords import PasswordService

Password = Annotated[str, Meta(min_length=1, max_length=1_024)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class SignoutBody(Schema, frozen=True):
    """``username`` is another name for the email."""

    password: Password
    email: Name | None = None
    username: Name | None = None


class AuthApi:
    """``/auth``, but for passwords and roles."""

    def __init__(self, passwords: PasswordService) -> None:
        self._passwords = passwords

    @route("POST", "/auth/signout", body=SignoutBody, max_body=65_536)
    async def sign_out(self, call: Call[SignoutBody]) -> dict[str, Any]:
        """Leave this installation: the caller and all of their keypairs become inactive."""
        caller, body = caller_of(call), call.body
        await self._passwords.sign_out(caller, body.email or body.username or caller.email, body.password)
        return {}

    @route("POST", "/auth/signup", auth=False, audited=False, max_body=65_536)
    async def sign_up(self, call: Call) -> None:
        """Not offered by this server: accounts are made by administrators."""
        raise NotSupported("Nobody signs up here by themselves: no sign-up hook is installed; ask an administrator.")
