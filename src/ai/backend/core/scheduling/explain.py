"""Sentences for the owners of sessions that wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ai.backend.common.slots import BinarySize, ResourceSlot, format_quantity
from ai.backend.core.scheduling.working import WorkingAgent


def amount(slot: str, request: ResourceSlot) -> str:
    """``4 cuda.device``, ``2g mem``."""
    value = request[slot]
    is_size = slot == "mem" and value.is_finite() and value == value.to_integral_value() and value >= 0
    return f"{BinarySize(int(value)) if is_size else format_quantity(value)} {slot}"


def amounts(request: ResourceSlot) -> str:
    return ", ".join(amount(slot, request) for slot in sorted(request.nonzero())) or "nothing"


def unsupported(request: ResourceSlot, agents: Sequence[WorkingAgent]) -> str | None:
    """Names the first slot that no agent has at all; None if every slot is somewhere."""
    known = sorted({slot for agent in agents for slot in agent.totals})
    missing = next((slot for slot in request.nonzero() if slot not in known), None)
    return None if missing is None else f"no agent has the resource slot {missing}; there are {', '.join(known)}"


def shortage(request: ResourceSlot, agents: Iterable[WorkingAgent], *, kernels: int = 1) -> str:
    """What ``kernels`` kernels of one node are short of, and where most of it is free."""
    where = "on one node"
    candidates = list(agents)
    for slot in sorted(request.nonzero()):
        best = max(candidates, key=lambda a: (a.available[slot], a.agent_id))
        if best.available[slot] < request[slot]:
            most = format_quantity(best.available[slot]) if slot != "mem" else amount(slot, best.available).split()[0]
            return f"needs {amount(slot, request)} {where}; most free is {most} on {best.agent_id}"
    crowded = [f"{a.agent_id} {a.count}" for a in candidates if not a.has_room(kernels)]
    if len(crowded) == len(candidates):
        room = "another kernel" if kernels == 1 else f"{kernels} more kernels"
        return f"needs room for {room}; no agent may hold so many ({', '.join(crowded)} now)"
    closest = min(candidates, key=lambda a: (len(request.shortage(a.available)), a.agent_id))
    lack = request.shortage(closest.available)
    if lack:
        return f"needs {amounts(request)} {where}; {closest.agent_id} comes closest and lacks {amounts(lack)}"
    return f"needs {amounts(request)} {where}; what is free on {closest.agent_id} is scattered over too many devices"


def scattered(total: ResourceSlot, kernels: int, agents: Iterable[WorkingAgent]) -> str:
    """For a multi-node session of which some kernels would fit."""
    free = sum((a.available for a in agents), ResourceSlot())
    wanted = ResourceSlot({slot: free[slot] for slot in total.nonzero()})
    return f"needs {amounts(total)} for {kernels} kernels at once; free on all nodes together is {amounts(wanted)}"


def too_large(request: ResourceSlot, agents: Iterable[WorkingAgent], why: str) -> str:
    """As :func:`shortage`, of agents that would hold nothing else; ``why`` is what one of them answered."""
    candidates = list(agents)
    for slot in sorted(request.nonzero()):
        best = max(candidates, key=lambda a: (a.totals[slot], a.agent_id))
        if best.totals[slot] < request[slot]:
            most = format_quantity(best.totals[slot]) if slot != "mem" else amount(slot, best.totals).split()[0]
            return f"needs {amount(slot, request)} on one node; the largest node, {best.agent_id}, has {most}"
    return f"can never run here, not even on an empty node: {why}"
