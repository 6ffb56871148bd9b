"""The resource slots of the cluster: the union of all that agents ever reported (spec 01)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace

from ai.backend.common.ids import AgentId
from ai.backend.common.states import AgentStatus
from ai.backend.manager.agents.model import SlotTypeInfo
from ai.backend.manager.agents.store import AgentStore, SlotUse

log = logging.getLogger(__name__)

SlotTypes = Mapping[str, SlotTypeInfo]
current_resource_slots: ContextVar[SlotTypes | None] = ContextVar("current_resource_slots", default=None)
"""The slots of the current request; None outside of requests."""


class SlotCatalogue:
    """Holds the resource slots. Slots are added and updated, never removed, not even when their last agent leaves.

    The set is an immutable value that is replaced as a whole: a request sees the same set from beginning to end.
    """

    def __init__(self, agents: AgentStore, use: SlotUse) -> None:
        self._agents = agents
        self._use = use
        self._newest: SlotTypes = {}

    async def load(self) -> None:
        self._newest = {s.slot_name: s for s in await self._agents.slot_types()}

    def pin(self) -> None:
        """Fixes the slots that the current request sees. The dispatcher calls it once for each request."""
        current_resource_slots.set(self._newest)

    @property
    def slot_types(self) -> SlotTypes:
        """The slots of the current request; the newest outside of requests."""
        pinned = current_resource_slots.get()
        return self._newest if pinned is None else pinned

    async def report(self, agent_id: AgentId, slots: Sequence[SlotTypeInfo]) -> dict[str, str]:
        """Adds the slots that an agent reports, and returns slot -> reason for every refused slot.

        A slot that is in use keeps its type: a report of another type is refused. The newest description of a slot
        wins. Calls must not overlap, and the agent must be stored before the next call.
        """
        refused: dict[str, str] = {}
        accepted = []
        for slot in slots:
            existing = self._newest.get(slot.slot_name)
            if existing is not None and existing.slot_type is not slot.slot_type:
                user = await self._user(agent_id, slot.slot_name)
                if user is not None:
                    reason = (
                        f"{slot.slot_name} is of type {slot.slot_type} here, but {user} uses it as {existing.slot_type}"
                    )
                    refused[slot.slot_name] = reason
                    log.warning("not scheduled on agent %s: %s", agent_id, reason)
                    continue
                log.warning("the slot %s is of type %s from now on", slot.slot_name, slot.slot_type)
            accepted.append(slot if slot.display or existing is None else replace(slot, display=existing.display))
        await self._agents.add_slot_types(accepted)
        await self.load()
        return refused

    async def _user(self, agent_id: AgentId, slot: str) -> str | None:
        """Returns a user of a slot other than the agent: a living agent that offers it, or a live session."""
        for agent in await self._agents.agents():
            if agent.id != agent_id and agent.status is AgentStatus.ALIVE and agent.available_slots[slot]:
                return f"agent {agent.id}"
        return await self._use.slot_user(slot)
