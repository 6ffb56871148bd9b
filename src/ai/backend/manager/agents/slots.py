"""The resource slots that the cluster knows: the union of all that agents ever reported (spec 01).

The set is a value that is replaced as a whole. A request sees one of them from its beginning to its end, whatever
agents report meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace

from ai.backend.common.ids import AgentId
from ai.backend.common.states import LIVE_SESSION_STATUSES, AgentStatus
from ai.backend.manager.agents.model import SlotTypeInfo
from ai.backend.manager.agents.store import AgentStore
from ai.backend.manager.sessions.store import SessionStore

log = logging.getLogger(__name__)

KnownSlots = Mapping[str, SlotTypeInfo]
current_resource_slots: ContextVar[KnownSlots | None] = ContextVar("current_resource_slots", default=None)
"""The slots of the request at hand; None outside of requests."""


class SlotCatalogue:
    """Slots are added and described anew, never removed: not when their last agent leaves either."""

    def __init__(self, agents: AgentStore, sessions: SessionStore) -> None:
        self._agents = agents
        self._sessions = sessions
        self._newest: KnownSlots = {}

    async def load(self) -> None:
        self._newest = {s.slot_name: s for s in await self._agents.slot_types()}

    def pin(self) -> None:
        """From here on the request at hand sees the slots of now. The dispatcher calls it once for each request."""
        current_resource_slots.set(self._newest)

    @property
    def known(self) -> KnownSlots:
        """The slots of the request at hand, the newest outside of requests."""
        pinned = current_resource_slots.get()
        return self._newest if pinned is None else pinned

    async def report(self, agent_id: AgentId, slots: Sequence[SlotTypeInfo]) -> dict[str, str]:
        """Take in what an agent reports; of two that describe a slot, the newer one wins.

        A quantity means nothing without its type, so a slot that is in use keeps its type: an agent that names another
        one is refused that slot. Calls must not overlap, and the agent must be stored before the next one.

        Returns:
            Slot -> why it was refused.
        """
        refused: dict[str, str] = {}
        accepted = []
        for slot in slots:
            known = self._newest.get(slot.slot_name)
            if known is not None and known.slot_type is not slot.slot_type:
                user = await self._user(agent_id, slot.slot_name)
                if user is not None:
                    reason = (
                        f"{slot.slot_name} is of type {slot.slot_type} here, but {user} uses it as {known.slot_type}"
                    )
                    refused[slot.slot_name] = reason
                    log.warning("not scheduled on agent %s: %s", agent_id, reason)
                    continue
                log.warning("the slot %s is of type %s from now on", slot.slot_name, slot.slot_type)
            accepted.append(slot if slot.display or known is None else replace(slot, display=known.display))
        await self._agents.add_slot_types(accepted)
        await self.load()
        return refused

    async def _user(self, agent_id: AgentId, slot: str) -> str | None:
        """Who else counts on the type of a slot: another living agent that offers it, or a live session."""
        for agent in await self._agents.agents():
            if agent.id != agent_id and agent.status is AgentStatus.ALIVE and agent.available_slots[slot]:
                return f"agent {agent.id}"
        for session in await self._sessions.by_status(LIVE_SESSION_STATUSES):
            if session.requested_slots[slot]:
                return f"session {session.id}"
        return None
