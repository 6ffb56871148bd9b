"""Usage and limits of quota scopes."""

from __future__ import annotations

from typing import Any

from ai.backend.client.func.admin import AsyncAdmin
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.transport import Transport


class AsyncQuotaScope:
    """``api_session.QuotaScope``: ``host`` is ``proxy:volume``, ``scope`` is ``user:<uuid>`` or ``project:<uuid>``."""

    def __init__(self, transport: Transport) -> None:
        self._admin = AsyncAdmin(transport)

    async def get(self, host: str, scope: str) -> dict[str, Any]:
        """``usage_bytes``, ``usage_count``, ``hard_limit_bytes`` (None: no limit) and ``enforcement``: ``hard`` by the
        volume itself, ``soft`` by the storage proxy where it adds bytes."""
        query = f"""query({_TYPES}) {{ quota_scope({_SCOPE}) {{
            details {{ usage_bytes usage_count hard_limit_bytes enforcement }} }} }}"""
        reply = await self._admin.query(query, {"host": host, "scope": scope})
        return dict(reply["quota_scope"]["details"])

    async def set(self, host: str, scope: str, hard_limit_bytes: int) -> None:
        """Set the scope's own limit; for superadmins."""
        query = f"""mutation({_TYPES}, $props: QuotaScopeInput!) {{
            set_quota_scope({_SCOPE}, props: $props) {{ quota_scope {{ quota_scope_id }} }} }}"""
        await self._admin.query(query, {"host": host, "scope": scope, "props": {"hard_limit_bytes": hard_limit_bytes}})

    async def unset(self, host: str, scope: str) -> None:
        """Restore the limit of the owner's policy; for superadmins."""
        query = f"mutation({_TYPES}) {{ unset_quota_scope({_SCOPE}) {{ quota_scope {{ quota_scope_id }} }} }}"
        await self._admin.query(query, {"host": host, "scope": scope})


class QuotaScope(Facade[AsyncQuotaScope]):
    """``api_session.QuotaScope`` of a blocking session."""

    get = blocking(AsyncQuotaScope.get)
    set = blocking(AsyncQuotaScope.set)
    unset = blocking(AsyncQuotaScope.unset)


_SCOPE = "storage_host_name: $host, quota_scope_id: $scope"


_TYPES = "$host: String!, $scope: String!"
