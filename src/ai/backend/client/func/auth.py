"""Passwords, keypairs and SSH keys of the caller."""

from __future__ import annotations

from typing import Any

from ai.backend.client.func.base import ResourceClient
from ai.backend.client.func.keypair import AsyncKeyPair
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.wire import Call


class AsyncAuth(ResourceClient):
    """Credentials."""

    async def authorize(self, user_id: str, password: str) -> dict[str, Any]:
        """Returns the keypair of a user, by e-mail address and password: ``access_key``, ``secret_key``, ``role``."""
        body = {"type": "keypair", "domain": self._transport.config.domain, "username": user_id, "password": password}
        call = Call(method="POST", path="/auth/authorize", json=body, signed=False)
        return dict((await self._transport.request(call)).object().get("data", {}))

    async def update_password(self, old_password: str, new_password: str, new_password2: str) -> None:
        """Change the caller's password."""
        body = {"old_password": old_password, "new_password": new_password, "new_password2": new_password2}
        await self._send("POST", "/auth/update-password", body)

    async def update_password_no_auth(self, domain: str, user_id: str, current: str, new: str) -> None:
        """Change a password that must be changed before its user signs in; without a signature."""
        body = {"domain": domain, "username": user_id, "current_password": current, "new_password": new}
        call = Call(method="POST", path="/auth/update-password-no-auth", json=body, signed=False)
        await self._transport.request(call)

    async def ssh_public_key(self) -> str:
        """Returns the key that opens the sessions of the caller's keypair; empty if there is none."""
        return str((await self._get("/auth/ssh-keypair")).get("ssh_public_key") or "")

    async def generate_ssh_keypair(self) -> dict[str, str]:
        """Replace the SSH key; returns ``ssh_public_key`` and, this once, ``ssh_private_key``."""
        return await self._send("PATCH", "/auth/ssh-keypair", {})

    async def upload_ssh_keypair(self, public_key: str, private_key: str = "") -> str:
        """Let an existing key open sessions; the private half is only compared. Returns the public key as stored."""
        body = {"pubkey": public_key, "privkey": private_key}
        return str((await self._send("POST", "/auth/ssh-keypair", body))["ssh_public_key"])

    async def check(self) -> dict[str, Any]:
        """Verifies the configured keypair and returns it."""
        return await AsyncKeyPair(self._transport).info()


class Auth(Facade[AsyncAuth]):
    """``api_session.Auth`` of a blocking session."""

    authorize = blocking(AsyncAuth.authorize)
    check = blocking(AsyncAuth.check)
    update_password = blocking(AsyncAuth.update_password)
    update_password_no_auth = blocking(AsyncAuth.update_password_no_auth)
    ssh_public_key = blocking(AsyncAuth.ssh_public_key)
    generate_ssh_keypair = blocking(AsyncAuth.generate_ssh_keypair)
    upload_ssh_keypair = blocking(AsyncAuth.upload_ssh_keypair)
