"""Why a session is not placed: what waiting can never change, and what it lacks now."""

from __future__ import annotations

from itertools import combinations

from ai.backend.common.devices import VariantProperty
from ai.backend.common.errors import UnsupportedResource
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling import explain
from ai.backend.core.scheduling.index.agent_state import AgentState, NodeClass
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import EquivalenceClass, Verdict
from ai.backend.core.scheduling.placement.gang import fits_when_empty
from ai.backend.core.scheduling.placement.strategies import first
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.snapshot import PendingSession


def never(fleet: AgentIndex, shape: EquivalenceClass, session: PendingSession) -> Verdict | None:
    """Why the session could not even start on empty agents; None if it could."""
    asked = shape.able_parts
    if any(not demand.matching for demand in asked):
        return _no_match(fleet, session)
    for demand in asked:
        if not demand.supporting and (text := explain.unsupported([demand.total], fleet.members(demand.matching))):
            return SkipReason.UNSUPPORTED_RESOURCE, text
    for demand in asked:
        if not demand.supporting:
            survey = explain.survey(frozenset(demand.total), fleet.members(demand.matching))
            return SkipReason.NO_MATCHING_DEVICE, explain.unmatched(_requirements(demand), survey)
    for demand in asked:
        if not fleet.able(demand):
            return _too_large(fleet, demand)
    if shape.whole is not None or fits_when_empty(fleet, shape):
        return None
    total = session.total
    if fits_when_empty(fleet, shape, mended=True):
        supporting = 0
        for demand in asked:
            supporting |= demand.supporting
        return SkipReason.DEVICES_FAILED, explain.failed(total, fleet.members(supporting))
    text = f"needs {explain.amounts(total)} for {len(session.kernels)} kernels, more than all nodes have"
    return SkipReason.NEVER_FITS, text


def _no_match(fleet: AgentIndex, session: PendingSession) -> Verdict:
    if not fleet.agents:
        return SkipReason.NO_AGENT, "no agent of this resource group is alive and schedulable"
    if session.designated_agents:
        named = ", ".join(session.designated_agents)
        return SkipReason.NO_MATCHING_AGENT, f"the designated agent {named} is not there or cannot run this image"
    architectures = sorted({k.architecture for k in session.kernels if k.architecture is not None})
    present = sorted({a.view.architecture for a in fleet.agents})
    if architectures and not set(architectures) & set(present):
        text = f"needs an agent of architecture {', '.join(architectures)}; there are {', '.join(present)}"
        return SkipReason.NO_MATCHING_AGENT, text
    needs = frozenset[str]().union(*(k.needs for k in session.kernels))
    if lacking := sorted(needs - frozenset[str]().union(*(a.view.features for a in fleet.agents))):
        return SkipReason.NO_MATCHING_AGENT, f"no agent has {', '.join(lacking)}"
    images = ", ".join(sorted({k.image for k in session.kernels}))
    having = f" and has {', '.join(sorted(needs))}" if needs else ""
    return SkipReason.NO_MATCHING_AGENT, f"no agent can start the image {images}{having}"


def _too_large(fleet: AgentIndex, demand: Demand) -> Verdict:
    agents = fleet.members(demand.supporting)
    refusals = {a.agent_id: a.make.refusal(demand.wishes, a.view.reserved) for a in agents}
    if mended := [a for a in agents if _could_serve(a, a.make.mended, demand)]:
        failing = [a for a in mended if a.make.mended is not a.make]
        if failing:
            return SkipReason.DEVICES_FAILED, explain.failed(demand.total, failing)
    fitting = [a for a in agents if not isinstance(refusals[a.agent_id], UnsupportedResource)] or agents
    why = next((e.message for e in refusals.values() if e is not None), "")
    if not why:
        tight = fitting[0]
        why = f"{tight.agent_id} may hold {tight.view.kernel_limit} kernels"
    return SkipReason.NEVER_FITS, explain.too_large(demand.total, fitting, why)


def _could_serve(agent: AgentState, make: NodeClass, demand: Demand) -> bool:
    limit = agent.view.kernel_limit
    return (limit is None or len(demand.wishes) <= limit) and make.refusal(demand.wishes, agent.view.reserved) is None


def _requirements(demand: Demand) -> tuple[VariantProperty, ...]:
    return tuple(dict.fromkeys(r for _, requirements in demand.wishes for r in requirements))


def shortage(fleet: AgentIndex, shape: EquivalenceClass, scope: int) -> str:
    """What the agents of a mask, of which each could serve it when it is empty, lack now."""
    if shape.whole is not None:
        return _lacks(fleet, shape.whole, scope)
    for i in shape.hardest:
        here = fleet.able(shape.parts[i]) & scope
        if here and not shape.parts[i].fit() & here:
            return _lacks(fleet, shape.parts[i], here)
    total = sum((part.total for part in shape.parts), ResourceSlot())
    return explain.scattered(total, len(shape.parts), fleet.members(scope))


def _lacks(fleet: AgentIndex, demand: Demand, scope: int) -> str:
    """Which slot is short, and where most of it is free."""
    have: list[int] = []
    for slot, (index, amount) in zip(demand.order, demand.ranked, strict=True):
        enough = index.at_least(amount) & scope
        if not enough:
            best = fleet.agents[index.richest(scope)]
            most = explain.amount(slot, best.available).split()[0]
            return f"needs {explain.amount(slot, demand.total)} on one node; most free is {most} on {best.agent_id}"
        have.append(enough)
    kernels = len(demand.wishes)
    if not fleet.with_room(scope, kernels):
        crowded = [f"{a.agent_id} {a.count}" for a in fleet.members(scope)]
        room = "another kernel" if kernels == 1 else f"{kernels} more kernels"
        return f"needs room for {room}; no agent may hold so many ({explain.some(crowded, 8)} now)"
    closest = fleet.agents[first(_fewest_lacks(scope, have))]
    needs = f"needs {explain.amounts(demand.total)} on one node"
    if lack := demand.total.shortage(closest.available):
        return f"{needs}; {closest.agent_id} comes closest and lacks {explain.amounts(lack)}"
    if requirements := _requirements(demand):
        of_such = f"of devices with {', '.join(map(str, requirements))}"
        return f"{needs}, {of_such}; too little of those is free on {closest.agent_id}"
    return f"{needs}; what is free on {closest.agent_id} is scattered over too many devices"


def _fewest_lacks(scope: int, have: list[int]) -> int:
    """The agents of a mask that lack the fewest of the slots; ``have``: for each slot those that have enough."""
    for missing in range(len(have) + 1):
        found = 0
        for kept in combinations(have, len(have) - missing):
            common = scope
            for mask in kept:
                common &= mask
            found |= common
        if found:
            return found
    return scope
