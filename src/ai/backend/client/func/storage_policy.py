"""Storage limits of users and groups."""

from __future__ import annotations

from typing import Any

from ai.backend.client.func.base import Mutations
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.transport import Transport


class AsyncStoragePolicy(Mutations):
    """``api_session.UserResourcePolicy`` and ``ProjectResourcePolicy``: ``max_vfolder_count`` (0: any number) and
    ``max_quota_scope_size`` in bytes (-1: no limit)."""

    def __init__(self, transport: Transport, kind: str) -> None:
        super().__init__(transport)
        self._kind = kind

    async def list(self) -> list[dict[str, Any]]:
        root = f"{self._kind}_resource_policies"
        return list((await self._admin.query(f"{{ {root} {{ name max_vfolder_count max_quota_scope_size }} }}"))[root])

    async def create(self, name: str, /, **props: Any) -> None:
        kind = f"Create{self._kind.title()}ResourcePolicyInput"
        await self.mutate(f"create_{self._kind}_resource_policy", {"name": ("String!", name)}, kind, props)

    async def update(self, name: str, /, **props: Any) -> None:
        kind = f"Modify{self._kind.title()}ResourcePolicyInput"
        await self.mutate(f"modify_{self._kind}_resource_policy", {"name": ("String!", name)}, kind, props)

    async def delete(self, name: str) -> None:
        await self.mutate(f"delete_{self._kind}_resource_policy", {"name": ("String!", name)})


class StoragePolicy(Facade[AsyncStoragePolicy]):
    """``UserResourcePolicy`` and ``ProjectResourcePolicy`` of a blocking session."""

    list = blocking(AsyncStoragePolicy.list)
    create = blocking(AsyncStoragePolicy.create)
    update = blocking(AsyncStoragePolicy.update)
    delete = blocking(AsyncStoragePolicy.delete)
