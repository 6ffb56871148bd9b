"""Holds the latest statistics of kernels and agents in memory, and writes them periodically."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.wire.reports import MetricFamily, StatReport
from ai.backend.manager.metrics.families import check_families, merge_families
from ai.backend.manager.metrics.history import MetricHistory, Series, Span, numbers_of, numbers_of_agent

log = logging.getLogger(__name__)
STALE_AFTER_S = 30.0
"""Seconds after its last report for which the statistics of a node are served."""
_Value = str | int | float | bool | None
_decode_statistics = msgspec.msgpack.Decoder(dict[str, dict[str, _Value] | _Value]).decode
"""Reads the statistics of a kernel. Anything else of an agent could not be encoded for the database or for a client."""


class _NodeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    reported_at: float
    live_stat: Mapping[str, Any]
    families: Sequence[MetricFamily]


class StatisticsStore(Protocol):
    """Stores statistics together with the sessions that they describe."""

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        """Adds ``queries`` to the query counts of sessions, and stores ``stats`` as the latest of kernels.

        The earlier statistics of these kernels are replaced.
        """
        ...


class LiveMetrics:
    """Holds the latest statistics that agents reported, in memory.

    The statistics that :meth:`flush` has not written are lost with the process.
    """

    def __init__(
        self,
        store: StatisticsStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        history: MetricHistory | None = None,
    ) -> None:
        self._store = store
        self._history = history if history is not None else MetricHistory()
        self._clock = clock
        self._kernels: dict[KernelId, bytes] = {}
        self._dirty: set[KernelId] = set()
        self._nodes: dict[AgentId, _NodeStatistics] = {}
        self._queries: dict[SessionId, int] = {}

    def put(self, report: StatReport, kernels: Mapping[str, KernelId]) -> None:
        """Records the statistics that an agent has reported about its node, devices and kernels.

        ``kernels`` maps kernel ids as the report writes them to those of the agent's kernels.
        """
        agent_id = AgentId(report.agent_id)
        self._nodes[agent_id] = _NodeStatistics(
            reported_at=self._clock(),
            live_stat={"node": report.node, "devices": report.devices},
            families=check_families(agent_id, report.families),
        )
        for reported_id, kernel_id in kernels.items():
            encoded_stat = bytes(report.kernels[reported_id])
            try:
                stat = _decode_statistics(encoded_stat)
            except (msgspec.MsgspecError, UnicodeDecodeError) as e:
                log.warning("the statistics of kernel %s cannot be read: %s", kernel_id, e)
                continue
            self._kernels[kernel_id] = encoded_stat
            self._dirty.add(kernel_id)
            self._history.put(str(kernel_id), dict(numbers_of(stat)))
        self._history.put(f"agent {agent_id}", numbers_of_agent(report.node, report.devices))

    def count_query(self, session_id: SessionId) -> None:
        self._queries[session_id] = self._queries.get(session_id, 0) + 1

    def kernel_statistics(self, kernel_id: KernelId) -> Mapping[str, Any] | None:
        encoded_stat = self._kernels.get(kernel_id)
        return None if encoded_stat is None else _decode_statistics(encoded_stat)

    def agent_statistics(self, agent_id: AgentId) -> Mapping[str, Any] | None:
        """Returns the latest statistics of an agent's node, or None if the agent has not reported recently."""
        node = self._drop_silent_nodes().get(agent_id)
        return node.live_stat if node is not None else None

    def history_of_kernel(self, kernel_id: KernelId, span: Span) -> Series:
        """Returns the recent metrics of a kernel. Metrics of an ended kernel stay until other series need the room."""
        return self._history.read(str(kernel_id), span)

    def history_of_agent(self, agent_id: AgentId, span: Span) -> Series:
        """Returns the recent metrics of a node and its devices; a metric of a device is named ``metric/device``."""
        return self._history.read(f"agent {agent_id}", span)

    def queries_of(self, session_id: SessionId) -> int:
        """Returns the number of queries of a session that are not yet in the database."""
        return self._queries.get(session_id, 0)

    def forget(self, kernel_ids: Iterable[KernelId]) -> None:
        for kernel_id in kernel_ids:
            self._kernels.pop(kernel_id, None)
            self._dirty.discard(kernel_id)

    def families(self) -> list[MetricFamily]:
        """Returns the merged metric families of all agents."""
        return merge_families({agent_id: node.families for agent_id, node in self._drop_silent_nodes().items()})

    def families_of(self, agent_id: AgentId) -> Sequence[MetricFamily] | None:
        """Returns the metric families of an agent, or None if the agent has not reported recently."""
        node = self._drop_silent_nodes().get(agent_id)
        return node.families if node is not None else None

    def _drop_silent_nodes(self) -> dict[AgentId, _NodeStatistics]:
        """Drops nodes whose agents have not reported recently, and returns the remaining nodes."""
        oldest_time = self._clock() - STALE_AFTER_S
        self._nodes = {agent_id: node for agent_id, node in self._nodes.items() if node.reported_at >= oldest_time}
        return self._nodes

    async def flush(self) -> None:
        """Writes the query counts, and the latest statistics of kernels that reported since the last flush."""
        queries, self._queries = self._queries, {}
        dirty_kernel_ids, self._dirty = self._dirty, set()
        stats = {
            kernel_id: stat for kernel_id in dirty_kernel_ids if (stat := self.kernel_statistics(kernel_id)) is not None
        }
        if queries or stats:
            await self._store.bump(queries, stats)
