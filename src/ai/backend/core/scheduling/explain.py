"""Messages for the owners of waiting sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ai.backend.common.devices import DeviceHealth, VariantFeature, VariantProperty
from ai.backend.common.slots import BinarySize, ResourceSlot, format_quantity
from ai.backend.core.allocation.variants import Key, ascending, by_feature, features_of, missing
from ai.backend.core.scheduling.index.agent_state import AgentState


def amount(slot: str, request: ResourceSlot) -> str:
    """Formats one slot of a request, such as ``4 cuda.device`` or ``2g mem``."""
    value = request[slot]
    is_size = slot == "mem" and value.is_finite() and value == value.to_integral_value() and value >= 0
    return f"{BinarySize(int(value)) if is_size else format_quantity(value)} {slot}"


def amounts(request: ResourceSlot) -> str:
    return ", ".join(amount(slot, request) for slot in sorted(request.nonzero())) or "nothing"


def unsupported(request: ResourceSlot, agents: Sequence[AgentState]) -> str | None:
    """Explains why no agent has all slots of a request: the unknown slot, or what each agent lacks."""
    existing, slots = sorted({slot for agent in agents for slot in agent.totals}), request.nonzero()
    for slot in slots:
        if slot not in existing:
            return f"no agent has the resource slot {slot}; there are {', '.join(existing)}"
    lacks = [(sorted(slots.keys() - agent.totals.keys()), agent.agent_id) for agent in agents]
    if not all(lack for lack, _ in lacks):
        return None
    lacks.sort(key=lambda item: (len(item[0]), item[1]))
    details = some([f"{agent_id} lacks {', '.join(lack)}" for lack, agent_id in lacks], 3)
    return f"no agent has all of {', '.join(sorted(slots))}; {details}"


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """Summarizes the properties of the devices of some slots: feature -> value -> where it is, what each kind of device
    states, and how each feature is compared."""

    stated: Mapping[Key, Mapping[str, Iterable[str]]]
    devices: Sequence[Mapping[Key, Sequence[str]]]
    features: Mapping[Key, VariantFeature]


def summarize_devices(slots: Collection[str], agents: Iterable[AgentState]) -> DeviceSummary:
    features: dict[Key, VariantFeature] = {}
    stated: dict[Key, dict[str, set[str]]] = {}
    kinds: dict[tuple[VariantProperty, ...], Mapping[Key, Sequence[str]]] = {}
    for agent in agents:
        for plugin in agent.view.plugins:
            features |= features_of(plugin.namespaces)
            offering = (d for d in plugin.devices if any(s.slot_name in slots for s in d.slots))
            for properties in {d.properties for d in offering}:
                kinds.setdefault(properties, by_feature(properties))
                for p in properties:
                    places = stated.setdefault((p.namespace, p.feature), {}).setdefault(p.value, set())
                    places.add(f"{plugin.name} on {agent.agent_id}")
    return DeviceSummary(stated, list(kinds.values()), features)


def unmatched(requirements: Iterable[VariantProperty], summary: DeviceSummary) -> str:
    """Explains requirements that no device of the requested slots satisfies."""
    named, needs = missing(summary.devices, by_feature(requirements), summary.features)
    return f"no agent has a device with {needs}; {'; '.join(_instead(key, summary.stated) for key in named)}"


def _instead(key: Key, stated: Mapping[Key, Mapping[str, Iterable[str]]]) -> str:
    """Lists the values of a feature with their agents; else the features of its namespace; else the namespaces."""
    if key in stated:
        values = [f"{v} ({some(sorted(stated[key][v]), 3)})" for v in ascending(stated[key])]
        return f"of {'::'.join(key)} there {'is' if len(values) == 1 else 'are'} {some(values, 8)}"
    features = sorted({feature for namespace, feature in stated if namespace == key[0]})
    if features:
        return f"{key[0]} has no such feature, but {some(features, 12)}"
    namespaces = sorted({namespace for namespace, _ in stated})
    return f"no requested slot is of the namespace {key[0]}; there are {some(namespaces, 12) or 'none'}"


def some(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """Joins the first texts and counts the others."""
    more = len(texts) - most
    return between.join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def scattered(total: ResourceSlot, kernels: int, agents: Iterable[AgentState]) -> str:
    """Explains why a multi-node session waits although some of its kernels would fit."""
    free = sum((a.available for a in agents), ResourceSlot())
    usable = ResourceSlot({slot: free[slot] for slot in total.nonzero()})
    return f"needs {amounts(total)} for {kernels} kernels at once; free on all nodes together is {amounts(usable)}"


def failed(request: ResourceSlot, agents: Iterable[AgentState]) -> str:
    """Lists the failed devices of agents that could serve the request if all devices were healthy."""
    sick = [
        f"{device.device_id} on {agent.agent_id}" + (f" ({device.health_reason:.80})" if device.health_reason else "")
        for agent in agents
        for plugin in agent.view.plugins
        for device in plugin.devices
        if device.health is not DeviceHealth.HEALTHY and any(request[slot.slot_name] for slot in device.slots)
    ]
    return f"needs {amounts(request)}; devices for it have failed: {some(sick, 3)}"


def too_large(request: ResourceSlot, agents: Iterable[AgentState], why: str) -> str:
    """Explains why a request exceeds every empty agent. ``why`` is the refusal of one of them."""
    candidates = list(agents)
    for slot in sorted(request.nonzero()):
        best = max(candidates, key=lambda a: (a.offered[slot], a.agent_id))
        if best.offered[slot] < request[slot]:
            most = format_quantity(best.offered[slot]) if slot != "mem" else amount(slot, best.offered).split()[0]
            return f"needs {amount(slot, request)} on one node; the largest node, {best.agent_id}, has {most}"
    return f"can never run here, not even on an empty node: {why}"
