"""Formats messages for the owners of waiting sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from ai.backend.common.devices import TAINT, ComputeDevice, DeviceHealth, VariantFeature, VariantProperty
from ai.backend.common.ids import AgentId
from ai.backend.common.slots import BinarySize, ResourceSlot, format_quantity
from ai.backend.core.allocation.variants import (
    ANY_TAINT,
    FeatureKey,
    describe_unmet,
    features_of,
    sort_values,
    values_by_feature,
)
from ai.backend.core.scheduling.index.agent_state import AgentState


def format_amount(slot: str, request: ResourceSlot) -> str:
    """Formats one slot of a request, such as ``4 cuda.device`` or ``2g mem``."""
    value = request[slot]
    is_size = slot == "mem" and value.is_finite() and value == value.to_integral_value() and value >= 0
    return f"{BinarySize(int(value)) if is_size else format_quantity(value)} {slot}"


def format_amounts(request: ResourceSlot) -> str:
    return ", ".join(format_amount(slot, request) for slot in sorted(request.nonzero())) or "nothing"


def explain_unsupported(request: ResourceSlot, agents: Sequence[AgentState]) -> str | None:
    """Explains why no agent has all slots of a request: a slot is unknown, or each agent lacks some slot."""
    existing_slots, requested_slots = sorted({slot for agent in agents for slot in agent.totals}), request.nonzero()
    for slot in requested_slots:
        if slot not in existing_slots:
            return f"no agent has the resource slot {slot}; there are {', '.join(existing_slots)}"
    missing_slots_of_agents = [
        (sorted(requested_slots.keys() - agent.totals.keys()), agent.agent_id) for agent in agents
    ]
    if not all(missing_slots for missing_slots, _ in missing_slots_of_agents):
        return None
    missing_slots_of_agents.sort(key=lambda lack_and_agent: (len(lack_and_agent[0]), lack_and_agent[1]))
    lacks_text = join_first(
        [f"{agent_id} lacks {', '.join(missing_slots)}" for missing_slots, agent_id in missing_slots_of_agents], 3
    )
    return f"no agent has all of {', '.join(sorted(requested_slots))}; {lacks_text}"


class DeviceSummary(msgspec.Struct, frozen=True):
    """Summarizes the variant properties that the devices of some slots state.

    ``stated``: feature -> value -> where it is. ``devices``: what each kind of device states. ``features``: how each
    feature is compared.
    """

    stated: Mapping[FeatureKey, Mapping[str, Iterable[str]]]
    devices: Sequence[Mapping[FeatureKey, Sequence[str]]]
    features: Mapping[FeatureKey, VariantFeature]


def summarize_devices(slots: Collection[str], agents: Iterable[AgentState]) -> DeviceSummary:
    features: dict[FeatureKey, VariantFeature] = {}
    agents_of_values: dict[FeatureKey, dict[str, set[str]]] = {}
    values_of_kinds: dict[tuple[VariantProperty, ...], Mapping[FeatureKey, Sequence[str]]] = {}
    for agent in agents:
        for plugin in agent.view.plugins:
            features |= features_of(plugin.namespaces)
            offering_devices = (
                device
                for device in plugin.devices
                if any(device_slot.slot_name in slots for device_slot in device.slots)
            )
            for properties in {device.properties for device in offering_devices}:
                values_of_kinds.setdefault(properties, values_by_feature(properties))
                for variant_property in properties:
                    agent_ids = agents_of_values.setdefault(
                        (variant_property.namespace, variant_property.feature), {}
                    ).setdefault(variant_property.value, set())
                    agent_ids.add(f"{plugin.name} on {agent.agent_id}")
    return DeviceSummary(agents_of_values, list(values_of_kinds.values()), features)


def explain_unmatched(requirements: Iterable[VariantProperty], summary: DeviceSummary) -> str:
    """Explains which requirements no device of the requested slots satisfies, and which values exist instead."""
    feature_keys, needs_text = describe_unmet(summary.devices, values_by_feature(requirements), summary.features)
    alternatives_text = "; ".join(_list_alternatives(key, summary.stated) for key in feature_keys)
    return f"no agent has a device with {needs_text}; {alternatives_text}"


def _list_alternatives(key: FeatureKey, agents_of_values: Mapping[FeatureKey, Mapping[str, Iterable[str]]]) -> str:
    """Lists values of a feature with their agents. Without values, lists the namespace's features or all namespaces."""
    if key in agents_of_values:
        value_texts = [
            f"{value} ({join_first(sorted(agents_of_values[key][value]), 3)})"
            for value in sort_values(agents_of_values[key])
        ]
        return f"of {'::'.join(key)} there {'is' if len(value_texts) == 1 else 'are'} {join_first(value_texts, 8)}"
    features = sorted({feature for namespace, feature in agents_of_values if namespace == key[0]})
    if features:
        return f"{key[0]} has no such feature, but {join_first(features, 12)}"
    namespaces = sorted({namespace for namespace, _ in agents_of_values})
    return f"no requested slot is of the namespace {key[0]}; there are {join_first(namespaces, 12) or 'none'}"


def join_first(texts: Sequence[str], max_count: int, separator: str = ", ") -> str:
    """Joins the first texts, and appends the number of the texts that are left out."""
    hidden_count = len(texts) - max_count
    return separator.join(texts[:max_count]) + (f" and {hidden_count} more" if hidden_count > 0 else "")


def explain_scattered(requested_slots: ResourceSlot, kernel_count: int, agents: Iterable[AgentState]) -> str:
    """Explains why a multi-node session waits although some of its kernels would fit."""
    free_slots = sum((agent.available for agent in agents), ResourceSlot())
    free_requested = ResourceSlot({slot: free_slots[slot] for slot in requested_slots.nonzero()})
    needs_text = f"needs {format_amounts(requested_slots)} for {kernel_count} kernels at once"
    return f"{needs_text}; free on all nodes together is {format_amounts(free_requested)}"


class WithheldDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a device that a request cannot have, even if the device is free.

    ``reason``: why, in the words of its agent: a failure, a cordon, or an operation that is under way; empty if it says
    nothing. Of a tainted one: the keys.
    """

    agent_id: AgentId
    device_name: str
    device_id: str
    reason: str
    is_tainted: bool = False


def withheld_devices(
    request: ResourceSlot, agents: Iterable[AgentState], tolerated: Collection[str] = ()
) -> Iterator[tuple[ComputeDevice, WithheldDevice]]:
    """Yields the devices of requested slots that are not healthy, or have taints other than those ``tolerated``."""
    agents_and_devices = [
        (agent_state, device)
        for agent_state in agents
        for plugin in agent_state.view.plugins
        for device in plugin.devices
    ]
    for agent, device in agents_and_devices:
        if not any(request[slot.slot_name] for slot in device.slots):
            continue
        taint_keys = sorted(prop.value for prop in device.variant_properties if prop.namespace == TAINT)
        is_healthy = device.health is DeviceHealth.HEALTHY
        if is_healthy and (ANY_TAINT in tolerated or set(taint_keys) <= set(tolerated)):
            continue
        yield (
            device,
            WithheldDevice(
                agent_id=agent.agent_id,
                device_name=device.device_name,
                device_id=device.device_id,
                reason=", ".join(taint_keys) if is_healthy else device.health_reason,
                is_tainted=is_healthy,
            ),
        )


def explain_withheld(request: ResourceSlot, agents: Iterable[AgentState], tolerated: Collection[str] = ()) -> str:
    """Lists the withheld and the tainted devices with which agents could serve the request.

    ``tolerated``: the keys of taints that the request tolerates.
    """
    texts_of_verb: dict[str, list[str]] = {"are withheld": [], "are tainted": []}
    for _, withheld_device in withheld_devices(request, agents, tolerated):
        reason_text = f" ({withheld_device.reason:.80})" if withheld_device.reason else ""
        device_texts = texts_of_verb["are tainted" if withheld_device.is_tainted else "are withheld"]
        device_texts.append(f"{withheld_device.device_id} on {withheld_device.agent_id}{reason_text}")
    sentences = [
        f"devices for it {verb}: {join_first(device_texts, 3)}"
        for verb, device_texts in texts_of_verb.items()
        if device_texts
    ]
    return "; ".join([f"needs {format_amounts(request)}", *sentences])


def explain_too_large(request: ResourceSlot, agents: Iterable[AgentState], refusal_text: str) -> str:
    """Explains why no agent can hold a request, not even an empty agent.

    ``refusal_text`` is the refusal of one of the agents.
    """
    agent_list = list(agents)
    for slot in sorted(request.nonzero()):
        largest_agent = max(agent_list, key=lambda agent: (agent.offered[slot], agent.agent_id))
        if largest_agent.offered[slot] < request[slot]:
            most_text = (
                format_quantity(largest_agent.offered[slot])
                if slot != "mem"
                else format_amount(slot, largest_agent.offered).split()[0]
            )
            agent_text = f"the largest node, {largest_agent.agent_id}, has {most_text}"
            return f"needs {format_amount(slot, request)} on one node; {agent_text}"
    return f"can never run here, not even on an empty node: {refusal_text}"
