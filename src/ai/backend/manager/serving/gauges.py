"""Reads metrics for autoscaling that the app proxy does not report, from engines, kernels and Prometheus. Prometheus is
asked the queries that the operator has set (serving anchors 7, 10).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.ids import SessionId
from ai.backend.common.serving import ReplicaStatus
from ai.backend.core.serving.autoscale import MetricKey, MetricSource, Sample
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import cancel_all
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.serving.gateway import ReplicaProbe
from ai.backend.manager.serving.model import Replica, Service, port_of
from ai.backend.manager.serving.settings import ServingSettings
from ai.backend.manager.sessions.lookup import with_live_statistics
from ai.backend.manager.sessions.model import Session

log = logging.getLogger(__name__)
PERIOD_S = 5.0
_ENGINE_PATH = "/metrics"
_ENGINE_TIMEOUT_S = 3.0
_MAX_ENGINE_BYTES = 2 << 20
_MAX_REPLY_BYTES = 1 << 20
_HTTP_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_MAX_LINES = 500
_MAX_LINE_LENGTH = 4_096  # the time that the parser takes grows with the square of it
_MAX_PARSED = 32 * _MAX_LINE_LENGTH
_PAGES_AT_ONCE = 8
_MAX_SAMPLES = 720
_MAX_VALUE = 1e15


class Reading(NamedTuple):
    """Holds a metric of an endpoint as the sum over replicas, and the number of replicas that reported the metric."""

    total: float
    replicas: int


class MetricReader(Protocol):
    """Reads the metrics of one source."""

    async def read(
        self, service: Service, sessions: Mapping[SessionId, Session], names: Collection[str]
    ) -> Mapping[str, Reading]:
        """Returns those of the requested metrics that the source can deliver now. Raises BackendError."""
        ...


def _ready_replicas(service: Service, sessions: Mapping[SessionId, Session]) -> list[tuple[Replica, Session]]:
    return [
        (each, sessions[each.id])
        for each in service.live_replicas
        if each.status is ReplicaStatus.READY and each.id in sessions
    ]


def _sum_readings(readings: Iterable[Mapping[str, float]]) -> dict[str, Reading]:
    sums: dict[str, Reading] = {}
    for values in readings:
        for name, value in values.items():
            sum_before = sums.get(name, Reading(0.0, 0))
            sums[name] = Reading(sum_before.total + value, sum_before.replicas + 1)
    return sums


def gauges_of(page_text: str, names: Collection[str]) -> dict[str, float]:
    """Returns the values of the named metrics on a page in the Prometheus format, each summed up over its labels.

    Values that are no numbers, and lines that cannot be read, are left out.
    """
    line_prefixes = tuple(names)
    lines = [
        line for line in page_text.splitlines() if len(line) <= _MAX_LINE_LENGTH and line.startswith(line_prefixes)
    ]
    values: dict[str, float] = {}
    parsed_characters = 0
    for line in lines[:_MAX_LINES]:
        parsed_characters += len(line)
        if parsed_characters > _MAX_PARSED:
            break
        try:
            samples = [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]
        except ValueError:
            continue
        for sample in samples:
            if sample.name in names and math.isfinite(sample.value) and abs(sample.value) < _MAX_VALUE:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


class EngineReader(msgspec.Struct, frozen=True):
    """Reads the page ``/metrics`` of the engine of each ready replica, through its agent."""

    probe: ReplicaProbe

    async def read(
        self, service: Service, sessions: Mapping[SessionId, Session], names: Collection[str]
    ) -> Mapping[str, Reading]:
        page_slots = asyncio.Semaphore(_PAGES_AT_ONCE)  # a page may be large, and replicas are many

        async def gauges(replica: Replica, session: Session) -> Mapping[str, float]:
            async with page_slots:
                page_text = await self._read_page(service, replica, session)
                return await asyncio.to_thread(gauges_of, page_text, names)

        return _sum_readings(await asyncio.gather(*(gauges(*each) for each in _ready_replicas(service, sessions))))

    async def _read_page(self, service: Service, replica: Replica, session: Session) -> str:
        port = port_of(service.revision(replica.revision_id).spec.served, replica.id)
        try:
            content = await self.probe.read(
                session, port=port, path=_ENGINE_PATH, timeout_s=_ENGINE_TIMEOUT_S, max_bytes=_MAX_ENGINE_BYTES
            )
        except BackendError as e:  # one replica that does not answer leaves the others
            log.debug("no gauges of replica %s: %s", replica.id, e)
            return ""
        return content.decode(errors="replace")


class KernelReader(msgspec.Struct, frozen=True):
    """Reads the latest statistics of the main kernels of ready replicas, such as ``cpu_util`` or ``mem``."""

    stats: LiveMetrics

    async def read(
        self, service: Service, sessions: Mapping[SessionId, Session], names: Collection[str]
    ) -> Mapping[str, Reading]:
        return _sum_readings(self._read_session(session, names) for _, session in _ready_replicas(service, sessions))

    def _read_session(self, session: Session, names: Collection[str]) -> dict[str, float]:
        live_stat = with_live_statistics(session, self.stats).main.live_stat or {}
        values = {}
        for name in names:
            try:
                value = float(live_stat[name]["current"])
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if math.isfinite(value):
                values[name] = value
        return values


class PrometheusReader:
    """Reads metrics of endpoints from a Prometheus server by queries that the operator has set.

    ``$endpoint`` and ``$name`` in a query stand for the id and the name of the endpoint. Users choose a query and
    write none, so that none reads the metrics of others.
    """

    def __init__(self, settings: ServingSettings) -> None:
        self._url = (settings.prometheus_url or "").rstrip("/")
        self._queries = settings.prometheus_queries
        self._http: aiohttp.ClientSession | None = None

    async def read(
        self, service: Service, sessions: Mapping[SessionId, Session], names: Collection[str]
    ) -> Mapping[str, Reading]:
        replicas = len(_ready_replicas(service, sessions))
        readings = {}
        for name in names:
            query = self._queries.get(name)
            if query is None:
                continue
            endpoint = service.endpoint
            value = await self._query_sum(query.replace("$endpoint", str(endpoint.id)).replace("$name", endpoint.name))
            if value is not None:
                readings[name] = Reading(value, max(1, replicas))
        return readings

    async def _query_sum(self, query: str) -> float | None:
        """Sends a query to Prometheus and returns the sum of the values, or None if there are no values. Raises
        Unavailable.
        """
        if self._http is None or self._http.closed:
            self._http = aiohttp.ClientSession(timeout=_HTTP_TIMEOUT)
        try:
            async with self._http.post(
                f"{self._url}/api/v1/query", data={"query": query}, allow_redirects=False
            ) as response:
                reply_bytes = await _read_whole(response.content)
            values = values_of(msgspec.json.decode(reply_bytes, type=dict[str, Any]))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, TypeError, LookupError) as e:
            raise Unavailable(f"Prometheus does not answer: {str(e) or type(e).__name__}") from None
        return sum(values) if values else None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


async def _read_whole(content: aiohttp.StreamReader) -> bytes:
    """Reads the whole body of a reply of Prometheus. Raises ValueError if it is too large."""
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > _MAX_REPLY_BYTES:
            raise ValueError(f"its reply has more than {_MAX_REPLY_BYTES} bytes")
    return bytes(body)


def values_of(reply: Mapping[str, Any]) -> list[float]:
    """Returns the finite numbers in a reply of Prometheus.

    Raises ValueError if the reply says that the query failed, for example because it is wrong.
    """
    if reply.get("status") != "success":
        raise ValueError(f"it refuses the query: {str(reply.get('error'))[:200]}")
    data = reply["data"]
    time_value_pairs = (
        [data["result"]] if data["resultType"] == "scalar" else [series["value"] for series in data["result"]]
    )
    values = [float(value) for _, value in time_value_pairs]
    return [value for value in values if math.isfinite(value) and abs(value) < _MAX_VALUE]


@dataclass(slots=True)
class _GatheredSamples:
    due_at: float = 0.0
    task: asyncio.Task[None] | None = None
    samples: dict[MetricKey, deque[Sample]] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Gauges:
    """Reads the metrics of endpoints periodically and keeps the samples. A source that cannot be read adds nothing:
    what is missing or old changes no number of replicas.
    """

    readers: Mapping[MetricSource, MetricReader]
    clock: Clock
    _gathered: dict[UUID, _GatheredSamples] = field(default_factory=dict, init=False)

    def keep(self, endpoint_ids: Collection[UUID]) -> None:
        """Drops the samples, and cancels the running readings, of all endpoints except those of ``endpoint_ids``."""
        for endpoint_id in [each for each in self._gathered if each not in endpoint_ids]:
            task = self._gathered.pop(endpoint_id).task
            if task is not None:
                task.cancel()

    def begin_due(self, service: Service, sessions: Mapping[SessionId, Session]) -> None:
        """Starts to read the metrics of an endpoint if the period since the last reading has passed."""
        keys = [key for key in keys_of(service) if key[0] in self.readers]
        if not keys:
            return
        gathered_samples, now = (
            self._gathered.setdefault(service.endpoint.id, _GatheredSamples()),
            self.clock.monotonic(),
        )
        if gathered_samples.task is None and gathered_samples.due_at <= now:
            gathered_samples.due_at = now + PERIOD_S
            reading = self._read(gathered_samples, service, sessions, keys)
            gathered_samples.task = asyncio.create_task(reading, name=f"gauges of endpoint {service.endpoint.id}")

    async def _read(
        self,
        gathered_samples: _GatheredSamples,
        service: Service,
        sessions: Mapping[SessionId, Session],
        keys: Collection[MetricKey],
    ) -> None:
        try:
            gathered_samples.samples = {
                key: samples for key, samples in gathered_samples.samples.items() if key in keys
            }
            for source, reader in self.readers.items():
                metric_names = {name for source_of_key, name in keys if source_of_key is source}
                readings = (
                    await self._read_or_log(source, reader.read(service, sessions, metric_names))
                    if metric_names
                    else {}
                )
                now = self.clock.now().timestamp()
                for name, reading in readings.items():
                    samples = gathered_samples.samples.setdefault((source, name), deque(maxlen=_MAX_SAMPLES))
                    samples.append(Sample(at=now, total=reading.total, replicas=reading.replicas))
        finally:
            gathered_samples.task = None

    async def _read_or_log(
        self, source: MetricSource, reading: Awaitable[Mapping[str, Reading]]
    ) -> Mapping[str, Reading]:
        try:
            return await reading
        except BackendError as e:
            log.warning("metrics of the source %s cannot be read for now: %s", source, e)
        except Exception:  # the page of an engine must not end what scales other endpoints
            log.exception("metrics of the source %s cannot be read", source)
        return {}

    def samples(self, endpoint_id: UUID, key: MetricKey) -> list[Sample]:
        """Returns the kept samples of a metric of an endpoint, the oldest first."""
        gathered_samples = self._gathered.get(endpoint_id)
        return list(gathered_samples.samples.get(key, ())) if gathered_samples is not None else []

    async def finish_round(self) -> None:
        """Waits until the present readings have ended."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Cancels the running readings."""
        await cancel_all(*self._tasks)
        for reader in self.readers.values():
            if isinstance(reader, PrometheusReader):
                await reader.close()

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        return [each.task for each in self._gathered.values() if each.task is not None]


def keys_of(service: Service) -> list[MetricKey]:
    """Returns the metrics that the scaling rules and the scaling target of an endpoint use, each once."""
    policy = service.endpoint.scaling
    if policy is None:
        return []
    target_policy = [policy.target.key] if policy.target is not None else []
    return list(dict.fromkeys([*(each.rule.key for each in service.rules), *target_policy]))
