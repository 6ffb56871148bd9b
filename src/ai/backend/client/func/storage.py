"""Storage volumes and quota scopes over GraphQL (client wire contract 3).

usage = api.QuotaScope.get("local:volume1", "user:dfa9da54-4b28-432f-be29-c0d680c7a412")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ai.backend.client.func.admin import AsyncAdmin, PaginatedResult, Paging
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call

_SCOPE = "storage_host_name: $host, quota_scope_id: $scope"
_TYPES = "$host: String!, $scope: String!"
VOLUME_FIELDS = ("id", "backend", "path", "fsprefix", "capabilities", "usage")
DETAIL_FIELDS = (*VOLUME_FIELDS, "hardware_metadata", "performance_metric")


class AsyncQuotaScope:
    """``api_session.QuotaScope``: ``host`` is ``proxy:volume``, ``scope`` is ``user:<uuid>`` or ``project:<uuid>``."""

    def __init__(self, transport: Transport) -> None:
        self._admin = AsyncAdmin(transport)

    async def get(self, host: str, scope: str) -> dict[str, Any]:
        """``usage_bytes``, ``usage_count``, ``hard_limit_bytes`` (None: no limit) and ``enforcement``: ``hard`` by the
        volume itself, ``soft`` by the storage proxy where it adds bytes."""
        query = f"""query({_TYPES}) {{ quota_scope({_SCOPE}) {{
            details {{ usage_bytes usage_count hard_limit_bytes enforcement }} }} }}"""
        found = await self._admin.query(query, {"host": host, "scope": scope})
        return dict(found["quota_scope"]["details"])

    async def set(self, host: str, scope: str, hard_limit_bytes: int) -> None:
        """Give it a limit of its own; for superadmins."""
        query = f"""mutation({_TYPES}, $props: QuotaScopeInput!) {{
            set_quota_scope({_SCOPE}, props: $props) {{ quota_scope {{ quota_scope_id }} }} }}"""
        await self._admin.query(query, {"host": host, "scope": scope, "props": {"hard_limit_bytes": hard_limit_bytes}})

    async def unset(self, host: str, scope: str) -> None:
        """Back to what the policy of its owner says; for superadmins."""
        query = f"mutation({_TYPES}) {{ unset_quota_scope({_SCOPE}) {{ quota_scope {{ quota_scope_id }} }} }}"
        await self._admin.query(query, {"host": host, "scope": scope})


class AsyncStorage:
    """``api_session.Storage``: the volumes of the cluster, for superadmins."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._admin = AsyncAdmin(transport)

    async def paginated_list(
        self,
        *,
        fields: Sequence[str] = VOLUME_FIELDS,
        **paging: Unpack[Paging],
    ) -> PaginatedResult:
        return await self._admin.fetch_page("storage_volume_list", fields, {}, **paging)

    async def detail(self, host: str, fields: Sequence[str] = DETAIL_FIELDS) -> dict[str, Any] | None:
        """None where there is no such volume."""
        query = f"query($host: String!) {{ storage_volume(id: $host) {{ {' '.join(fields)} }} }}"
        found = (await self._admin.query(query, {"host": host}))["storage_volume"]
        return dict(found) if found is not None else None

    async def performance_metric(self, host: str) -> dict[str, Any]:
        """What the volume has read and written."""
        call = Call(method="GET", path="/folders/_/perf-metric", params={"folder_host": host}, repeatable=True)
        return dict((await self._transport.request(call)).object()["metric"])

    async def list_mounts(self) -> dict[str, Any]:
        """What the volumes of each storage proxy lie on."""
        call = Call(method="GET", path="/folders/_/mounts", repeatable=True)
        return (await self._transport.request(call)).object()
