"""Keeps the resource slots of the cluster, which are all slots that agents ever reported (spec 01)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

from ai.backend.common.ids import AgentId
from ai.backend.common.states import AgentStatus
from ai.backend.common.structs import replace
from ai.backend.manager.agents.model import SlotTypeInfo
from ai.backend.manager.agents.store import AgentStore, SlotUse

log = logging.getLogger(__name__)

SlotTypes = Mapping[str, SlotTypeInfo]
current_resource_slots: ContextVar[SlotTypes | None] = ContextVar("current_resource_slots", default=None)
"""The slot types that the current request sees, or None outside of requests."""


class SlotCatalogue:
    """Holds the slot types that agents have reported. Slots are added and updated, never removed, not even when their
    last agent leaves.

    The set is an immutable value that is replaced as a whole: a request sees the same set from beginning to end.
    """

    def __init__(self, agents: AgentStore, use: SlotUse) -> None:
        self._agents = agents
        self._slot_use = use
        self._newest_slot_types: SlotTypes = {}

    async def load(self) -> None:
        self._newest_slot_types = {slot.slot_name: slot for slot in await self._agents.slot_types()}

    def pin_slot_types(self) -> None:
        """Makes the current request see the present slot types until its end, also if agents report new ones.

        The dispatcher calls it once for each request.
        """
        current_resource_slots.set(self._newest_slot_types)

    @property
    def slot_types(self) -> SlotTypes:
        """Returns the slot types of the current request, or the newest ones outside of requests."""
        pinned_types = current_resource_slots.get()
        return self._newest_slot_types if pinned_types is None else pinned_types

    async def add_reported_slots(self, agent_id: AgentId, slots: Sequence[SlotTypeInfo]) -> dict[str, str]:
        """Adds the slots that an agent reports, and returns the reason of refusal for every refused slot.

        A slot that is in use keeps its type: a report of another type is refused. The newest description of a slot
        wins. Calls must not overlap, and the agent must be stored before the next call.
        """
        reason_of_refused_slot: dict[str, str] = {}
        accepted_slots = []
        for slot in slots:
            existing_type = self._newest_slot_types.get(slot.slot_name)
            if existing_type is not None and existing_type.slot_type is not slot.slot_type:
                user_name = await self._other_user_of(agent_id, slot.slot_name)
                if user_name is not None:
                    reason = (
                        f"{slot.slot_name} is of type {slot.slot_type} here,"
                        f" but {user_name} uses it as {existing_type.slot_type}"
                    )
                    reason_of_refused_slot[slot.slot_name] = reason
                    log.warning("not scheduled on agent %s: %s", agent_id, reason)
                    continue
                log.warning("the slot %s is of type %s from now on", slot.slot_name, slot.slot_type)
            accepted_slots.append(
                slot if slot.display or existing_type is None else replace(slot, display=existing_type.display)
            )
        await self._agents.add_slot_types(accepted_slots)
        await self.load()
        return reason_of_refused_slot

    async def _other_user_of(self, agent_id: AgentId, slot: str) -> str | None:
        """Returns another living agent that offers a slot, or a live session that requests it, or None."""
        for agent in await self._agents.agents():
            if agent.id != agent_id and agent.status is AgentStatus.ALIVE and agent.available_slots[slot]:
                return f"agent {agent.id}"
        return await self._slot_use.slot_user(slot)
