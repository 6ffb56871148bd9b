"""Signing in with a password instead of a signature, and changing it (client wire contract 2.9 and 2.10)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.manager.api.access import caller_of
from ai.backend.manager.services.passwords import MAX_LENGTH, PasswordService

Password = Annotated[str, Meta(max_length=MAX_LENGTH)]
Name = Annotated[str, Meta(max_length=256)]


class AuthorizeBody(Schema, frozen=True):
    """``username`` is an e-mail address."""

    username: Name
    password: Password
    domain: Name | None = None
    type: Literal["keypair"] = "keypair"


class UpdatePasswordBody(Schema, frozen=True):
    old_password: Password
    new_password: Password
    new_password2: Password


class UpdatePasswordUnsignedBody(Schema, frozen=True):
    username: Name
    current_password: Password
    new_password: Password
    domain: Name | None = None


class PasswordsApi:
    """``/auth``."""

    def __init__(self, passwords: PasswordService) -> None:
        self._passwords = passwords

    @route("POST", "/auth/authorize", body=AuthorizeBody, auth=False, audited=True)
    async def authorize(self, call: Call[AuthorizeBody]) -> dict[str, Any]:
        """The main keypair of a user, for an address and a password."""
        body = call.body
        found = await self._passwords.sign_in(
            body.username, body.password, address=call.address, domain_name=body.domain or None
        )
        return {
            "data": {
                "response_type": "success",
                "access_key": found.keypair.access_key,
                "secret_key": found.keypair.secret_key,
                "role": found.user.role.value,
                "status": found.user.status.value,
            }
        }

    @route("POST", "/auth/update-password", body=UpdatePasswordBody)
    async def update_password(self, call: Call[UpdatePasswordBody]) -> dict[str, Any]:
        """Change one's own password."""
        body = call.body
        if body.new_password != body.new_password2:
            raise InvalidInput("The new passwords differ.", data={"new_password2": "not the same"})
        await self._passwords.change_own(caller_of(call), body.old_password, body.new_password)
        return {"error_msg": None}

    @route("POST", "/auth/update-password-no-auth", body=UpdatePasswordUnsignedBody, auth=False, audited=True)
    async def update_password_unsigned(self, call: Call[UpdatePasswordUnsignedBody]) -> dict[str, Any]:
        """Change a password that must be changed before its user signs in."""
        body = call.body
        await self._passwords.change_when_asked(
            body.username, body.current_password, body.new_password, address=call.address
        )
        return {"error_msg": None}
