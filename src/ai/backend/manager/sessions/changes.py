"""What one transaction changes.

The slots of agents follow from the kernels alone: a store computes :func:`slot_deltas` of every change and applies them
in the same transaction, so taking and returning slots cannot be forgotten and cannot drift.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ai.backend.common.ids import AgentId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.lifecycle.effects import Command
from ai.backend.manager.sessions.events import EventDraft
from ai.backend.manager.sessions.model import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Replace ``old`` by ``new`` if the stored version is still that of ``old``; ``events`` are for the clients.

    ``commands`` are executed once the change is stored.

    ``new.version`` is ignored: the store sets it to ``old.version + 1``. Side fields (``num_queries``, ``last_stat``)
    that a loop does not touch must be equal in both.
    """

    old: Session
    new: Session
    events: tuple[EventDraft, ...] = ()
    commands: tuple[Command, ...] = ()

    @property
    def is_stored(self) -> bool:
        """True if there is something to store, not only commands to execute."""
        return self.new is not self.old or bool(self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationAck:
    """Records, in the same transaction, that an agent's observations up to ``seq`` of ``epoch`` are applied."""

    agent_id: AgentId
    epoch: int
    seq: int


def slot_deltas(changes: Iterable[Change]) -> dict[AgentId, ResourceSlot]:
    """Return the change of each agent's occupied slots; agents without a change are left out."""
    deltas: dict[AgentId, ResourceSlot] = {}
    for change in changes:
        for sign, session in ((-1, change.old), (1, change.new)):
            for kernel in session.kernels:
                held = kernel.holds
                if kernel.agent is not None and len(held):
                    deltas[kernel.agent] = deltas.get(kernel.agent, ResourceSlot()) + held * sign
    return {agent: nonzero for agent, delta in deltas.items() if len(nonzero := delta.nonzero())}
