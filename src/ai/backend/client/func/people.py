"""Users and keypairs over GraphQL (client wire contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack
from uuid import UUID

from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.bounds import Mutations

USER_FIELDS = (
    "uuid",
    "username",
    "role",
    "email",
    "full_name",
    "need_password_change",
    "status",
    "status_info",
    "created_at",
    "domain_name",
    "groups { id name }",
    "main_access_key",
    "allowed_client_ip",
)
KEYPAIR_FIELDS = (
    "user_id",
    "access_key",
    "is_active",
    "is_admin",
    "created_at",
    "last_used",
    "resource_policy",
    "rate_limit",
    "concurrency_used",
)


class AsyncUser(Mutations):
    """``api_session.User``.

    ``props``: username, full_name, role, status (``active``, ``inactive``, ``deleted``, ``before-verification``),
    need_password_change, description, domain_name, group_ids, resource_policy, main_access_key, password,
    allowed_client_ip (a list of networks; empty: from anywhere).
    """

    async def paginated_list(
        self,
        status: str | None = None,
        group: str | None = None,
        *,
        fields: Sequence[str] = USER_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        """``group`` is the id of one."""
        arguments = {
            "status": ("String", status),
            "group_id": ("UUID", group),
        }
        return await self._admin.fetch_page("user_list", fields, arguments, **paging)

    async def detail(self, email: str | None = None, fields: Sequence[str] = USER_FIELDS) -> dict[str, Any]:
        """The caller without an address."""
        query = f"query($email: String) {{ user(email: $email) {{ {' '.join(fields)} }} }}"
        return dict((await self._admin.query(query, {"email": email}))["user"])

    async def detail_by_uuid(self, user_uuid: UUID | str, fields: Sequence[str] = USER_FIELDS) -> dict[str, Any]:
        query = f"query($id: ID) {{ user_from_uuid(user_id: $id) {{ {' '.join(fields)} }} }}"
        return dict((await self._admin.query(query, {"id": str(user_uuid)}))["user_from_uuid"])

    async def create(self, domain_name: str, email: str, password: str, /, **props: Any) -> dict[str, Any]:
        """The new user: ``uuid``, ``email``, ``username``, ``domain_name`` and ``main_access_key``."""
        props = {"domain_name": domain_name, "password": password, **props}
        wanted = "user { uuid email username domain_name main_access_key }"
        named = {"email": ("String!", email)}
        return dict((await self.mutate("create_user", named, "UserInput", props, result=wanted))["user"])

    async def update(self, email: str, /, **props: Any) -> None:
        await self.mutate("modify_user", {"email": ("String!", email)}, "ModifyUserInput", props)

    async def delete(self, email: str) -> None:
        """The keypairs are inactive at once, the sessions end; the rest is kept until :meth:`purge`."""
        await self.mutate("delete_user", {"email": ("String!", email)})

    async def purge(self, email: str, *, purge_shared_vfolders: bool = False) -> None:
        """For good. Folders that others share become the caller's, unless they are to go too."""
        props = {"purge_shared_vfolders": purge_shared_vfolders}
        await self.mutate("purge_user", {"email": ("String!", email)}, "PurgeUserInput", props)


class AsyncKeyPair(Mutations):
    """Keypairs. ``props``: is_active, is_admin, resource_policy, rate_limit (requests in 15 minutes; 0: any number)."""

    async def create(self, user_id: str, /, **props: Any) -> dict[str, Any]:
        """A further keypair of the user of an e-mail address: ``access_key`` and, this once, ``secret_key``."""
        answer = await self.mutate(
            "create_keypair",
            {"user_id": ("String!", user_id)},
            "KeyPairInput",
            props,
            result="keypair { access_key secret_key }",
        )
        return dict(answer["keypair"])

    async def update(self, access_key: str, /, **props: Any) -> None:
        named = {"access_key": ("String!", access_key)}
        await self.mutate("modify_keypair", named, "ModifyKeyPairInput", props)

    async def activate(self, access_key: str) -> None:
        await self.update(access_key, is_active=True)

    async def deactivate(self, access_key: str) -> None:
        await self.update(access_key, is_active=False)

    async def delete(self, access_key: str) -> None:
        """For good; not the main keypair of its user."""
        await self.mutate("delete_keypair", {"access_key": ("String!", access_key)})

    async def info(self, *, fields: Sequence[str] = KEYPAIR_FIELDS) -> dict[str, Any]:
        """The caller's own keypair."""
        found = await self._admin.query(f"query {{ keypair {{ {' '.join(fields)} }} }}")
        return dict(found.get("keypair") or {})

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
