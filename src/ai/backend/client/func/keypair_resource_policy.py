"""Resource policies of keypairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ai.backend.client.func.base import Mutations
from ai.backend.client.portal import Facade, blocking

POLICY_FIELDS = (
    "name",
    "created_at",
    "default_for_unspecified",
    "total_resource_slots",
    "max_session_lifetime",
    "max_concurrent_sessions",
    "max_containers_per_session",
    "max_pending_session_count",
    "max_pending_session_resource_slots",
    "idle_timeout",
    "allowed_vfolder_hosts",
)


class AsyncKeypairResourcePolicy(Mutations):
    """``api_session.KeypairResourcePolicy``."""

    async def list(self, fields: Sequence[str] = POLICY_FIELDS) -> list[dict[str, Any]]:
        root = "keypair_resource_policies"
        return list((await self._admin.query(f"{{ {root} {{ {' '.join(fields)} }} }}"))[root])

    async def detail(self, name: str | None = None, fields: Sequence[str] = POLICY_FIELDS) -> dict[str, Any]:
        """Returns a policy, the caller's own without a name."""
        root = "keypair_resource_policy"
        query = f"query($name: String) {{ {root}(name: $name) {{ {' '.join(fields)} }} }}"
        return dict((await self._admin.query(query, {"name": name}))[root])

    async def create(self, name: str, /, **props: Any) -> None:
        key, kind = {"name": ("String!", name)}, "CreateKeyPairResourcePolicyInput"
        await self.mutate("create_keypair_resource_policy", key, kind, props)

    async def update(self, name: str, /, **props: Any) -> None:
        key, kind = {"name": ("String!", name)}, "ModifyKeyPairResourcePolicyInput"
        await self.mutate("modify_keypair_resource_policy", key, kind, props)

    async def delete(self, name: str) -> None:
        await self.mutate("delete_keypair_resource_policy", {"name": ("String!", name)})


class KeypairResourcePolicy(Facade[AsyncKeypairResourcePolicy]):
    """``api_session.KeypairResourcePolicy`` of a blocking session."""

    list = blocking(AsyncKeypairResourcePolicy.list)
    detail = blocking(AsyncKeypairResourcePolicy.detail)
    create = blocking(AsyncKeypairResourcePolicy.create)
    update = blocking(AsyncKeypairResourcePolicy.update)
    delete = blocking(AsyncKeypairResourcePolicy.delete)
