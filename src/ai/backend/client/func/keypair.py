"""Keypairs over GraphQL (client wire contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.base import Mutations
from ai.backend.client.portal import Facade, blocking

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


class AsyncKeyPair(Mutations):
    """Keypairs. ``props``: is_active, is_admin, resource_policy, rate_limit (requests in 15 minutes; 0: any number)."""

    async def create(self, user_id: str, /, **props: Any) -> dict[str, Any]:
        """Creates a keypair for the user of an e-mail address: ``access_key`` and, this once, ``secret_key``."""
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
        """Remove a keypair for good; not the main keypair of its user."""
        await self.mutate("delete_keypair", {"access_key": ("String!", access_key)})

    async def info(self, *, fields: Sequence[str] = KEYPAIR_FIELDS) -> dict[str, Any]:
        """Returns the caller's own keypair."""
        reply = await self._admin.query(f"query {{ keypair {{ {' '.join(fields)} }} }}")
        return dict(reply.get("keypair") or {})

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


class KeyPair(Facade[AsyncKeyPair]):
    """``api_session.KeyPair`` of a blocking session."""

    info = blocking(AsyncKeyPair.info)
    paginated_list = blocking(AsyncKeyPair.paginated_list)
    create = blocking(AsyncKeyPair.create)
    update = blocking(AsyncKeyPair.update)
    activate = blocking(AsyncKeyPair.activate)
    deactivate = blocking(AsyncKeyPair.deactivate)
    delete = blocking(AsyncKeyPair.delete)
