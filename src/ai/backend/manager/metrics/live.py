"""The latest statistics of kernels and agents, in memory, and written down occasionally."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.wire.reports import MetricFamily, StatReport
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.metrics.families import check_families, merge_families
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.store import SessionStore

log = logging.getLogger(__name__)
_FLUSH_S = 30.0
STALE_S = 30.0
"""What an agent told of its node is shown no longer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    at: float
    live_stat: Mapping[str, Any]
    families: Sequence[MetricFamily]


class LiveMetrics:
    """What the agents told last. Lost with the process but for what :meth:`flush` has written."""

    def __init__(self, store: SessionStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._kernels: dict[KernelId, bytes] = {}
        self._dirty: set[KernelId] = set()
        self._nodes: dict[AgentId, _Node] = {}
        self._queries: dict[SessionId, int] = {}

    def put(self, report: StatReport, kernels: Mapping[str, KernelId]) -> None:
        """Note a report. ``kernels`` maps those ids that the agent may speak for."""
        agent_id = AgentId(report.agent_id)
        self._nodes[agent_id] = _Node(
            at=self._clock(),
            live_stat={"node": report.node, "devices": report.devices},
            families=check_families(agent_id, report.families),
        )
        for text, kernel_id in kernels.items():
            self._kernels[kernel_id] = bytes(report.kernels[text])
            self._dirty.add(kernel_id)

    def count_query(self, session_id: SessionId) -> None:
        self._queries[session_id] = self._queries.get(session_id, 0) + 1

    def of_kernel(self, kernel_id: KernelId) -> Mapping[str, Any] | None:
        raw = self._kernels.get(kernel_id)
        try:
            return None if raw is None else msgspec.msgpack.decode(raw, type=dict[str, Any])
        except msgspec.MsgspecError as e:
            log.warning("the statistics of kernel %s cannot be read: %s", kernel_id, e)
            return None

    def forget(self, session: Session) -> None:
        for kernel in session.kernels:
            self._kernels.pop(kernel.id, None)
            self._dirty.discard(kernel.id)

    def fill(self, session: Session) -> Session:
        """The session with live statistics and the queries that are not written yet."""
        queries = self._queries.get(session.id, 0)
        live = [self.of_kernel(k.id) for k in session.kernels]
        if not queries and not any(live):
            return session
        kernels = tuple(replace(k, live_stat=stat) for k, stat in zip(session.kernels, live, strict=True))
        return replace(session, kernels=kernels, num_queries=session.num_queries + queries)

    def fill_agent(self, agent: Agent) -> Agent:
        node = self._fresh().get(agent.id)
        return replace(agent, live_stat=node.live_stat) if node is not None else agent

    def families(self) -> list[MetricFamily]:
        """What all agents tell for Prometheus."""
        return merge_families({agent_id: node.families for agent_id, node in self._fresh().items()})

    def _fresh(self) -> dict[AgentId, _Node]:
        """Of agents that reported lately; the others are forgotten."""
        limit = self._clock() - STALE_S
        self._nodes = {agent_id: node for agent_id, node in self._nodes.items() if node.at >= limit}
        return self._nodes

    async def flush(self) -> None:
        """Write numbers of queries and the newest statistics of every kernel that reported since."""
        queries, self._queries = self._queries, {}
        dirty, self._dirty = self._dirty, set()
        stats = {k: stat for k in dirty if (stat := self.of_kernel(k)) is not None}
        if queries or stats:
            await self._store.bump(queries, stats)

    async def run(self) -> None:
        """Flush from time to time, until cancelled."""
        while True:
            await asyncio.sleep(_FLUSH_S)
            try:
                await self.flush()
            except Exception:  # the loop must outlive any failure of the store
                log.exception("could not write statistics")
