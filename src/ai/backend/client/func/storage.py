"""Volumes of the storage proxies, and the usage and limits of quota scopes on them (client wire contract 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ai.backend.client.func.admin import PaginatedResult, Paging
from ai.backend.client.func.base import Area

VOLUME_FIELDS = ("id", "backend", "path", "fsprefix", "capabilities", "usage")
DETAIL_FIELDS = (*VOLUME_FIELDS, "hardware_metadata", "performance_metric")
_TYPES = "$host: String!, $scope: String!"
_SCOPE_ARGUMENTS = "storage_host_name: $host, quota_scope_id: $scope"


class AsyncStorage(Area):
    """Lists the volumes of the cluster, for superadmins (``api_session.Storage``)."""

    async def paginated_list(
        self, *, fields: Sequence[str] = VOLUME_FIELDS, **paging: Unpack[Paging]
    ) -> PaginatedResult:
        return await self._admin.fetch_page("storage_volume_list", fields, {}, **paging)

    async def detail(self, host: str, fields: Sequence[str] = DETAIL_FIELDS) -> dict[str, Any] | None:
        """Returns the volume ``host``, or None."""
        volume = await self._admin.select("storage_volume", fields, id=("String!", host))
        return dict(volume) if volume is not None else None

    async def performance_metric(self, host: str) -> dict[str, Any]:
        """Returns the read and write counters of the volume."""
        return dict((await self._get("/folders/_/perf-metric", folder_host=host))["metric"])

    async def list_mounts(self) -> dict[str, Any]:
        """Returns the mounts under the volumes of each storage proxy."""
        return await self._get("/folders/_/mounts")


class AsyncQuotaScope(Area):
    """Reads and sets storage limits of quota scopes (``api_session.QuotaScope``).

    ``host`` is ``proxy:volume``, and ``scope`` is ``user:<uuid>`` or ``project:<uuid>``.
    """

    async def get(self, host: str, scope: str) -> dict[str, Any]:
        """Returns ``usage_bytes``, ``usage_count``, ``hard_limit_bytes`` (None: no limit) and ``enforcement``.

        It is enforced ``hard`` by the volume itself, or ``soft`` by the storage proxy where it adds bytes.
        """
        query = f"""query({_TYPES}) {{ quota_scope({_SCOPE_ARGUMENTS}) {{
            details {{ usage_bytes usage_count hard_limit_bytes enforcement }} }} }}"""
        reply = await self._admin.query(query, {"host": host, "scope": scope})
        return dict(reply["quota_scope"]["details"])

    async def set(self, host: str, scope: str, hard_limit_bytes: int) -> None:
        """Sets the storage limit of a quota scope; for superadmins."""
        query = f"""mutation({_TYPES}, $props: QuotaScopeInput!) {{
            set_quota_scope({_SCOPE_ARGUMENTS}, props: $props) {{ quota_scope {{ quota_scope_id }} }} }}"""
        await self._admin.query(query, {"host": host, "scope": scope, "props": {"hard_limit_bytes": hard_limit_bytes}})

    async def unset(self, host: str, scope: str) -> None:
        """Removes the limit of a quota scope, so that its owner's policy applies; for superadmins."""
        query = f"mutation({_TYPES}) {{ unset_quota_scope({_SCOPE_ARGUMENTS}) {{ quota_scope {{ quota_scope_id }} }} }}"
        await self._admin.query(query, {"host": host, "scope": scope})
