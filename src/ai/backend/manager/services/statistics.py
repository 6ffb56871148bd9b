"""The latest statistics of kernels and agents, in memory, and written down occasionally."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.wire.agent import StatReport
from ai.backend.manager.model.cluster import Agent
from ai.backend.manager.model.session import Session
from ai.backend.manager.ports.stores import SessionStore

log = logging.getLogger(__name__)
_FLUSH_S = 30.0


class StatBoard:
    """What the agents told last. Lost with the process but for what :meth:`flush` has written."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._kernels: dict[KernelId, Mapping[str, Any]] = {}
        self._dirty: set[KernelId] = set()
        self._nodes: dict[AgentId, Mapping[str, Any]] = {}
        self._queries: dict[SessionId, int] = {}

    def put(self, report: StatReport, kernels: Mapping[str, KernelId]) -> None:
        """Note a report. ``kernels`` maps those ids that the agent may speak for."""
        self._nodes[AgentId(report.agent_id)] = {"node": report.node, "devices": report.devices}
        for text, stat in report.kernels.items():
            kernel_id = kernels.get(text)
            if kernel_id is not None:
                self._kernels[kernel_id] = stat
                self._dirty.add(kernel_id)

    def count_query(self, session_id: SessionId) -> None:
        self._queries[session_id] = self._queries.get(session_id, 0) + 1

    def of_kernel(self, kernel_id: KernelId) -> Mapping[str, Any] | None:
        return self._kernels.get(kernel_id)

    def forget(self, session: Session) -> None:
        for kernel in session.kernels:
            self._kernels.pop(kernel.id, None)
            self._dirty.discard(kernel.id)

    def fill(self, session: Session) -> Session:
        """The session with live statistics and the queries that are not written yet."""
        queries = self._queries.get(session.id, 0)
        live = [self._kernels.get(k.id) for k in session.kernels]
        if not queries and not any(live):
            return session
        kernels = tuple(replace(k, live_stat=stat) for k, stat in zip(session.kernels, live, strict=True))
        return replace(session, kernels=kernels, num_queries=session.num_queries + queries)

    def fill_agent(self, agent: Agent) -> Agent:
        live = self._nodes.get(agent.id)
        return replace(agent, live_stat=live) if live is not None else agent

    async def flush(self) -> None:
        """Write numbers of queries and the newest statistics of every kernel that reported since."""
        queries, self._queries = self._queries, {}
        dirty, self._dirty = self._dirty, set()
        stats = {k: self._kernels[k] for k in dirty if k in self._kernels}
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
