"""Applies the limits of quota scopes to the volumes: the explicit limit, else that of the owner's policy."""

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
    """Sends limits from the database to the storage proxies; remembers in memory which ones were sent."""

    period_s = 60.0

    def __init__(self, store: FolderStore, storage: FolderGateway) -> None:
        super().__init__()
        self._store = store
        self._storage = storage
        self._applied: dict[tuple[str, QuotaScopeId], int | None] = {}

    async def once(self) -> None:
        for limit in await self._store.scope_limits():
            try:
                await self._apply(limit)
            except BackendError as e:
                log.warning("the limit of %s on %s is not set yet: %s", limit.scope, limit.host, e.message)

    async def ensure(self, host: str, scope: QuotaScopeId) -> None:
        """Applies the limit of one scope unless this process has done so. Raises the errors of the storage proxy."""
        await self._apply(await self._store.scope_limit(host, scope))

    async def _apply(self, limit: ScopeLimit) -> None:
        key, limit_bytes = (limit.host, limit.scope), limit.limit_bytes
        if key not in self._applied or self._applied[key] != limit_bytes:
            await self._storage.set_scope_limit(limit.host, limit.scope, limit_bytes)
            self._applied[key] = limit_bytes
