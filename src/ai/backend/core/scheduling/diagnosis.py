"""Explains why a session is not placed: reasons that never end by waiting, and resources that are lacking now."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import combinations
from operator import and_

from ai.backend.common.devices import VariantProperty
from ai.backend.common.errors import UnsupportedResource
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.requests.compiled import DeviceRequest
from ai.backend.core.allocation.variants import HOST_PLUGINS
from ai.backend.core.scheduling import device_counts, explain
from ai.backend.core.scheduling.index.agent_state import AgentState
from ai.backend.core.scheduling.index.agents import AgentIndex, Demand
from ai.backend.core.scheduling.index.equivalence import EquivalenceClass, Verdict
from ai.backend.core.scheduling.placement.gang import fits_when_empty
from ai.backend.core.scheduling.placement.strategies import first_rank
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.snapshot import PendingSession


def permanent_reason(index: AgentIndex, equivalence_class: EquivalenceClass, session: PendingSession) -> Verdict | None:
    """Returns why the session could not start even on empty agents. Returns None if the session could start there."""
    demands = equivalence_class.demands
    if any(not demand.matching_mask for demand in demands):
        return _no_match(index, session)
    for demand in demands:
        if not demand.supporting_mask and (
            text := explain.unsupported(demand.total, index.members(demand.matching_mask))
        ):
            return SkipReason.UNSUPPORTED_RESOURCE, text
    for demand in demands:
        if not demand.supporting_mask:
            agents, requirements = index.members(demand.matching_mask), _requirements(demand)
            if (device_request := demand.device_request) is not None and not (
                requirements and _lacks_variants(demand, agents)
            ):
                counts = device_counts.count(device_request, demand.total, agents)
                return SkipReason.NO_MATCHING_DEVICE, device_counts.unmatched(device_request, counts)
            summary = explain.summarize_devices(frozenset(demand.total), agents)
            return SkipReason.NO_MATCHING_DEVICE, explain.unmatched(requirements, summary)
    for demand in demands:
        if not index.capable_mask(demand):
            return _too_large(index, demand)
    if equivalence_class.whole is not None or fits_when_empty(index, equivalence_class):
        return None
    total_slots = equivalence_class.total
    if fits_when_empty(index, equivalence_class, repaired=True):
        supporting_mask = 0
        for demand in demands:
            supporting_mask |= demand.supporting_mask
        return SkipReason.DEVICES_FAILED, explain.failed(total_slots, index.members(supporting_mask))
    text = f"needs {explain.format_amounts(total_slots)} for {len(session.kernels)} kernels, more than all nodes have"
    return SkipReason.NEVER_FITS, text


def summarize(verdicts: Sequence[Verdict | None]) -> Verdict:
    """Joins the explanations for all alternatives of a session. The reason is that of the preferred alternative."""
    present = [verdict for verdict in verdicts if verdict is not None]
    if len(present) == 1:
        return present[0]
    texts = [f"({number}) {text}" for number, (_, text) in enumerate(present, 1)]
    return present[0][0], f"none of {len(texts)} device requests can be met now: {explain.join_first(texts, 4, '; ')}"


def _lacks_variants(demand: Demand, agents: Sequence[AgentState]) -> bool:
    """Returns True if no agent has the variants that the demand requires, whatever the device request says."""
    requests = [(slots, requirements, None, False) for slots, requirements, *_ in demand.requests]
    node_classes = {agent.node_class for agent in agents}
    return not any(all(node_class.prepare(request) is not None for request in requests) for node_class in node_classes)


def _no_match(index: AgentIndex, session: PendingSession) -> Verdict:
    if not index.agents:
        return SkipReason.NO_AGENT, "no agent of this resource group is alive and schedulable"
    if session.designated_agents:
        designated_names = ", ".join(session.designated_agents)
        return (
            SkipReason.NO_MATCHING_AGENT,
            f"the designated agent {designated_names} is not there or cannot run this image",
        )
    architectures = sorted({kernel.architecture for kernel in session.kernels if kernel.architecture is not None})
    present_architectures = sorted({agent.view.architecture for agent in index.agents})
    if architectures and not set(architectures) & set(present_architectures):
        text = (
            f"needs an agent of architecture {', '.join(architectures)}; there are {', '.join(present_architectures)}"
        )
        return SkipReason.NO_MATCHING_AGENT, text
    needed_features = frozenset[str]().union(*(kernel.needs for kernel in session.kernels))
    if missing_features := sorted(
        needed_features - frozenset[str]().union(*(agent.view.features for agent in index.agents))
    ):
        return SkipReason.NO_MATCHING_AGENT, f"no agent has {', '.join(missing_features)}"
    images = ", ".join(sorted({kernel.image for kernel in session.kernels}))
    features_text = f" and has {', '.join(sorted(needed_features))}" if needed_features else ""
    return SkipReason.NO_MATCHING_AGENT, f"no agent can start the image {images}{features_text}"


def _too_large(index: AgentIndex, demand: Demand) -> Verdict:
    agents = index.members(demand.supporting_mask)
    refusals = {agent.agent_id: agent.node_class.refusal(demand.requests, agent.view.reserved) for agent in agents}
    tolerated = demand.device_request.tolerated if demand.device_request is not None else frozenset[str]()
    if repairable := [
        agent for agent in agents if agent.node_class.repaired is not agent.node_class and _fits_repaired(agent, demand)
    ]:
        return SkipReason.DEVICES_FAILED, explain.failed(demand.total, repairable, tolerated)
    supported = [agent for agent in agents if not isinstance(refusals[agent.agent_id], UnsupportedResource)] or agents
    why = next((refusal.message for refusal in refusals.values() if refusal is not None), "")
    if not why:
        full = supported[0]
        why = f"{full.agent_id} may hold {full.view.kernel_limit} kernels"
    return SkipReason.NEVER_FITS, explain.too_large(demand.total, supported, why)


def _fits_repaired(agent: AgentState, demand: Demand) -> bool:
    kernel_limit = agent.view.kernel_limit
    refusal = agent.node_class.repaired.refusal(demand.requests, agent.view.reserved)
    return refusal is None and (kernel_limit is None or len(demand.requests) <= kernel_limit)


def _requirements(demand: Demand) -> tuple[VariantProperty, ...]:
    return tuple(dict.fromkeys(requirement for _, requirements, *_ in demand.requests for requirement in requirements))


def shortage(index: AgentIndex, equivalence_class: EquivalenceClass, agent_mask: int) -> str:
    """Describes which resources are lacking now on the agents of a mask.

    Each of these agents could serve the session when empty.
    """
    if equivalence_class.whole is not None:
        return _describe_shortage(index, equivalence_class.whole, agent_mask)
    for hardest_place in equivalence_class.hardest:
        capable_mask = index.capable_mask(equivalence_class.parts[hardest_place]) & agent_mask
        if capable_mask and not equivalence_class.parts[hardest_place].fitting_mask() & capable_mask:
            return _describe_shortage(index, equivalence_class.parts[hardest_place], capable_mask)
    total_slots = sum((part.total for part in equivalence_class.parts), ResourceSlot())
    return explain.scattered(total_slots, len(equivalence_class.parts), index.members(agent_mask))


def _describe_shortage(index: AgentIndex, demand: Demand, agent_mask: int) -> str:
    """Describes which slot is short, and which agent has the largest free amount of the slot."""
    enough_masks: list[int] = []
    for slot, (slot_index, micro) in zip(demand.order, demand.ranked, strict=True):
        enough_mask = slot_index.mask_with_free(micro) & agent_mask
        if not enough_mask:
            if demand.device_request is not None and slot not in HOST_PLUGINS:
                return _describe_devices(index, demand, demand.device_request)
            best = index.agents[slot_index.richest_rank(agent_mask)]
            most = explain.format_amount(slot, best.available).split()[0]
            return (
                f"needs {explain.format_amount(slot, demand.total)} on one node; most free is {most} on {best.agent_id}"
            )
        enough_masks.append(enough_mask)
    if demand.device_request is not None:
        return _describe_devices(index, demand, demand.device_request)
    kernels = len(demand.requests)
    if not index.mask_with_room(agent_mask, kernels):
        agent_texts = [f"{agent.agent_id} {agent.count}" for agent in index.members(agent_mask)]
        room = "another kernel" if kernels == 1 else f"{kernels} more kernels"
        return f"needs room for {room}; no agent may hold so many ({explain.join_first(agent_texts, 8)} now)"
    closest = index.agents[first_rank(_fewest_lacks_mask(agent_mask, enough_masks))]
    needs = f"needs {explain.format_amounts(demand.total)} on one node"
    if lack := demand.total.shortage(closest.available):
        return f"{needs}; {closest.agent_id} comes closest and lacks {explain.format_amounts(lack)}"
    if requirements := _requirements(demand):
        of_such = f"of devices with {', '.join(map(str, requirements))}"
        return f"{needs}, {of_such}; too little of those is free on {closest.agent_id}"
    return f"{needs}; what is free on {closest.agent_id} is scattered over too many devices"


def _describe_devices(index: AgentIndex, demand: Demand, device_request: DeviceRequest) -> str:
    counts = device_counts.count(device_request, demand.total, index.members(demand.matching_mask))
    needs = f"needs {explain.format_amounts(demand.total)} on one node"
    return f"{needs}; {device_counts.describe(device_request, counts)}"


def _fewest_lacks_mask(agent_mask: int, enough_masks: list[int]) -> int:
    """Returns the agents of a mask that lack the fewest slots. ``enough_masks``: agents with enough, by slot."""
    for enough_count in range(len(enough_masks), -1, -1):
        agents = 0
        for masks in combinations(enough_masks, enough_count):
            agents |= reduce(and_, masks, agent_mask)
        if agents:
            return agents
    return agent_mask
