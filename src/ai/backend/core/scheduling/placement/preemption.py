"""Chooses sessions to evict in favour of a session of larger priority.

Rules: only preemptible sessions of smaller priority are ended, with all their kernels. On each agent that could serve
the session they are tried from the smallest priority, the youngest first, until it fits; those that were not needed
after all are spared. Of all agents the one is chosen whose victims have the smallest largest priority, then are the
fewest, then have run the shortest; a policy may prefer the oldest instead of the youngest. What sessions hold that are
ending already costs nobody anything. A session that needs several agents ends nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.ids import SessionId
from ai.backend.core.scheduling.index.agent_state import AgentState, can_allocate
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.slot_index import ranks_in_mask
from ai.backend.core.scheduling.snapshot import PendingSession, RunningSession

MAX_AGENTS = 256
"""The largest number of agents that are considered. Agents that lack the least come first."""
Choice = tuple[tuple[int, int, float], int, list[RunningSession]]


class Victims:
    """Holds the running sessions that may be evicted or are ending, by agent. Each is evicted at most once."""

    def __init__(
        self, index: AgentIndex, running_sessions: Sequence[RunningSession], *, oldest_first: bool = False
    ) -> None:
        self._index = index
        self._sign = 1 if oldest_first else -1
        self._on: dict[int, list[RunningSession]] = {}
        for session in running_sessions:
            for agent_id in {agent_id for agent_id, _ in session.kernels}:
                rank = index.ranks.get(agent_id)
                if rank is not None and (session.is_preemptible or session.is_ending):
                    self._on.setdefault(rank, []).append(session)
        for sessions in self._on.values():
            sessions.sort(
                key=lambda victim: (victim.priority, self._sign * victim.started_at.timestamp(), victim.session_id.int)
            )
        self._evicted: set[SessionId] = set()

    def choose(
        self, session: PendingSession, demand: Demand, agent_mask: int
    ) -> tuple[int, list[RunningSession]] | None:
        """Returns the rank of an agent of a mask and the sessions to evict there.

        Returns None if eviction would not help.
        """
        best_choice: Choice | None = None
        for rank in self._nearest_ranks(demand, agent_mask):
            sessions_there = [victim for victim in self._on[rank] if victim.session_id not in self._evicted]
            ending_sessions = [victim for victim in sessions_there if victim.is_ending]
            evictable = [
                victim for victim in sessions_there if not victim.is_ending and victim.priority < session.priority
            ]
            evicted_sessions = self._sessions_to_evict(self._index.agents[rank], demand, ending_sessions, evictable)
            if evicted_sessions is not None:
                largest_priority = max((victim.priority for victim in evicted_sessions), default=-1)
                signed_start_times = (self._sign * victim.started_at.timestamp() for victim in evicted_sessions)
                cost = largest_priority, len(evicted_sessions), max(signed_start_times, default=0.0)
                if best_choice is None or cost < best_choice[0]:
                    best_choice = cost, rank, evicted_sessions
        if best_choice is None:
            return None
        self._evicted |= {victim.session_id for victim in best_choice[2]}
        return best_choice[1], best_choice[2]

    def _nearest_ranks(self, demand: Demand, agent_mask: int) -> list[int]:
        busy_mask = 0
        for rank in self._on:
            busy_mask |= 1 << rank
        agent_mask &= busy_mask
        if agent_mask.bit_count() <= MAX_AGENTS:
            return ranks_in_mask(agent_mask)
        nearest_ranks = []
        for _ in range(MAX_AGENTS):
            nearest_ranks.append(self._index.closest_rank(demand, agent_mask))
            agent_mask &= ~(1 << nearest_ranks[-1])
        return nearest_ranks

    @staticmethod
    def _sessions_to_evict(
        agent: AgentState, demand: Demand, ending_sessions: list[RunningSession], evictable: list[RunningSession]
    ) -> list[RunningSession] | None:
        """Returns which ``evictable`` sessions must end for the demand to fit.

        Returns None if ending all is not enough.
        """

        def fits(ended_sessions: list[RunningSession]) -> bool:
            allocator, freed_count = agent.allocator.clone(), 0
            for victim in (*ending_sessions, *ended_sessions):
                for agent_id, kernel_id in victim.kernels:
                    if agent_id == agent.agent_id and kernel_id in agent.held:
                        allocator.free(agent.held[kernel_id])
                        freed_count += 1
            has_room = agent.room is None or len(demand.requests) <= agent.room + freed_count
            return has_room and can_allocate(allocator, demand.requests)

        ended_sessions = next(
            (evictable[:count] for count in range(len(evictable) + 1) if fits(evictable[:count])),
            None,
        )
        for victim in ended_sessions[:-1] if ended_sessions else ():
            other_sessions = [other_session for other_session in ended_sessions or () if other_session is not victim]
            if fits(other_sessions):
                ended_sessions = other_sessions
        return ended_sessions
