"""Compares the states of agents with earlier states, and publishes the agents that have changed."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import msgspec

from ai.backend.common.ids import AgentId
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock
from ai.backend.manager.agents.model import AgentState
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.tasks.service import RECHECK_S, wait_for_hint
from ai.backend.manager.topics import AGENTS, OUTBOX

MAX_KEPT_CHANGES = 2_000
"""The number of changes that are kept for clients that reconnect."""
READ_INTERVAL_S = 0.5
_POSITION_PATTERN = re.compile(r"([0-9a-f]{1,32})-([0-9]{1,18})")
_ASPECT_OF_ATTRIBUTE = {
    "status": "status",
    "schedulable": "schedulable",
    "scaling_group": "resource-group",
    "occupied_slots": "occupied-slots",
    "version_id": "report",
}
"""Maps a field of an agent's state to the name of a change of the field."""


class AgentChange(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a change of one agent, or without an ``agent_id`` that any agent may have changed.

    A subscriber then reads all agents anew. ``position`` is where a subscriber resumes after this change.
    """

    position: str
    agent_id: AgentId | None = None
    status: str = ""
    schedulable: bool = False
    aspects: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class AgentChanges:
    """Reads the states of all agents repeatedly while there are subscribers, and sends each change to the subscribers.

    All subscribers share what is read, at most every :data:`READ_INTERVAL_S` and only after a hint of the bus or after
    :data:`~ai.backend.manager.tasks.service.RECHECK_S`. Positions are valid in this process alone: a subscriber who
    resumes from a position of another process, or from a position whose later changes are no longer kept, gets a change
    without an agent and must read all agents anew.
    """

    _agents: AgentStore
    _bus: Bus
    _clock: Clock
    read_interval_s: float = READ_INTERVAL_S
    _run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    _states: Mapping[AgentId, AgentState] | None = None
    _kept_changes: deque[tuple[int, AgentChange]] = field(default_factory=lambda: deque(maxlen=MAX_KEPT_CHANGES))
    _newest_number: int = 0
    _read_at: float = float("-inf")
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def subscribe(self, after_position: str | None) -> AsyncIterator[AgentChange]:
        """Yields every change of an agent that follows a position, until the iterator is closed.

        If the position is None, or if changes after the position are no longer kept, the first change that is yielded
        has no agent: the subscriber must read all agents anew. Several changes of an agent may be yielded as one.
        """
        with self._bus.subscribe(AGENTS, OUTBOX, limit=1) as change_hints:
            await self._read_changes(self._clock.monotonic())
            last_sent_number = self._number_of(after_position)
            if last_sent_number is None:
                last_sent_number = self._newest_number
                yield AgentChange(position=self._format_position(last_sent_number))
            while True:
                oldest_number = self._kept_changes[0][0] if self._kept_changes else self._newest_number + 1
                if last_sent_number + 1 < oldest_number:  # it was too slow: some of what it missed is gone
                    last_sent_number = self._newest_number
                    yield AgentChange(position=self._format_position(last_sent_number))
                for change_number, change in [
                    kept_change for kept_change in self._kept_changes if kept_change[0] > last_sent_number
                ]:
                    last_sent_number = change_number
                    yield change
                await wait_for_hint(change_hints, RECHECK_S)
                await self._read_changes(self._clock.monotonic())

    def _format_position(self, change_number: int) -> str:
        return f"{self._run_id}-{change_number}"

    def _number_of(self, position: str | None) -> int | None:
        """Returns the number of the change at a position, or None if changes after the position are not kept any more.

        Returns None also for a position of another process and for malformed text.
        """
        match = _POSITION_PATTERN.fullmatch(position or "")
        if match is None or match[1] != self._run_id:
            return None
        change_number = int(match[2])
        oldest_number = self._kept_changes[0][0] if self._kept_changes else self._newest_number + 1
        return change_number if oldest_number <= change_number + 1 <= self._newest_number + 1 else None

    async def _read_changes(self, hinted_at: float) -> None:
        """Reads the states of the agents and records the changes.

        Does nothing if a read has already begun after ``hinted_at``.
        """
        async with self._lock:
            if self._read_at > hinted_at:
                return
            # Paces the reads: hints that come meanwhile are served by the one that follows.
            await asyncio.sleep(max(0.0, self._read_at + self.read_interval_s - self._clock.monotonic()))
            read_at = self._clock.monotonic()
            earlier_states, self._states = self._states, await self._agents.states()
            self._read_at = read_at
            if earlier_states is None:
                return
            for agent_id, state in self._states.items():
                if aspects := _changed_aspects(earlier_states.get(agent_id), state):
                    self._append_change(agent_id, state, aspects)

    def _append_change(self, agent_id: AgentId, state: AgentState, aspects: tuple[str, ...]) -> None:
        self._newest_number += 1
        change = AgentChange(
            position=self._format_position(self._newest_number),
            agent_id=agent_id,
            status=state.status.value,
            schedulable=state.schedulable,
            aspects=aspects,
        )
        self._kept_changes.append((self._newest_number, change))


def _changed_aspects(earlier_state: AgentState | None, state: AgentState) -> tuple[str, ...]:
    if earlier_state is None:
        return tuple(_ASPECT_OF_ATTRIBUTE.values())
    return tuple(
        name
        for attribute, name in _ASPECT_OF_ATTRIBUTE.items()
        if getattr(earlier_state, attribute) != getattr(state, attribute)
    )
