"""Counts the devices that satisfy a device request, and how many of these devices are free.

The owners of waiting sessions read the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from ai.backend.common.slots import ResourceSlot, format_quantity
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.core.allocation.requests.attributes import ATTRIBUTES, AttributeKind, attributes_of
from ai.backend.core.allocation.requests.compiled import DeviceRequest
from ai.backend.core.allocation.requests.terms import Comparison, Has, Not, Term, Value
from ai.backend.core.allocation.variants import HOST_PLUGINS, sort_values
from ai.backend.core.scheduling.explain import join_first
from ai.backend.core.scheduling.index.agent_state import AgentState, NodeClass

_MAX_VALUES = 6


@dataclass(slots=True)
class DeviceCounts:
    """Counts the devices of the requested accelerators, and the devices among them that satisfy a request.

    Attributes:
        total: all of them, healthy or not.
        having: for each condition of the request, those that satisfy it.
        selected: those that satisfy all.
        free: of these, those that have something free; None if a plugin's own map keeps that.
        most_free: the largest number of free ones on one agent.
        values: the values of each attribute that the request names.
    """

    total: int
    having: list[int]
    selected: int
    free: int | None
    most_free: int
    values: dict[str, set[Value]]


def count_devices(device_request: DeviceRequest, slots: ResourceSlot, agents: Sequence[AgentState]) -> DeviceCounts:
    """Counts the devices of the agents that offer one of the requested slots. Cores and memory are not counted."""
    attribute_names = sorted(
        {attribute_name for condition in device_request.conditions for attribute_name in attribute_names_of(condition)}
    )
    counts = DeviceCounts(
        0, [0] * len(device_request.conditions), 0, 0, 0, {attribute_name: set() for attribute_name in attribute_names}
    )
    ranks_of_class: dict[NodeClass, list[tuple[str, list[int]]]] = {}
    agents_of_class: dict[NodeClass, int] = {}
    for agent in agents:
        agents_of_class[agent.node_class] = agents_of_class.get(agent.node_class, 0) + 1
    for node_class, agent_count in agents_of_class.items():
        ranks_of_class[node_class] = _count_class(device_request, slots, node_class, agent_count, counts)
    for agent in agents:
        free_count = 0
        for slot, ranks in ranks_of_class[agent.node_class]:
            pool = agent.pools[slot]
            if ranks and len(pool.free) <= max(ranks):
                counts.free = None
                return counts
            free_count += sum(pool.free[rank] > 0 for rank in ranks)
        counts.free = (counts.free or 0) + free_count
        counts.most_free = max(counts.most_free, free_count)
    return counts


def _count_class(
    device_request: DeviceRequest, slots: ResourceSlot, node_class: NodeClass, agent_count: int, counts: DeviceCounts
) -> list[tuple[str, list[int]]]:
    """Adds the devices of all agents of a class (equal devices) to the counts.

    Returns the ranks of the selected devices by slot.
    """
    selected_ranks: list[tuple[str, list[int]]] = []
    for plugin in node_class.plugins:
        slot = _requested_slot(plugin, slots)
        if slot is None:
            continue
        ranks = []
        for rank, device in enumerate(plugin.devices):
            if all(device_slot.slot_name != slot for device_slot in device.slots):
                continue
            attributes = attributes_of(device)
            counts.total += agent_count
            for index, condition in enumerate(device_request.conditions):
                counts.having[index] += agent_count * (condition.value_for(attributes) is True)
            for attribute_name, values in counts.values.items():
                if len(values) <= _MAX_VALUES:
                    values.update(attributes.get(attribute_name, ()))
            if device_request.selects(attributes):
                counts.selected += agent_count
                ranks.append(rank)
        selected_ranks.append((slot, ranks))
    return selected_ranks


def _requested_slot(plugin: PluginDevices, slots: ResourceSlot) -> str | None:
    if plugin.name in HOST_PLUGINS:
        return None
    offered_slots = {slot.slot_name for device in plugin.devices for slot in device.slots}
    return next((slot for slot in sorted(slots.nonzero()) if slot in offered_slots), None)


def attribute_names_of(term: Term) -> tuple[str, ...]:
    """Returns the names of the attributes that a term of a device request uses."""
    if isinstance(term, Comparison | Has):
        return (term.name,)
    if isinstance(term, Not):
        return attribute_names_of(term.term)
    return tuple(name for subterm in term.terms for name in attribute_names_of(subterm))


def describe_counts(device_request: DeviceRequest, counts: DeviceCounts) -> str:
    """Formats the counts, such as ``3 of 12 devices have compute_capability >= 8.0, none of them is free``."""
    constraints = " && ".join(map(str, device_request.constraints))
    suffix = f" with {constraints}" if constraints else ""
    conditions_text = _describe_conditions(device_request, counts)
    if counts.free is None:
        return conditions_text + suffix
    if not counts.free:
        return f"{conditions_text}, none of them is free"
    verb = "is" if counts.free == 1 else "are"
    return f"{conditions_text}, {counts.free} of them {verb} free, at most {counts.most_free} on one node{suffix}"


def _describe_conditions(device_request: DeviceRequest, counts: DeviceCounts) -> str:
    verb = "has" if counts.selected == 1 else "have"
    condition_texts = [str(condition) for condition in device_request.conditions]
    if not device_request.wording:
        return f"{counts.total} device{'' if counts.total == 1 else 's'}"
    if len(condition_texts) < 2:
        condition_text = condition_texts[0] if condition_texts else str(device_request)
        return f"{counts.selected} of {counts.total} devices {verb} {condition_text}"
    count_texts = [
        f"{satisfying_count} {condition_text}"
        for condition_text, satisfying_count in zip(condition_texts, counts.having, strict=True)
    ]
    return f"of {counts.total} devices {join_first(count_texts, 6)}; {counts.selected} {verb} all of it"


def explain_unmatched(device_request: DeviceRequest, counts: DeviceCounts) -> str:
    """Explains a request that no device satisfies: how many satisfy each condition, and what there is instead."""
    texts = [f"no agent has a device with {device_request!s:.400}"]
    unmet_conditions = [
        condition
        for condition, satisfying_count in zip(device_request.conditions, counts.having, strict=True)
        if not satisfying_count
    ]
    if len(device_request.conditions) > 1:
        count_texts = [
            f"{satisfying_count} {condition}"
            for condition, satisfying_count in zip(device_request.conditions, counts.having, strict=True)
        ]
        texts.append(f"of {counts.total} devices there have {join_first(count_texts, 6)}")
    attribute_names = dict.fromkeys(
        attribute_name for condition in unmet_conditions for attribute_name in attribute_names_of(condition)
    )
    texts += [
        _describe_values(attribute_name, counts.values[attribute_name]) for attribute_name in list(attribute_names)[:4]
    ]
    return "; ".join(texts)


def _describe_values(name: str, values: set[Value]) -> str:
    if not values:
        return f"no device states {name}"
    value_texts = sort_values({_format_value(name, value) for value in values})
    return f"of {name} there {'is' if len(value_texts) == 1 else 'are'} {join_first(value_texts, _MAX_VALUES)}"


def _format_value(name: str, value: Value) -> str:
    if isinstance(value, str):
        return value
    if ATTRIBUTES.get(name) is AttributeKind.SIZE:
        return f"{(value / Decimal(2**30)).quantize(Decimal('0.1')).normalize():f}g"
    return format_quantity(value)
