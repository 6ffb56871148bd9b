"""Keeps the loads of endpoints that coordinators of the app proxy report, and decides the number of replicas."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from ai.backend.common.errors import BackendError
from ai.backend.common.serving import ReplicaStatus, ServedRevisionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import EndpointLoad
from ai.backend.core.serving.autoscale import (
    MetricKey,
    MetricName,
    MetricSource,
    Sample,
    ScalingDecision,
    ScalingInput,
    ScalingPolicy,
    ScalingState,
    decide_scale,
)
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import cancel_all
from ai.backend.manager.service_ports.app_proxy_gateway import CoordinatorAddress
from ai.backend.manager.serving.gateway import EndpointCoordinators
from ai.backend.manager.serving.gauges import Gauges, keys_of
from ai.backend.manager.serving.model import Service

log = logging.getLogger(__name__)
GATHERED_METRICS = tuple(MetricName)
"""The metrics of the app proxy by which endpoints can be scaled."""
MAX_WINDOW_S = 3600.0
"""The longest time in seconds for which loads are kept."""
_WAIT_S = 2.0
"""Seconds for which a coordinator may delay its reply until a request begins to wait; one sample in this time."""
_MAX_SAMPLES = 2_048
_TOKENS_S = 30.0
"""Seconds over which the rate of tokens is averaged, since tokens of an answer are counted at its end."""
_PENDING_STATUSES = frozenset({ServedRevisionStatus.PENDING, ServedRevisionStatus.ROLLING_OUT})
_MOVING_STATUSES = _PENDING_STATUSES | {ServedRevisionStatus.ROLLING_BACK}


class _LoadReport(msgspec.Struct, frozen=True):
    """Holds the requests of an endpoint at one moment, with its requests and tokens per second.

    ``requests_per_s`` is the mean since the report before, ``tokens_per_s`` that of 30 s.
    """

    at: float
    load: EndpointLoad
    requests_per_s: float
    tokens_per_s: float

    def value(self, metric: str) -> float:
        in_flight = sum(self.load.in_flight.values())
        match metric:
            case MetricName.IN_FLIGHT:
                return in_flight
            case MetricName.QUEUED:
                return self.load.queued
            case MetricName.LOAD:
                return in_flight + self.load.queued
            case MetricName.TOKENS_PER_S:
                return self.tokens_per_s
            case _:
                return self.requests_per_s


@dataclass(slots=True)
class _LoadHistory:
    """Holds the load reports and the scaling state of one endpoint since it began to be scaled.

    ``since``: unix time from which its loads are known.
    """

    since: float
    reports: deque[_LoadReport] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    state: ScalingState = field(default_factory=ScalingState)


class Autoscaler:
    """Reads loads from coordinators, and decides on the number of replicas.

    All of it is kept in memory: after a restart windows begin anew, by which nothing is removed too early.
    ``on_change`` is called when there is a new report.
    """

    def __init__(
        self, coordinators: EndpointCoordinators, clock: Clock, on_change: Callable[[], None], gauges: Gauges
    ) -> None:
        self._coordinators, self._clock, self.on_change = coordinators, clock, on_change
        self.gauges = gauges
        self._versions: dict[CoordinatorAddress, int] = {}
        self._asked: dict[CoordinatorAddress, asyncio.Task[None]] = {}
        self._memories: dict[UUID, _LoadHistory] = {}

    def begin_due(self, coordinators: Iterable[CoordinatorAddress], endpoint_ids: Collection[UUID]) -> None:
        """Starts a request for loads to each coordinator without an open one, and forgets all
        endpoints except these.
        """
        now = self._clock.now().timestamp()
        histories = self._memories
        self.gauges.keep(endpoint_ids)
        self._memories = {key: histories.get(key) or _LoadHistory(since=now) for key in endpoint_ids}
        for coordinator in set(coordinators):
            if coordinator not in self._asked:
                task = asyncio.create_task(self._request_loads(coordinator), name=f"loads of {coordinator.url}")
                self._asked[coordinator] = task

    async def finish_round(self) -> None:
        """Waits for the replies to the open requests."""
        await asyncio.gather(*self._asked.values(), self.gauges.finish_round())

    async def stop(self) -> None:
        """Cancels the open requests to coordinators."""
        await cancel_all(*self._asked.values())
        await self.gauges.stop()

    async def _request_loads(self, coordinator: CoordinatorAddress) -> None:
        started_at, version = self._clock.monotonic(), self._versions.get(coordinator)
        try:
            reply = await self._coordinators.loads(coordinator, since=version, wait_s=_WAIT_S)
        except BackendError as e:  # the next round asks again; old loads change nothing
            log.debug("no loads of endpoints: %s", e)
            return
        finally:
            del self._asked[coordinator]
        self._versions[coordinator] = reply.version
        now = self._clock.now().timestamp()
        for load in reply.loads:
            load_history = self._memories.get(load.endpoint_id)
            if load_history is not None:
                _record(load_history, load, now)
        # A coordinator that does not wait is asked again by the next round, and not at once.
        if reply.version != version or self._clock.monotonic() - started_at >= _WAIT_S / 2:
            self.on_change()

    def decide(self, service: Service) -> ScalingDecision | None:
        """Decides the number of replicas of a service, or returns None if the service is not scaled by its load."""
        policy, load_history = service.endpoint.scaling, self._memories.get(service.endpoint.id)
        if policy is None or load_history is None:
            return None
        policy = replace(policy, rules=tuple(each.rule for each in service.rules))
        decision = decide_scale(policy, self._scaling_input(service, policy, load_history))
        load_history.state = decision.state
        return decision

    def _scaling_input(self, service: Service, policy: ScalingPolicy, load_history: _LoadHistory) -> ScalingInput:
        endpoint, now = service.endpoint, self._clock.now().timestamp()
        newest_report = load_history.reports[-1] if load_history.reports else None
        is_fresh = newest_report is not None and now - newest_report.at <= policy.max_age_s
        reports_since = max(load_history.since, endpoint.created_at.timestamp(), endpoint.changed_at.timestamp())
        if endpoint.scaled is not None:
            reports_since = max(reports_since, endpoint.scaled.at.timestamp())
        load = newest_report.load if newest_report is not None and is_fresh else None
        return ScalingInput(
            now=now,
            desired=endpoint.desired,
            ready=sum(each.status is ReplicaStatus.READY for each in service.replicas),
            metrics={key: self._samples(key, service, load_history) for key in keys_of(service)},
            queued=load.queued if load is not None else 0,
            # At zero replicas only what waits asks for one: what is open ends at the replicas that drain.
            in_flight=sum(load.in_flight.values()) if load is not None and endpoint.desired else 0,
            last_request_at=newest_report.load.last_used if newest_report is not None else None,
            since=reports_since if is_fresh else now,
            is_rolling_out=any(each.status in _MOVING_STATUSES for each in service.revisions),
            state=load_history.state,
        )

    def _samples(self, key: MetricKey, service: Service, load_history: _LoadHistory) -> list[Sample]:
        source, metric = key
        if source is not MetricSource.PROXY:
            return self.gauges.samples(service.endpoint.id, key)
        if metric not in GATHERED_METRICS:
            return []
        ready_replicas = sum(each.status is ReplicaStatus.READY for each in service.replicas)
        return [
            Sample(at=each.at, total=each.value(metric), replicas=max(1, ready_replicas))
            for each in load_history.reports
        ]


def _record(load_history: _LoadHistory, load: EndpointLoad, now: float) -> None:
    reports = load_history.reports
    requests_per_s = tokens_per_s = 0.0
    if reports:
        requests_per_s = _rate(load.requests - reports[-1].load.requests, now - reports[-1].at)
        first_report = next((each for each in reversed(reports) if each.at <= now - _TOKENS_S), reports[0])
        # Before the whole time is known nothing counts as used, so that one answer is no burst.
        tokens_per_s = _rate(load.tokens - first_report.load.tokens, max(_TOKENS_S, now - first_report.at))
    reports.append(_LoadReport(now, load, requests_per_s, tokens_per_s))
    while reports[0].at < now - MAX_WINDOW_S:
        reports.popleft()


def _rate(growth: int, seconds: float) -> float:
    """Returns the growth of a count per second, or 0 if the count has started anew."""
    return max(0, growth) / seconds if seconds > 0 else 0.0
