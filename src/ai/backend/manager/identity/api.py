"""REST routes under ``/auth``: passwords, sign-out and SSH keys (peer facts 4.2)."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.http.fields import EmptyReply, Name
from ai.backend.infra.http.routes import Call, Nothing, Schema, route
from ai.backend.manager.access.caller import ADMIN_ROLES
from ai.backend.manager.access.requests import caller_of
from ai.backend.manager.identity.passwords import MAX_PASSWORD_LENGTH, PasswordService
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.ssh_keys import MAX_KEY_LENGTH, SshKeyService

CurrentPassword = Annotated[str, Meta(min_length=1, max_length=1_024)]


class SignoutBody(Schema, frozen=True):
    """The account to sign out; ``username`` is another name for the email."""

    password: CurrentPassword
    email: Name | None = None
    username: Name | None = None


class SshKeyBody(Schema, frozen=True):
    """An SSH key to upload; ``privkey`` is only compared with ``pubkey``, optional and not stored."""

    pubkey: Annotated[str, Meta(max_length=MAX_KEY_LENGTH)]
    privkey: Annotated[str, Meta(max_length=MAX_KEY_LENGTH)] = ""


class RoleQuery(Schema, frozen=True):
    group: Name | None = None


Password = Annotated[str, Meta(max_length=MAX_PASSWORD_LENGTH)]


class UpdatePasswordBody(Schema, frozen=True):
    old_password: Password
    new_password: Password
    new_password2: Password


class PublicKey(TypedDict):
    ssh_public_key: str


class KeyPair(PublicKey):
    ssh_private_key: str


class Roles(TypedDict):
    """The roles of the caller; ``group_role`` is null without a group of the caller in the query."""

    global_role: str
    domain_role: Literal["admin", "user"]
    group_role: Literal["admin", "user"] | None


class PasswordReply(TypedDict):
    error_msg: None


class AuthApi:
    """Routes of sign-out, roles, passwords and SSH keys."""

    def __init__(self, identity: IdentityService, passwords: PasswordService, ssh_keys: SshKeyService) -> None:
        self._identity = identity
        self._passwords = passwords
        self._ssh_keys = ssh_keys

    @route("POST", "/auth/signout", body=SignoutBody, max_body=65_536)
    async def sign_out(self, call: Call[SignoutBody]) -> EmptyReply:
        """Makes the caller and all of their keypairs inactive."""
        caller, body = caller_of(call), call.body
        await self._passwords.sign_out(caller, body.email or body.username or caller.email, body.password)
        return {}

    @route("GET", "/auth/ssh-keypair")
    async def ssh_key(self, call: Call) -> PublicKey:
        """Returns the public key that opens the sessions of the caller's keypair; empty for none."""
        return {"ssh_public_key": await self._ssh_keys.public_key(caller_of(call))}

    @route("PATCH", "/auth/ssh-keypair")
    async def generate_ssh_key(self, call: Call) -> KeyPair:
        """Replaces the SSH key by a generated one. The private half is returned only once and not stored."""
        public_key, private_key = await self._ssh_keys.generate(caller_of(call))
        return {"ssh_public_key": public_key, "ssh_private_key": private_key}

    @route("POST", "/auth/ssh-keypair", body=SshKeyBody)
    async def upload_ssh_key(self, call: Call[SshKeyBody]) -> KeyPair:
        """Replaces the SSH key by an uploaded one, which opens sessions created from now on."""
        public_key = await self._ssh_keys.upload(caller_of(call), call.body.pubkey, call.body.privkey)
        return {"ssh_public_key": public_key, "ssh_private_key": ""}

    @route("GET", "/auth/role", query=RoleQuery)
    async def role(self, call: Call[Nothing, RoleQuery]) -> Roles:
        """Returns the roles of the caller: in the installation, in the domain, in a group."""
        caller = caller_of(call)
        domain_role: Literal["admin", "user"] = "admin" if caller.role in ADMIN_ROLES else "user"
        groups = await self._identity.groups(caller, name=call.query.group) if call.query.group is not None else ()
        is_group_admin = any(group.id in caller.administered_groups for group in groups)
        group_role = ("admin" if is_group_admin else domain_role) if groups else None
        return {"global_role": caller.role.value, "domain_role": domain_role, "group_role": group_role}

    @route("POST", "/auth/update-password", body=UpdatePasswordBody)
    async def update_password(self, call: Call[UpdatePasswordBody]) -> PasswordReply:
        """Changes the caller's password."""
        body = call.body
        if body.new_password != body.new_password2:
            raise InvalidInput("The new passwords differ.", data={"new_password2": "not the same"})
        await self._passwords.change_own(caller_of(call), body.old_password, body.new_password)
        return {"error_msg": None}
