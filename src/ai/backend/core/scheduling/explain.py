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
    ascending,
    features_of,
    missing,
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


def unsupported(request: ResourceSlot, agents: Sequence[AgentState]) -> str | None:
    """Explains why no agent has all slots of a request: a slot is unknown, or each agent lacks some slot."""
    existing, slots = sorted({slot for agent in agents for slot in agent.totals}), request.nonzero()
    for slot in slots:
        if slot not in existing:
            return f"no agent has the resource slot {slot}; there are {', '.join(existing)}"
    lacks_of_agents = [(sorted(slots.keys() - agent.totals.keys()), agent.agent_id) for agent in agents]
    if not all(missing_slots for missing_slots, _ in lacks_of_agents):
        return None
    lacks_of_agents.sort(key=lambda lack_and_agent: (len(lack_and_agent[0]), lack_and_agent[1]))
    details = join_first(
        [f"{agent_id} lacks {', '.join(missing_slots)}" for missing_slots, agent_id in lacks_of_agents], 3
    )
    return f"no agent has all of {', '.join(sorted(slots))}; {details}"


class DeviceSummary(msgspec.Struct, frozen=True):
    """Summarizes the properties of the devices of some slots: feature -> value -> where it is, what each kind of device
    states, and how each feature is compared."""

    stated: Mapping[FeatureKey, Mapping[str, Iterable[str]]]
    devices: Sequence[Mapping[FeatureKey, Sequence[str]]]
    features: Mapping[FeatureKey, VariantFeature]


def summarize_devices(slots: Collection[str], agents: Iterable[AgentState]) -> DeviceSummary:
    features: dict[FeatureKey, VariantFeature] = {}
    stated: dict[FeatureKey, dict[str, set[str]]] = {}
    stated_by_kind: dict[tuple[VariantProperty, ...], Mapping[FeatureKey, Sequence[str]]] = {}
    for agent in agents:
        for plugin in agent.view.plugins:
            features |= features_of(plugin.namespaces)
            offering_devices = (
                device
                for device in plugin.devices
                if any(device_slot.slot_name in slots for device_slot in device.slots)
            )
            for properties in {device.properties for device in offering_devices}:
                stated_by_kind.setdefault(properties, values_by_feature(properties))
                for variant_property in properties:
                    agent_ids = stated.setdefault(
                        (variant_property.namespace, variant_property.feature), {}
                    ).setdefault(variant_property.value, set())
                    agent_ids.add(f"{plugin.name} on {agent.agent_id}")
    return DeviceSummary(stated, list(stated_by_kind.values()), features)


def unmatched(requirements: Iterable[VariantProperty], summary: DeviceSummary) -> str:
    """Explains requirements that no device of the requested slots satisfies."""
    feature_keys, needs = missing(summary.devices, values_by_feature(requirements), summary.features)
    alternatives = "; ".join(_list_alternatives(key, summary.stated) for key in feature_keys)
    return f"no agent has a device with {needs}; {alternatives}"


def _list_alternatives(key: FeatureKey, stated: Mapping[FeatureKey, Mapping[str, Iterable[str]]]) -> str:
    """Lists values of a feature with their agents. Without values, lists the namespace's features or all namespaces."""
    if key in stated:
        values = [f"{value} ({join_first(sorted(stated[key][value]), 3)})" for value in ascending(stated[key])]
        return f"of {'::'.join(key)} there {'is' if len(values) == 1 else 'are'} {join_first(values, 8)}"
    features = sorted({feature for namespace, feature in stated if namespace == key[0]})
    if features:
        return f"{key[0]} has no such feature, but {join_first(features, 12)}"
    namespaces = sorted({namespace for namespace, _ in stated})
    return f"no requested slot is of the namespace {key[0]}; there are {join_first(namespaces, 12) or 'none'}"


def join_first(texts: Sequence[str], max_count: int, separator: str = ", ") -> str:
    """Joins the first texts, and appends the number of the texts that are left out."""
    hidden_count = len(texts) - max_count
    return separator.join(texts[:max_count]) + (f" and {hidden_count} more" if hidden_count > 0 else "")


def scattered(total: ResourceSlot, kernels: int, agents: Iterable[AgentState]) -> str:
    """Explains why a multi-node session waits although some of its kernels would fit."""
    free = sum((agent.available for agent in agents), ResourceSlot())
    idle = ResourceSlot({slot: free[slot] for slot in total.nonzero()})
    needs = f"needs {format_amounts(total)} for {kernels} kernels at once"
    return f"{needs}; free on all nodes together is {format_amounts(idle)}"


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


def withheld(
    request: ResourceSlot, agents: Iterable[AgentState], tolerated: Collection[str] = ()
) -> Iterator[tuple[ComputeDevice, WithheldDevice]]:
    """Yields the devices of requested slots that are not healthy, or have taints other than those ``tolerated``."""
    places = [(each, device) for each in agents for plugin in each.view.plugins for device in plugin.devices]
    for agent, device in places:
        if not any(request[slot.slot_name] for slot in device.slots):
            continue
        keys = sorted(prop.value for prop in device.variant_properties if prop.namespace == TAINT)
        is_healthy = device.health is DeviceHealth.HEALTHY
        if is_healthy and (ANY_TAINT in tolerated or set(keys) <= set(tolerated)):
            continue
        yield (
            device,
            WithheldDevice(
                agent_id=agent.agent_id,
                device_name=device.device_name,
                device_id=device.device_id,
                reason=", ".join(keys) if is_healthy else device.health_reason,
                is_tainted=is_healthy,
            ),
        )


def failed(request: ResourceSlot, agents: Iterable[AgentState], tolerated: Collection[str] = ()) -> str:
    """Lists the withheld and the tainted devices of agents that could serve the request with them.
    ``tolerated``: the keys of taints that the request tolerates."""
    lists: dict[str, list[str]] = {"are withheld": [], "are tainted": []}
    for _, each in withheld(request, agents, tolerated):
        reason = f" ({each.reason:.80})" if each.reason else ""
        devices = lists["are tainted" if each.is_tainted else "are withheld"]
        devices.append(f"{each.device_id} on {each.agent_id}{reason}")
    texts = [f"devices for it {verb}: {join_first(devices, 3)}" for verb, devices in lists.items() if devices]
    return "; ".join([f"needs {format_amounts(request)}", *texts])


def too_large(request: ResourceSlot, agents: Iterable[AgentState], refusal_text: str) -> str:
    """Explains why a request exceeds every empty agent. ``refusal_text`` is the refusal of one of them."""
    candidates = list(agents)
    for slot in sorted(request.nonzero()):
        best = max(candidates, key=lambda agent: (agent.offered[slot], agent.agent_id))
        if best.offered[slot] < request[slot]:
            most = (
                format_quantity(best.offered[slot]) if slot != "mem" else format_amount(slot, best.offered).split()[0]
            )
            return f"needs {format_amount(slot, request)} on one node; the largest node, {best.agent_id}, has {most}"
    return f"can never run here, not even on an empty node: {refusal_text}"
