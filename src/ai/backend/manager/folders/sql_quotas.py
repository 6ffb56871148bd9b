"""Sql quotas of folders."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from ai.backend.common.volume_paths import QuotaScopeId, QuotaScopeKind
from ai.backend.infra.database.batching import chunks
from ai.backend.manager.folders.model import ScopeLimit
from ai.backend.manager.folders.tables import quota_limits
from ai.backend.manager.identity import tables as identity_tables

_CHUNK = 500


def _limits(s: Connection, places: Sequence[tuple[str, QuotaScopeId]]) -> list[ScopeLimit]:
    """The limit of each scope on its host: its own, else that of its owner's policy."""
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
        ids = sorted({scope.id for _, scope in places if scope.kind is kind})
        for some in chunks(ids):
            named = select(key, table.c.resource_policy).where(key.in_(some))
            policies |= {QuotaScopeId(kind, row[0]): row[1] for row in s.execute(named)}
    found = []
    for host, scope in places:
        mine = own.get((host, str(scope)))
        size = mine if mine is not None else sizes.get((scope.kind, policies.get(scope)), -1)
        limit = size if size >= 0 else None
        found.append(ScopeLimit(host=host, scope=scope, limit_bytes=limit, is_own=mine is not None))
    return found
