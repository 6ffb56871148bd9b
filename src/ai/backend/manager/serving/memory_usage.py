"""Stores the use of model services in memory, for tests and simulations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from uuid import UUID

from ai.backend.common.errors import StaleVersion
from ai.backend.manager.serving.memory import MemoryServingStore
from ai.backend.manager.serving.model import Endpoint, UseGroup, UseGrouping, UseKey, UseQuery, UseReport, UseSums


class MemoryEndpointUsageStore:
    """Implements :class:`ai.backend.manager.serving.store.EndpointUsageStore` in memory, beside the endpoints."""

    def __init__(self, serving: MemoryServingStore) -> None:
        self._serving = serving
        self._positions: dict[str, int] = {}
        self._use: dict[UseKey, UseSums] = {}

    async def position(self, coordinator_id: str) -> int:
        return self._positions.get(coordinator_id, 0)

    async def add(
        self, coordinator_id: str, *, after_number: int, last_number: int, use: Mapping[UseKey, UseSums]
    ) -> None:
        if self._positions.get(coordinator_id, 0) != after_number:
            raise StaleVersion(f"the use that {coordinator_id} reported after {after_number} was added meanwhile")
        self._positions[coordinator_id] = last_number
        for key, sums in use.items():
            if await self._serving.get(key.endpoint_id) is not None:
                self._use[key] = self._use.get(key, UseSums()) + sums

    async def usage(self, query: UseQuery) -> UseReport:
        groups: dict[str | int | UUID | None, UseSums] = defaultdict(UseSums)
        endpoint_names: dict[str | int | UUID | None, str] = {}
        total = UseSums()
        for key, sums in self._use.items():
            service = await self._serving.get(key.endpoint_id)
            if service is not None and _is_selected(query, key, service.endpoint):
                groups[_group_of(query.by, key, service.endpoint)] += sums
                if query.by is UseGrouping.ENDPOINT:
                    endpoint_names[key.endpoint_id] = service.endpoint.name
                total += sums
        in_time_order = query.by in (UseGrouping.HOUR, UseGrouping.DAY)
        ordered_groups = sorted(
            groups.items(),
            key=lambda each: (
                each[0] if in_time_order else 0,
                -(each[1].prompt_tokens + each[1].output_tokens),
                -each[1].requests,
                str(each[0]),
            ),
        )
        shown_groups = [
            UseGroup(key=key, name=endpoint_names.get(key), sums=sums) for key, sums in ordered_groups[: query.limit]
        ]
        return UseReport(groups=shown_groups, total=total)

    async def purge_usage(self, *, before_hour: int) -> int:
        old_keys = [key for key in self._use if key.hour < before_hour]
        for key in old_keys:
            del self._use[key]
        return len(old_keys)


def _is_selected(query: UseQuery, key: UseKey, endpoint: Endpoint) -> bool:
    return (
        query.since <= key.hour < query.until
        and query.endpoint_id in (None, endpoint.id)
        and query.user_id in (None, endpoint.user_id)
        and query.domain_name in (None, endpoint.domain_name)
    )


def _group_of(by: UseGrouping, key: UseKey, endpoint: Endpoint) -> str | int | UUID | None:
    groups: dict[UseGrouping, str | int | UUID | None] = {
        UseGrouping.ENDPOINT: key.endpoint_id,
        UseGrouping.TOKEN: key.token,
        UseGrouping.USER: key.user_id,
        UseGrouping.PROJECT: endpoint.group_id,
        UseGrouping.REVISION: key.revision_id,
        UseGrouping.REPLICA: key.replica_id,
        UseGrouping.HOUR: key.hour,
        UseGrouping.DAY: key.hour // 24,
    }
    return groups[by]
