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
    """Returns why a session could not start even on empty agents. Returns None if empty agents could hold it."""
    demands = equivalence_class.demands
    if any(not demand.matching_mask for demand in demands):
        return _explain_no_match(index, session)
    for demand in demands:
        if not demand.supporting_mask and (
            message := explain.explain_unsupported(demand.total, index.agents_in(demand.matching_mask))
        ):
            return SkipReason.UNSUPPORTED_RESOURCE, message
    for demand in demands:
        if not demand.supporting_mask:
            agents, requirements = index.agents_in(demand.matching_mask), _requirements_of(demand)
            if (device_request := demand.device_request) is not None and not (
                requirements and _lacks_variants(demand, agents)
            ):
                counts = device_counts.count_devices(device_request, demand.total, agents)
                return SkipReason.NO_MATCHING_DEVICE, device_counts.explain_unmatched(device_request, counts)
            summary = explain.summarize_devices(frozenset(demand.total), agents)
            return SkipReason.NO_MATCHING_DEVICE, explain.explain_unmatched(requirements, summary)
    for demand in demands:
        if not index.capable_mask(demand):
            return _explain_too_large(index, demand)
    if equivalence_class.whole is not None or fits_when_empty(index, equivalence_class):
        return None
    total_slots = equivalence_class.total
    if fits_when_empty(index, equivalence_class, is_repaired=True):
        supporting_mask = 0
        for demand in demands:
            supporting_mask |= demand.supporting_mask
        return SkipReason.DEVICES_FAILED, explain.explain_withheld(total_slots, index.agents_in(supporting_mask))
    message = (
        f"needs {explain.format_amounts(total_slots)} for {len(session.kernels)} kernels, more than all nodes have"
    )
    return SkipReason.NEVER_FITS, message


def summarize(verdicts: Sequence[Verdict | None]) -> Verdict:
    """Joins the explanations for all alternatives of a session into one verdict.

    The reason is that of the preferred alternative.
    """
    stated_verdicts = [verdict for verdict in verdicts if verdict is not None]
    if len(stated_verdicts) == 1:
        return stated_verdicts[0]
    messages = [f"({position}) {message}" for position, (_, message) in enumerate(stated_verdicts, 1)]
    return stated_verdicts[0][
        0
    ], f"none of {len(messages)} device requests can be met now: {explain.join_first(messages, 4, '; ')}"


def _lacks_variants(demand: Demand, agents: Sequence[AgentState]) -> bool:
    """Returns True if no agent has the variants that the demand requires, even without its device request."""
    requests = [(slots, requirements, None, False) for slots, requirements, *_ in demand.requests]
    node_classes = {agent.node_class for agent in agents}
    return not any(all(node_class.prepare(request) is not None for request in requests) for node_class in node_classes)


def _explain_no_match(index: AgentIndex, session: PendingSession) -> Verdict:
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
        message = (
            f"needs an agent of architecture {', '.join(architectures)}; there are {', '.join(present_architectures)}"
        )
        return SkipReason.NO_MATCHING_AGENT, message
    needed_features = frozenset[str]().union(*(kernel.needs for kernel in session.kernels))
    if missing_features := sorted(
        needed_features - frozenset[str]().union(*(agent.view.features for agent in index.agents))
    ):
        return SkipReason.NO_MATCHING_AGENT, f"no agent has {', '.join(missing_features)}"
    images_text = ", ".join(sorted({kernel.image for kernel in session.kernels}))
    features_text = f" and has {', '.join(sorted(needed_features))}" if needed_features else ""
    return SkipReason.NO_MATCHING_AGENT, f"no agent can start the image {images_text}{features_text}"


def _explain_too_large(index: AgentIndex, demand: Demand) -> Verdict:
    agents = index.agents_in(demand.supporting_mask)
    refusals = {agent.agent_id: agent.node_class.refusal(demand.requests, agent.view.reserved) for agent in agents}
    tolerated_keys = demand.device_request.tolerated if demand.device_request is not None else frozenset[str]()
    if repairable_agents := [
        agent
        for agent in agents
        if agent.node_class.repaired_class is not agent.node_class and _fits_repaired(agent, demand)
    ]:
        return SkipReason.DEVICES_FAILED, explain.explain_withheld(demand.total, repairable_agents, tolerated_keys)
    supporting_agents = [
        agent for agent in agents if not isinstance(refusals[agent.agent_id], UnsupportedResource)
    ] or agents
    refusal_text = next((refusal.message for refusal in refusals.values() if refusal is not None), "")
    if not refusal_text:
        limited_agent = supporting_agents[0]
        refusal_text = f"{limited_agent.agent_id} may hold {limited_agent.view.kernel_limit} kernels"
    return SkipReason.NEVER_FITS, explain.explain_too_large(demand.total, supporting_agents, refusal_text)


def _fits_repaired(agent: AgentState, demand: Demand) -> bool:
    kernel_limit = agent.view.kernel_limit
    refusal = agent.node_class.repaired_class.refusal(demand.requests, agent.view.reserved)
    return refusal is None and (kernel_limit is None or len(demand.requests) <= kernel_limit)


def _requirements_of(demand: Demand) -> tuple[VariantProperty, ...]:
    return tuple(dict.fromkeys(requirement for _, requirements, *_ in demand.requests for requirement in requirements))


def shortage(index: AgentIndex, equivalence_class: EquivalenceClass, agent_mask: int) -> str:
    """Describes which resources are lacking now on the agents of a mask.

    Each of these agents could serve the session when empty.
    """
    if equivalence_class.whole is not None:
        return _describe_shortage(index, equivalence_class.whole, agent_mask)
    for index_of_demand in equivalence_class.hardest:
        capable_mask = index.capable_mask(equivalence_class.parts[index_of_demand]) & agent_mask
        if capable_mask and not equivalence_class.parts[index_of_demand].fitting_mask() & capable_mask:
            return _describe_shortage(index, equivalence_class.parts[index_of_demand], capable_mask)
    total_slots = sum((demand.total for demand in equivalence_class.parts), ResourceSlot())
    return explain.explain_scattered(total_slots, len(equivalence_class.parts), index.agents_in(agent_mask))


def _describe_shortage(index: AgentIndex, demand: Demand, agent_mask: int) -> str:
    """Describes which slot is short, and which agent has the largest free amount of the slot."""
    enough_masks: list[int] = []
    for slot, (slot_index, amount_micro) in zip(demand.order, demand.ranked, strict=True):
        enough_mask = slot_index.mask_with_free(amount_micro) & agent_mask
        if not enough_mask:
            if demand.device_request is not None and slot not in HOST_PLUGINS:
                return _describe_devices(index, demand, demand.device_request)
            freest_agent = index.agents[slot_index.richest_rank(agent_mask)]
            free_text = explain.format_amount(slot, freest_agent.available).split()[0]
            needed_text = explain.format_amount(slot, demand.total)
            return f"needs {needed_text} on one node; most free is {free_text} on {freest_agent.agent_id}"
        enough_masks.append(enough_mask)
    if demand.device_request is not None:
        return _describe_devices(index, demand, demand.device_request)
    kernel_count = len(demand.requests)
    if not index.mask_with_room(agent_mask, kernel_count):
        agent_texts = [f"{agent.agent_id} {agent.count}" for agent in index.agents_in(agent_mask)]
        kernels_text = "another kernel" if kernel_count == 1 else f"{kernel_count} more kernels"
        return f"needs room for {kernels_text}; no agent may hold so many ({explain.join_first(agent_texts, 8)} now)"
    closest_agent = index.agents[first_rank(_fewest_lacks_mask(agent_mask, enough_masks))]
    needs_text = f"needs {explain.format_amounts(demand.total)} on one node"
    if lacking_slots := demand.total.shortage(closest_agent.available):
        return f"{needs_text}; {closest_agent.agent_id} comes closest and lacks {explain.format_amounts(lacking_slots)}"
    if requirements := _requirements_of(demand):
        devices_text = f"of devices with {', '.join(map(str, requirements))}"
        return f"{needs_text}, {devices_text}; too little of those is free on {closest_agent.agent_id}"
    return f"{needs_text}; what is free on {closest_agent.agent_id} is scattered over too many devices"


def _describe_devices(index: AgentIndex, demand: Demand, device_request: DeviceRequest) -> str:
    counts = device_counts.count_devices(device_request, demand.total, index.agents_in(demand.matching_mask))
    needs_text = f"needs {explain.format_amounts(demand.total)} on one node"
    return f"{needs_text}; {device_counts.describe_counts(device_request, counts)}"


def _fewest_lacks_mask(agent_mask: int, enough_masks: list[int]) -> int:
    """Returns the agents of a mask that are short of the fewest slots.

    ``enough_masks``: for each slot, the agents that have enough of the slot.
    """
    for enough_count in range(len(enough_masks), -1, -1):
        fewest_mask = 0
        for mask_combination in combinations(enough_masks, enough_count):
            fewest_mask |= reduce(and_, mask_combination, agent_mask)
        if fewest_mask:
            return fewest_mask
    return agent_mask
