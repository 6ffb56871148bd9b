"""Storage volumes over GraphQL (client wire contract 3).

usage = api.QuotaScope.get("local:volume1", "user:dfa9da54-4b28-432f-be29-c0d680c7a412")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from ai.backend.client.func.admin import AsyncAdmin, PaginatedResult, Paging
from ai.backend.client.portal import Facade, blocking
from ai.backend.client.transport import Transport
from ai.backend.client.wire import Call

VOLUME_FIELDS = ("id", "backend", "path", "fsprefix", "capabilities", "usage")
DETAIL_FIELDS = (*VOLUME_FIELDS, "hardware_metadata", "performance_metric")


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
        """Returns a volume, or None."""
        query = f"query($host: String!) {{ storage_volume(id: $host) {{ {' '.join(fields)} }} }}"
        volume = (await self._admin.query(query, {"host": host}))["storage_volume"]
        return dict(volume) if volume is not None else None

    async def performance_metric(self, host: str) -> dict[str, Any]:
        """Returns the read and write counters of the volume."""
        call = Call(method="GET", path="/folders/_/perf-metric", params={"folder_host": host}, repeatable=True)
        return dict((await self._transport.request(call)).object()["metric"])

    async def list_mounts(self) -> dict[str, Any]:
        """Returns the mounts under the volumes of each storage proxy."""
        call = Call(method="GET", path="/folders/_/mounts", repeatable=True)
        return (await self._transport.request(call)).object()


class Storage(Facade[AsyncStorage]):
    """``api_session.Storage`` of a blocking session."""

    paginated_list = blocking(AsyncStorage.paginated_list)
    detail = blocking(AsyncStorage.detail)
    performance_metric = blocking(AsyncStorage.performance_metric)
    list_mounts = blocking(AsyncStorage.list_mounts)
