"""Limits of quota scopes in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, delete, insert, select

from ai.backend.common.folders import FolderStatus
from ai.backend.common.volume_paths import QuotaScopeId, QuotaScopeKind
from ai.backend.infra.database import Database
from ai.backend.infra.database.batching import chunks
from ai.backend.manager.folders.model import ScopeLimit
from ai.backend.manager.folders.tables import folders, quota_limits
from ai.backend.manager.identity import tables as identity_tables


def _limits(s: Connection, scopes: Sequence[tuple[str, QuotaScopeId]]) -> list[ScopeLimit]:
    """Returns the limit of each (host, scope): its own, else that of its owner's policy."""
    own = {(row.host, row.quota_scope): row.limit_bytes for row in s.execute(select(quota_limits))}
    sizes = {
        (row.kind, row.name): row.max_quota_scope_size for row in s.execute(select(identity_tables.storage_policies))
    }
    owners = {
        QuotaScopeKind.USER: (identity_tables.users, identity_tables.users.c.uuid),
        QuotaScopeKind.PROJECT: (identity_tables.groups, identity_tables.groups.c.id),
    }
    policies: dict[QuotaScopeId, str] = {}
    for kind, (table, key) in owners.items():
        ids = sorted({scope.id for _, scope in scopes if scope.kind is kind})
        for chunk in chunks(ids):
            named = select(key, table.c.resource_policy).where(key.in_(chunk))
            policies |= {QuotaScopeId(kind, row[0]): row[1] for row in s.execute(named)}
    limits = []
    for host, scope in scopes:
        explicit = own.get((host, str(scope)))
        size = explicit if explicit is not None else sizes.get((scope.kind, policies.get(scope)), -1)
        limit = size if size >= 0 else None
        limits.append(ScopeLimit(host=host, scope=scope, limit_bytes=limit, is_own=explicit is not None))
    return limits


class SqlQuotaLimits:
    """Stores limits of quota scopes; part of :class:`ai.backend.manager.folders.sql.SqlFolderStore`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def scope_limits(self) -> list[ScopeLimit]:
        stored = and_(folders.c.status != FolderStatus.DELETE_COMPLETE, folders.c.unmanaged_path.is_(None))
        query = select(folders.c.host, folders.c.quota_scope).where(stored).distinct()

        def work(s: Connection) -> list[ScopeLimit]:
            return _limits(s, [(row.host, QuotaScopeId.parse(row.quota_scope)) for row in s.execute(query)])

        return await self._db.run_read(work)

    async def scope_limit(self, host: str, scope: QuotaScopeId) -> ScopeLimit:
        return (await self._db.run_read(lambda s: _limits(s, [(host, scope)])))[0]

    async def set_scope_limit(self, host: str, scope: QuotaScopeId, limit_bytes: int | None) -> None:
        c = quota_limits.c

        def work(s: Connection) -> None:
            s.execute(delete(quota_limits).where(c.host == host, c.quota_scope == str(scope)))
            if limit_bytes is not None:
                row = {"host": host, "quota_scope": str(scope), "limit_bytes": limit_bytes}
                s.execute(insert(quota_limits), row)

        await self._db.run_write(work)
