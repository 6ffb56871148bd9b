"""Users, keypairs, and the caller's own credentials (client wire contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack
from uuid import UUID

from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.base import Area, Objects

USER_FIELDS = (
    "uuid", "username", "role", "email", "full_name", "need_password_change", "status", "status_info", "created_at",
    "domain_name", "groups { id name }", "main_access_key", "allowed_client_ip", "totp_activated",
    "sudo_session_enabled",
)  # fmt: skip
KEYPAIR_FIELDS = (
    "user_id", "access_key", "is_active", "is_admin", "created_at", "last_used", "resource_policy", "rate_limit",
    "concurrency_used",
)  # fmt: skip


class AsyncUser(Objects):
    """Manages users by their e-mail addresses (``api_session.User``).

    ``props``: username, full_name, role, status (``active``, ``inactive``, ``deleted``, ``before-verification``),
    need_password_change, description, domain_name, group_ids, resource_policy, main_access_key, password,
    allowed_client_ip (a list of networks; empty: from anywhere), totp_activated (only False), sudo_session_enabled.
    """

    noun = "user"
    key = ("email", "String!")
    inputs = ("UserInput", "ModifyUserInput")

    async def paginated_list(
        self,
        status: str | None = None,
        group: str | None = None,
        *,
        fields: Sequence[str] = USER_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        """Returns a page of users; ``group`` is the id of a group."""
        arguments = {"status": ("String", status), "group_id": ("UUID", group)}
        return await self._admin.fetch_page("user_list", fields, arguments, **paging)

    async def detail(self, email: str | None = None, fields: Sequence[str] = USER_FIELDS) -> dict[str, Any]:
        """Returns the user with an e-mail address, or the caller without an address."""
        return dict(await self._admin.select("user", fields, email=("String", email)))

    async def detail_by_uuid(self, user_uuid: UUID | str, fields: Sequence[str] = USER_FIELDS) -> dict[str, Any]:
        return dict(await self._admin.select("user_from_uuid", fields, user_id=("ID", str(user_uuid))))

    async def create(self, domain_name: str, email: str, password: str, /, **props: Any) -> dict[str, Any]:
        """Creates a user and returns ``uuid``, ``email``, ``username``, ``domain_name`` and ``main_access_key``."""
        props = {"domain_name": domain_name, "password": password, **props}
        selection = "user { uuid email username domain_name main_access_key }"
        return dict((await self._mutate("create", email, self.inputs[0], props, result=selection))["user"])

    async def purge(self, email: str, *, purge_shared_vfolders: bool = False) -> None:
        """Removes a user for good. Folders that others share become the caller's, unless they are removed too."""
        await self._mutate("purge", email, "PurgeUserInput", {"purge_shared_vfolders": purge_shared_vfolders})


class AsyncKeyPair(Objects):
    """Manages keypairs by their access keys (``api_session.KeyPair``).

    ``props``: is_active, is_admin, resource_policy, rate_limit (requests in 15 minutes; 0: any number),
    allowed_client_ip (a list of networks beside those of the user; empty: from anywhere).
    """

    noun = "keypair"
    key = ("access_key", "String!")
    inputs = ("KeyPairInput", "ModifyKeyPairInput")

    async def create(self, user_id: str, /, **props: Any) -> dict[str, Any]:
        """Creates a keypair for a user (e-mail address); returns ``access_key`` and, this once, ``secret_key``."""
        arguments, selection = {"user_id": ("String!", user_id)}, "keypair { access_key secret_key }"
        reply = await self._admin.mutate("create_keypair", arguments, self.inputs[0], props, result=selection)
        return dict(reply["keypair"])

    async def rotate(self, access_key: str) -> dict[str, Any]:
        """Gives a keypair a new secret; returns ``access_key`` and, this once, ``secret_key``."""
        arguments, selection = {"access_key": ("String!", access_key)}, "keypair { access_key secret_key }"
        reply = await self._admin.mutate("rotate_keypair", arguments, result=selection)
        return dict(reply["keypair"])

    async def activate(self, access_key: str) -> None:
        await self.update(access_key, is_active=True)

    async def deactivate(self, access_key: str) -> None:
        await self.update(access_key, is_active=False)

    async def info(self, *, fields: Sequence[str] = KEYPAIR_FIELDS) -> dict[str, Any]:
        """Returns the caller's own keypair."""
        return dict(await self._admin.select("keypair", fields) or {})

    async def paginated_list(
        self,
        *,
        is_active: bool | None = None,
        user_id: str | None = None,
        domain_name: str | None = None,
        fields: Sequence[str] = KEYPAIR_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        arguments = {
            "is_active": ("Boolean", is_active),
            "email": ("String", user_id),
            "domain_name": ("String", domain_name),
        }
        return await self._admin.fetch_page("keypair_list", fields, arguments, **paging)


class AsyncAuth(Area):
    """Manages passwords, one-time passwords, keypairs and SSH keys of the caller (``api_session.Auth``)."""

    async def authorize(self, user_id: str, password: str, *, otp: str | None = None) -> dict[str, Any]:
        """Returns the keypair of a user, by e-mail address and password: ``access_key``, ``secret_key``, ``role``.

        ``otp``: a one-time password or a recovery code, for users who have them.
        """
        body = {"type": "keypair", "domain": self._transport.config.domain, "username": user_id, "password": password}
        body |= {"otp": otp} if otp else {}
        return dict((await self._send("POST", "/auth/authorize", body, signed=False)).get("data", {}))

    async def update_password(self, old_password: str, new_password: str, new_password2: str) -> None:
        """Changes the caller's password."""
        body = {"old_password": old_password, "new_password": new_password, "new_password2": new_password2}
        await self._send("POST", "/auth/update-password", body)

    async def update_password_no_auth(
        self, domain: str, user_id: str, current: str, new: str, *, otp: str | None = None
    ) -> None:
        """Changes a password without a signed request, for a user who must change it before signing in."""
        body = {"domain": domain, "username": user_id, "current_password": current, "new_password": new}
        body |= {"otp": otp} if otp else {}
        await self._send("POST", "/auth/update-password-no-auth", body, signed=False)

    async def sign_up(self, email: str, password: str, *, full_name: str = "", domain: str = "") -> None:
        """Requests a new account without a signed request. :meth:`verify_email` then confirms its e-mail address."""
        body = {"email": email, "password": password, "full_name": full_name, "domain": domain}
        await self._send("POST", "/auth/signup", body, signed=False)

    async def verify_email(self, token: str, password: str) -> None:
        """Activates a new account by the token that was sent to its e-mail address. The request is not signed."""
        await self._send("POST", "/auth/verify-email", {"token": token, "password": password}, signed=False)

    async def totp_status(self) -> dict[str, Any]:
        """Returns ``totp_activated``, ``created_at`` and ``recovery_codes_left``."""
        return await self._get("/totp")

    async def begin_totp(self) -> dict[str, str]:
        """Makes a key for an authenticator app: ``totp_key``, and ``totp_uri`` for a QR code."""
        return await self._send("POST", "/totp", {})

    async def confirm_totp(self, otp: str) -> list[str]:
        """Activates one-time passwords by the first one; returns recovery codes, this once."""
        return list((await self._send("POST", "/totp/verify", {"otp": otp}))["recovery_codes"])

    async def new_recovery_codes(self, otp: str) -> list[str]:
        """Replaces the recovery codes and returns the new ones."""
        return list((await self._send("POST", "/totp/recovery-codes", {"otp": otp}))["recovery_codes"])

    async def remove_totp(self, otp: str) -> None:
        """Turns off one-time passwords for the caller. ``otp`` is a one-time password or a recovery code."""
        await self._send("DELETE", "/totp", {"otp": otp})

    async def sign_ins(self, email: str | None = None, *, limit: int = 20, offset: int = 0) -> dict[str, Any]:
        """Returns ``items`` (``at``, ``address``, ``method``, ``outcome``), newest first, and ``total_count``."""
        return await self._get("/auth/sign-ins", email=email, limit=limit, offset=offset)

    async def rotate_keypair(self) -> dict[str, Any]:
        """Gives the caller's keypair a new secret; returns ``access_key`` and, this once, ``secret_key``."""
        return await self._send("POST", "/auth/keypair/rotate", {})

    async def prove(self, *, password: str = "", otp: str = "") -> dict[str, str]:
        """Gets a proof of the caller's password or one-time password, and sends it with later requests of this session.

        Returns ``proof`` and ``expires_at``, for :meth:`use_proof` of another API session of this keypair.
        """
        reply = await self._send("POST", "/auth/proof", {"password": password} if password else {"otp": otp})
        self.use_proof(reply["proof"])
        return reply

    def use_proof(self, proof: str) -> None:
        """Sends the given proof with later requests of this API session. An empty text ends that."""
        self._transport.config.proof = proof

    async def ssh_public_key(self) -> str:
        """Returns the key that opens the sessions of the caller's keypair; empty if there is none."""
        return str((await self._get("/auth/ssh-keypair")).get("ssh_public_key") or "")

    async def generate_ssh_keypair(self) -> dict[str, str]:
        """Replaces the SSH key; returns ``ssh_public_key`` and, this once, ``ssh_private_key``."""
        return await self._send("PATCH", "/auth/ssh-keypair", {})

    async def upload_ssh_keypair(self, public_key: str, private_key: str = "") -> str:
        """Lets an existing key open sessions; the private half is only compared. Returns the public key as stored."""
        body = {"pubkey": public_key, "privkey": private_key}
        return str((await self._send("POST", "/auth/ssh-keypair", body))["ssh_public_key"])

    async def check(self) -> dict[str, Any]:
        """Verifies the configured keypair by a request, and returns the keypair's properties."""
        return await AsyncKeyPair(self._transport).info()
