"""Policies as values: names that a resource group stores, and the functions they stand for.

A new policy is a function and a row of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling.snapshot import PendingSession, Snapshot
from ai.backend.core.scheduling.working import WorkingAgent


class Rng(Protocol):
    """The only dice of a decision: ``random.Random(seed)`` is one."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a resource group schedules: keys of :data:`ORDERS` and :data:`PLACEMENTS`."""

    order: str = "fifo"
    placement: str = "dispersed"


def _fifo(snapshot: Snapshot) -> list[PendingSession]:
    """Larger priority first, then older, then by id so that the order is total."""
    return sorted(snapshot.pending, key=lambda s: (-s.priority, s.enqueued_at, s.session_id))


def _rank(slot: str) -> tuple[int, str]:
    """Accelerators are scarcer than cores, cores than memory."""
    return {"cpu": 1, "mem": 2}.get(slot, 0), slot


def _unused(agent: WorkingAgent, request: ResourceSlot) -> int:
    """How many kinds of slots of this agent the request has no use for: keep accelerators for those who need them."""
    return sum(1 for slot, total in agent.totals.items() if total and not request[slot])


def _left(agent: WorkingAgent, request: ResourceSlot) -> list[Decimal]:
    return [agent.available[slot] - request[slot] for slot in sorted(request, key=_rank)]


def _concentrated(agent: WorkingAgent, request: ResourceSlot, _: Rng) -> Any:
    """The fullest agent first, so that whole agents stay free."""
    return _unused(agent, request), _left(agent, request), agent.agent_id


def _dispersed(agent: WorkingAgent, request: ResourceSlot, rng: Rng) -> Any:
    """The emptiest agent first; equals are drawn."""
    return _unused(agent, request), [-left for left in _left(agent, request)], rng.random()


ORDERS: Mapping[str, Callable[[Snapshot], list[PendingSession]]] = {"fifo": _fifo}
PLACEMENTS: Mapping[str, Callable[[WorkingAgent, ResourceSlot, Rng], Any]] = {
    "concentrated": _concentrated,
    "dispersed": _dispersed,
}


def ordered(
    agents: Iterable[WorkingAgent], session: PendingSession, request: ResourceSlot, policy: Policy, rng: Rng
) -> list[WorkingAgent]:
    """Agents, best first; those that just failed this session come last."""
    key = PLACEMENTS[policy.placement]
    return sorted(agents, key=lambda a: (a.agent_id in session.avoided_agents, key(a, request, rng)))
