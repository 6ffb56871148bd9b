"""Explains why a session is not placed: permanent reasons, and what it lacks now."""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from operator import and_

from ai.backend.common.devices import VariantProperty
from ai.backend.common.errors import UnsupportedResource
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.scheduling import explain
from ai.backend.core.scheduling.index.agent_state import AgentState
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import EquivalenceClass, Verdict
from ai.backend.core.scheduling.placement.gang import fits_when_empty
from ai.backend.core.scheduling.placement.strategies import first
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.snapshot import PendingSession


def permanent_reason(index: AgentIndex, equivalence_class: EquivalenceClass, session: PendingSession) -> Verdict | None:
    """Returns why the session could not start even on empty agents; None if it could."""
    demands = equivalence_class.demands
    if any(not demand.matching for demand in demands):
        return _no_match(index, session)
    for demand in demands:
        if not demand.supporting and (text := explain.unsupported(demand.total, index.members(demand.matching))):
            return SkipReason.UNSUPPORTED_RESOURCE, text
    for demand in demands:
        if not demand.supporting:
            summary = explain.summarize_devices(frozenset(demand.total), index.members(demand.matching))
            return SkipReason.NO_MATCHING_DEVICE, explain.unmatched(_requirements(demand), summary)
    for demand in demands:
        if not index.capable(demand):
            return _too_large(index, demand)
    if equivalence_class.whole is not None or fits_when_empty(index, equivalence_class):
        return None
    total = session.total
    if fits_when_empty(index, equivalence_class, repaired=True):
        supporting = 0
        for demand in demands:
            supporting |= demand.supporting
        return SkipReason.DEVICES_FAILED, explain.failed(total, index.members(supporting))
    text = f"needs {explain.amounts(total)} for {len(session.kernels)} kernels, more than all nodes have"
    return SkipReason.NEVER_FITS, text


def _no_match(index: AgentIndex, session: PendingSession) -> Verdict:
    if not index.agents:
        return SkipReason.NO_AGENT, "no agent of this resource group is alive and schedulable"
    if session.designated_agents:
        named = ", ".join(session.designated_agents)
        return SkipReason.NO_MATCHING_AGENT, f"the designated agent {named} is not there or cannot run this image"
    architectures = sorted({k.architecture for k in session.kernels if k.architecture is not None})
    present = sorted({a.view.architecture for a in index.agents})
    if architectures and not set(architectures) & set(present):
        text = f"needs an agent of architecture {', '.join(architectures)}; there are {', '.join(present)}"
        return SkipReason.NO_MATCHING_AGENT, text
    needs = frozenset[str]().union(*(k.needs for k in session.kernels))
    if lacking := sorted(needs - frozenset[str]().union(*(a.view.features for a in index.agents))):
        return SkipReason.NO_MATCHING_AGENT, f"no agent has {', '.join(lacking)}"
    images = ", ".join(sorted({k.image for k in session.kernels}))
    having = f" and has {', '.join(sorted(needs))}" if needs else ""
    return SkipReason.NO_MATCHING_AGENT, f"no agent can start the image {images}{having}"


def _too_large(index: AgentIndex, demand: Demand) -> Verdict:
    agents = index.members(demand.supporting)
    refusals = {a.agent_id: a.node_class.refusal(demand.requests, a.view.reserved) for a in agents}
    if failing := [a for a in agents if a.node_class.repaired is not a.node_class and _fits_repaired(a, demand)]:
        return SkipReason.DEVICES_FAILED, explain.failed(demand.total, failing)
    fitting = [a for a in agents if not isinstance(refusals[a.agent_id], UnsupportedResource)] or agents
    why = next((e.message for e in refusals.values() if e is not None), "")
    if not why:
        tight = fitting[0]
        why = f"{tight.agent_id} may hold {tight.view.kernel_limit} kernels"
    return SkipReason.NEVER_FITS, explain.too_large(demand.total, fitting, why)


def _fits_repaired(agent: AgentState, demand: Demand) -> bool:
    limit = agent.view.kernel_limit
    refusal = agent.node_class.repaired.refusal(demand.requests, agent.view.reserved)
    return refusal is None and (limit is None or len(demand.requests) <= limit)


def _requirements(demand: Demand) -> tuple[VariantProperty, ...]:
    return tuple(dict.fromkeys(r for _, requirements in demand.requests for r in requirements))


def shortage(index: AgentIndex, equivalence_class: EquivalenceClass, scope: int) -> str:
    """Describes what the agents of a mask lack now, each of which could serve the session when empty."""
    if equivalence_class.whole is not None:
        return _lacks(index, equivalence_class.whole, scope)
    for i in equivalence_class.hardest:
        capable = index.capable(equivalence_class.parts[i]) & scope
        if capable and not equivalence_class.parts[i].fit() & capable:
            return _lacks(index, equivalence_class.parts[i], capable)
    total = sum((part.total for part in equivalence_class.parts), ResourceSlot())
    return explain.scattered(total, len(equivalence_class.parts), index.members(scope))


def _lacks(index: AgentIndex, demand: Demand, scope: int) -> str:
    """Describes which slot is short, and which agent has most of it free."""
    have: list[int] = []
    for slot, (slot_index, amount) in zip(demand.order, demand.ranked, strict=True):
        enough = slot_index.at_least(amount) & scope
        if not enough:
            best = index.agents[slot_index.richest(scope)]
            most = explain.amount(slot, best.available).split()[0]
            return f"needs {explain.amount(slot, demand.total)} on one node; most free is {most} on {best.agent_id}"
        have.append(enough)
    kernels = len(demand.requests)
    if not index.with_room(scope, kernels):
        crowded = [f"{a.agent_id} {a.count}" for a in index.members(scope)]
        room = "another kernel" if kernels == 1 else f"{kernels} more kernels"
        return f"needs room for {room}; no agent may hold so many ({explain.some(crowded, 8)} now)"
    closest = index.agents[first(_fewest_lacks(scope, have))]
    needs = f"needs {explain.amounts(demand.total)} on one node"
    if lack := demand.total.shortage(closest.available):
        return f"{needs}; {closest.agent_id} comes closest and lacks {explain.amounts(lack)}"
    if requirements := _requirements(demand):
        of_such = f"of devices with {', '.join(map(str, requirements))}"
        return f"{needs}, {of_such}; too little of those is free on {closest.agent_id}"
    return f"{needs}; what is free on {closest.agent_id} is scattered over too many devices"


def _fewest_lacks(scope: int, have: list[int]) -> int:
    """Returns the agents of a mask that lack the fewest slots. ``have``: for each slot the agents that have enough."""
    for count in range(len(have), -1, -1):
        agents = 0
        for masks in combinations(have, count):
            agents |= reduce(and_, masks, scope)
        if agents:
            return agents
    return scope
