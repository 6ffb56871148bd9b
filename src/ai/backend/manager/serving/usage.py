"""Collects the use of endpoints from coordinators of the app proxy, and reports it to users (serving anchors 9)."""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable
from uuid import UUID

from ai.backend.common.errors import BackendError, InvalidInput, StaleVersion
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import InferenceUsage, UsageRow
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import visibility_filter
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.service_ports.app_proxies import coordinator_of
from ai.backend.manager.service_ports.app_proxy_gateway import CoordinatorAddress
from ai.backend.manager.serving.gateway import EndpointCoordinators
from ai.backend.manager.serving.model import Service, UseGrouping, UseKey, UseQuery, UseReport, UseSums
from ai.backend.manager.serving.samples import RevisionSamples
from ai.backend.manager.serving.service import ServingService
from ai.backend.manager.serving.settings import ServingSettings
from ai.backend.manager.serving.store import EndpointUsageStore, ServingStore

log = logging.getLogger(__name__)
HOUR_S = 3_600
_MINUTES_PER_HOUR = 60
_HOURS_PER_DAY = 24
_MAX_HOURS = 400 * _HOURS_PER_DAY
_DEFAULT_HOURS = 30 * _HOURS_PER_DAY
_ROWS_PER_PAGE = 5_000
_MAX_PAGES = 20
"""The maximum number of pages that one round reads from one coordinator; the next round continues."""


class UsageLoop(PeriodicLoop):
    """Reads the use of endpoints from coordinators and adds it to the stored use. A report is added once, whichever
    managers read it: the last added one of each coordinator is stored with the use itself.
    """

    period_s = 10.0

    def __init__(
        self,
        *,
        store: EndpointUsageStore,
        services: ServingStore,
        resource_groups: ResourceGroupStore,
        coordinators: EndpointCoordinators,
        clock: Clock,
        settings: ServingSettings,
        samples: RevisionSamples,
    ) -> None:
        super().__init__()
        self._samples = samples
        samples.ask = self.wake
        self._store, self._services, self._resource_groups = store, services, resource_groups
        self._coordinators, self._clock, self._settings = coordinators, clock, settings

    async def once(self) -> None:
        ids_by_coordinator: dict[CoordinatorAddress, set[UUID]] = defaultdict(set)
        for service in await self._services.live():
            endpoint = service.endpoint
            coordinator = coordinator_of(await self._resource_groups.resource_group(endpoint.resource_group))
            if coordinator is not None:
                ids_by_coordinator[coordinator].add(endpoint.id)
        for coordinator, endpoint_ids in ids_by_coordinator.items():
            try:
                await self._collect(coordinator, endpoint_ids)
            except StaleVersion:  # another manager has added it
                continue
            except BackendError as e:  # a coordinator keeps its reports for a day
                log.warning("the use of endpoints at %s cannot be read for now: %s", coordinator.url, e)
        oldest_hour = self._clock.now().timestamp() // HOUR_S - self._settings.usage_days * _HOURS_PER_DAY
        await self._store.purge_usage(before_hour=int(oldest_hour))

    async def _collect(self, coordinator: CoordinatorAddress, endpoint_ids: Collection[UUID]) -> None:
        # A coordinator that was set up anew counts its reports from 1 again, and has another certificate.
        coordinator_identity = f"{coordinator.url} {await self._coordinators.authority(coordinator)}"
        coordinator_id = hashlib.sha256(coordinator_identity.encode()).hexdigest()
        last_stored_id = await self._store.position(coordinator_id)
        for _ in range(_MAX_PAGES):
            rows = await self._coordinators.usage(coordinator, after=last_stored_id, limit=_ROWS_PER_PAGE)
            if not rows:
                return
            last_row_id = max(row.id for row in rows)
            await self._store.add(
                coordinator_id, after_number=last_stored_id, last_number=last_row_id, use=sum_usage(rows, endpoint_ids)
            )
            served_usage = [row.usage for row in rows if row.usage.endpoint in endpoint_ids]
            self._samples.record(served_usage, self._clock.now().timestamp())
            last_stored_id = last_row_id


def sum_usage(rows: Iterable[UsageRow], endpoint_ids: Collection[UUID]) -> dict[UseKey, UseSums]:
    """Returns the sums of use of these endpoints by hour, token, revision and replica."""
    sums_of_key: dict[UseKey, UseSums] = defaultdict(UseSums)
    for row in rows:
        report = row.usage
        if report.endpoint is not None and report.endpoint in endpoint_ids:
            sums_of_key[_key_of(report.endpoint, report)] += UseSums(
                requests=report.requests,
                errors=report.errors,
                prompt_tokens=report.prompt_tokens,
                cached_tokens=report.cached_tokens,
                output_tokens=report.output_tokens,
                estimated=report.estimated,
                busy_ms=report.busy_ms,
            )
    return sums_of_key


def _key_of(endpoint_id: UUID, report: InferenceUsage) -> UseKey:
    return UseKey(
        endpoint_id, report.minute // _MINUTES_PER_HOUR, report.token, report.user, report.revision, report.session
    )


class UsageService:
    """Reports the use of endpoints to callers who may see the endpoints."""

    def __init__(self, store: EndpointUsageStore, services: ServingService, clock: Clock) -> None:
        self._store, self._services, self._clock = store, services, clock

    async def endpoint_report(self, caller: Caller, ref: str, query: UseQuery) -> tuple[Service, UseReport]:
        """Returns an endpoint and its use; a destroyed endpoint is found only by its id. Raises NotFound."""
        service = await self._services.get(caller, ref)
        return service, await self._store.usage(replace(query, endpoint_id=service.endpoint.id))

    async def total_report(self, caller: Caller, query: UseQuery) -> UseReport:
        """Returns the use of all endpoints that the caller may see."""
        return await self._store.usage(replace(query, **visibility_filter(caller, Operation.SEE_ENDPOINTS)))

    def query(self, *, since: int | None, until: int | None, by: UseGrouping, limit: int) -> UseQuery:
        """Builds a query of use for the hours from ``since`` to ``until`` (unix time), by default the last 30 days.

        The hours in which the period begins and ends are part of it. Raises InvalidInput for one that is empty or
        longer than 400 days.
        """
        end_s = until if until is not None else int(self._clock.now().timestamp()) + 1
        last_hour = -(-end_s // HOUR_S)
        first_hour = since // HOUR_S if since is not None else last_hour - _DEFAULT_HOURS
        if not 0 < last_hour - first_hour <= _MAX_HOURS:
            raise InvalidInput("The period ends after it begins, and is at most 400 days.", data={"since": "invalid"})
        return UseQuery(since=first_hour, until=last_hour, by=by, limit=limit)
