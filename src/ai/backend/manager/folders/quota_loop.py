"""Brings the limits of quota scopes to the volumes: the owner's own limit, else that of their policy."""

from __future__ import annotations

import logging

from ai.backend.common.errors import BackendError
from ai.backend.common.volume_paths import QuotaScopeId
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.folders.model import ScopeLimit
from ai.backend.manager.folders.store import FolderStore

log = logging.getLogger(__name__)


class QuotaLoop(PeriodicLoop):
    """What is wanted is in the database; what a proxy was told is remembered for as long as this process lives."""

    period_s = 60.0

    def __init__(self, store: FolderStore, storage: FolderGateway) -> None:
        super().__init__()
        self._store = store
        self._storage = storage
        self._told: dict[tuple[str, QuotaScopeId], int | None] = {}

    async def once(self) -> None:
        for limit in await self._store.scope_limits():
            try:
                await self._tell(limit)
            except BackendError as e:
                log.warning("the limit of %s on %s is not set yet: %s", limit.scope, limit.host, e.message)

    async def ensure(self, host: str, scope: QuotaScopeId) -> None:
        """Set the limit of one scope now, if this process has not done so. Raises what the storage proxy says."""
        await self._tell(await self._store.scope_limit(host, scope))

    async def _tell(self, limit: ScopeLimit) -> None:
        key, wanted = (limit.host, limit.scope), limit.limit_bytes
        if key not in self._told or self._told[key] != wanted:
            await self._storage.set_scope_limit(limit.host, limit.scope, wanted)
            self._told[key] = wanted
