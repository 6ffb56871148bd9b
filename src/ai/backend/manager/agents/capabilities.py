"""Matches the runtime classes, networks and devices of agents with what sessions need (spec 03-19, 10.3). Pure.

A feature is a name; an agent serves a session if it has all features that the session needs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceAllocation, DeviceSlot, VariantNamespace
from ai.backend.common.errors import InvalidInput, InvalidQuantity, UnsupportedResource
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, SlotName
from ai.backend.common.slots import ResourceSlot, parse_quantity
from ai.backend.common.states import ClusterMode, Enforcement, SlotType
from ai.backend.common.wire.reports import PluginReport, RuntimeClassReport
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.manager.agents.model import Agent

NETWORKS = "session-networks"
MULTI_NODE = "multi-node-networks"
ENCRYPTED = "encrypted-networks"
ENCRYPTION = "encrypted_network"
"""The resource option of a session whose network must be encrypted between agents."""
_MAX_SHOWN_REASONS = 3
_MAX_REASON_LENGTH = 200
"""The maximum number of characters of a reason, as agents write reasons and users read them."""
_CACHED_AGENTS_LIMIT = 4096
_RUNTIME_CLASS_FIELD = "runtimeClass"
_INTRINSIC_SLOTS = frozenset({"cpu", "mem"})

log = logging.getLogger(__name__)


def is_encrypted(resource_opts: Mapping[str, str]) -> bool:
    return resource_opts.get(ENCRYPTION) == "true"


def class_feature(name: str) -> str:
    return f"runtime class {name}"


def folders_feature(runtime_class: str) -> str:
    return f"folders in the runtime class {runtime_class}"


def options_feature(plugin_name: str) -> str:
    return f"options of {plugin_name}"


def needs_of(
    cluster_size: int,
    cluster_mode: ClusterMode,
    runtime_class: str,
    *,
    is_encrypted_network: bool = False,
    optioned_plugins: Iterable[str] = (),
    has_folders: bool = False,
) -> frozenset[str]:
    """Returns the features that an agent must have to run a session with the given cluster and runtime class.

    The session gives options to ``optioned_plugins``.
    """
    needed_features = {class_feature(runtime_class)} if runtime_class else set()
    if runtime_class and has_folders:
        needed_features.add(folders_feature(runtime_class))
    needed_features.update(map(options_feature, optioned_plugins))
    if cluster_size > 1:
        needed_features.add(
            NETWORKS if cluster_mode is ClusterMode.SINGLE_NODE else ENCRYPTED if is_encrypted_network else MULTI_NODE
        )
    return frozenset(needed_features)


def features_of(agent: Agent) -> frozenset[str]:
    """Returns the features that an agent offers to sessions, from its reported runtime classes, plugins and networks.

    An agent without a report about networks counts as able to make local networks.
    """
    features = {class_feature(runtime_class.name) for runtime_class in agent.runtime_classes}
    features |= {folders_feature(class_report.name) for class_report in agent.runtime_classes if class_report.folders}
    features |= {options_feature(plugin.name) for plugin in agent.plugins if plugin.options_schema is not None}
    if agent.enforcement.get(NETWORKS) != Enforcement.NONE.value:
        features.add(NETWORKS)
    if agent.overlay is not None and not agent.overlay.why_not:
        features |= {MULTI_NODE} if agent.overlay.why_plain else {MULTI_NODE, ENCRYPTED}
    return frozenset(features)


def agents_with_networks(agents: Sequence[Agent], resource_group: str, needs: frozenset[str]) -> list[Agent]:
    """Returns the agents that can provide the network that a session needs.

    Raises UnsupportedResource with the reasons of the first three agents if no agent can.
    """
    needs &= {NETWORKS, MULTI_NODE, ENCRYPTED}
    able_agents = [agent for agent in agents if needs <= features_of(agent)]
    if not agents or able_agents:
        return able_agents
    if NETWORKS in needs:
        raise UnsupportedResource(
            f"No agent of {resource_group} can give the kernels of a session a private network: in the process runtime "
            "that takes root and bubblewrap, in Kubernetes a network plug-in that enforces network policies. Ask for "
            "one kernel, or for agents with the Docker runtime.",
            data={"clusterSize": "not possible here", "feature": NETWORKS},
        )
    reason_of_agent = {agent.id: _overlay_problem(agent)[:_MAX_REASON_LENGTH] for agent in agents[:_MAX_SHOWN_REASONS]}
    shown_reasons = "; ".join(f"{agent_id}: {reason}" for agent_id, reason in reason_of_agent.items())
    omission = f" (and {len(agents) - _MAX_SHOWN_REASONS} more)" if len(agents) > _MAX_SHOWN_REASONS else ""
    network_article, request_field = (
        ("an encrypted", "config.resource_opts") if ENCRYPTED in needs else ("a", "clusterMode")
    )
    raise UnsupportedResource(
        f"No agent of {resource_group} can take part in {network_article} network over several nodes: "
        f"{shown_reasons}{omission}.",
        data={request_field: "not possible here", "feature": min(needs), "agents": reason_of_agent},
    )


def _overlay_problem(agent: Agent) -> str:
    if agent.overlay is None:
        return "it does not report an address for other agents"
    return agent.overlay.why_not or agent.overlay.why_plain


def to_allocation(devices: Mapping[str, Mapping[str, str]]) -> DeviceAllocation:
    """Parses the stored devices of a kernel."""
    return DeviceAllocation(
        slots={
            SlotName(slot): {
                DeviceId(device_id): Decimal(quantity) for device_id, quantity in quantity_of_device.items()
            }
            for slot, quantity_of_device in devices.items()
        }
    )


def has_quantities(devices: Mapping[str, Mapping[str, str]]) -> bool:
    """Returns True if all amounts of devices that an agent reports for a kernel are finite quantities."""
    return all(
        _is_quantity(quantity) for quantity_of_device in devices.values() for quantity in quantity_of_device.values()
    )


def _is_quantity(value: str | Decimal) -> bool:
    try:
        return parse_quantity(value).is_finite()
    except InvalidQuantity:
        return False


def from_allocation(allocation: DeviceAllocation) -> dict[str, dict[str, str]]:
    """Formats an allocation for storage; the inverse of :func:`to_allocation`."""
    return {
        slot: {device_id: format(quantity, "f") for device_id, quantity in quantity_of_device.items()}
        for slot, quantity_of_device in allocation.slots.items()
    }


def _parse_devices(agent: Agent) -> tuple[PluginDevices, ...]:
    devices_by_name: dict[DeviceName, list[ComputeDevice]] = {}
    for raw_device in agent.devices:
        try:
            device = msgspec.convert(raw_device, ComputeDevice, strict=False)
        except msgspec.ValidationError as e:
            log.warning("agent %s reports a device that cannot be read: %s", agent.id, e)
            continue
        if not all(_is_quantity(slot.amount) and _is_quantity(slot.quantum) and slot.quantum for slot in device.slots):
            log.warning("agent %s reports a device with an amount that cannot be counted with", agent.id)
            continue
        devices_by_name.setdefault(device.device_name, []).append(device)
    report_of_plugin = {report.name: report for report in agent.plugins}
    plugins = [
        _with_report(agent, name, tuple(devices), report_of_plugin.get(name))
        for name, devices in devices_by_name.items()
    ]
    covered_slots = {
        slot.slot_name for devices in devices_by_name.values() for device in devices for slot in device.slots
    }
    for name, amount in agent.available_slots.items():
        if name not in covered_slots:
            quantum = Decimal(1) if amount == amount.to_integral_value() else Decimal("0.01")
            slot = DeviceSlot(slot_name=SlotName(name), slot_type=SlotType.COUNT, amount=amount, quantum=quantum)
            device = ComputeDevice(
                device_name=DeviceName(name), device_id=DeviceId("pool"), hw_location="", slots=(slot,)
            )
            plugins.append(PluginDevices(name=DeviceName(name), devices=(device,), alloc_map=None))
    return tuple(plugins)


def _with_report(
    agent: Agent, name: DeviceName, devices: tuple[ComputeDevice, ...], plugin: PluginReport | None
) -> PluginDevices:
    """Adds the alloc map and the namespaces of a plugin's report to the plugin's devices.

    Without a readable alloc map the agent chooses the devices; without readable namespaces values are compared exactly.
    """
    if plugin is None:
        return PluginDevices(name=name, devices=devices, alloc_map=None)
    alloc_map_spec: AllocMapSpec | None = None
    namespaces: tuple[VariantNamespace, ...] = ()
    try:
        alloc_map_spec = msgspec.convert(plugin.alloc_map, AllocMapSpec | None)
        namespaces = msgspec.convert(plugin.variant_namespaces, tuple[VariantNamespace, ...])
    except msgspec.ValidationError as e:
        log.warning("agent %s describes its plugin %s in a way that cannot be read: %s", agent.id, plugin.name, e)
    return PluginDevices(name=name, devices=devices, alloc_map=alloc_map_spec, namespaces=namespaces)


def agents_with_class(
    agents: Sequence[Agent],
    name: str,
    requests: Iterable[ResourceSlot],
    resource_group: str,
    devices: DeviceReader,
    *,
    has_folders: bool = False,
    uses_host_network: bool = False,
) -> tuple[list[Agent], ResourceSlot]:
    """Returns the agents whose runtime class accepts all requests, and the largest overhead of these classes.

    ``has_folders``: the session mounts virtual folders. ``uses_host_network``: the resource group gives its sessions
    the network of their node.

    Raises UnsupportedResource if no agent has the class, InvalidInput if none accepts, with the first agent's reason.
    """
    candidates = [
        (agent, runtime_class)
        for agent in agents
        for runtime_class in agent.runtime_classes
        if runtime_class.name == name
    ]
    if not candidates:
        available_classes = sorted({runtime_class.name for agent in agents for runtime_class in agent.runtime_classes})
        raise UnsupportedResource(
            f"No agent of {resource_group} has the runtime class {name[:64]!r}; "
            f"there {'are ' + ', '.join(available_classes) if available_classes else 'is none'}.",
            data={_RUNTIME_CLASS_FIELD: "unknown", "available": available_classes},
        )
    requests = list(requests)
    refusals = [
        _unfit_reason(runtime_class, has_folders=has_folders, uses_host_network=uses_host_network)
        or next((reason for slots in requests if (reason := _refusal_reason(agent, runtime_class, slots, devices))), "")
        for agent, runtime_class in candidates
    ]
    accepting_agents = [candidate for candidate, reason in zip(candidates, refusals, strict=True) if not reason]
    if not accepting_agents:
        raise InvalidInput(
            f"The runtime class {name} does not take this: {refusals[0]}.", data={_RUNTIME_CLASS_FIELD: "too much"}
        )
    overheads = [ResourceSlot.parse(dict(runtime_class.overhead)) for _, runtime_class in accepting_agents]
    slots = {slot for overhead in overheads for slot in overhead}
    largest_overhead = ResourceSlot({slot: max(overhead[slot] for overhead in overheads) for slot in slots})
    return [agent for agent, _ in accepting_agents], largest_overhead.nonzero()


def _unfit_reason(runtime_class: RuntimeClassReport, *, has_folders: bool, uses_host_network: bool) -> str:
    """Returns why a runtime class cannot serve a session's folders or network, or an empty text if it can."""
    if has_folders and not runtime_class.folders:
        return (
            "it mounts no virtual folders there, as these are parts of volumes, and a virtual machine mounts whole ones"
        )
    if uses_host_network and not runtime_class.host_network:
        return "the resource group gives sessions the network of their node, which a virtual machine cannot share"
    return ""


def _refusal_reason(agent: Agent, runtime_class: RuntimeClassReport, slots: ResourceSlot, reader: DeviceReader) -> str:
    """Returns why an agent's runtime class rejects a kernel with these slots, or an empty text if it accepts."""
    requested_amounts = {slot: amount for slot, amount in slots.nonzero().items() if slot not in _INTRINSIC_SLOTS}
    if not requested_amounts or (runtime_class.max_devices is None and not runtime_class.whole_devices):
        return ""
    sizes_of_slot = _device_sizes(agent, reader)
    device_count = Decimal(0)
    for slot, amount in requested_amounts.items():
        device_size = max(sizes_of_slot.get(slot, {Decimal(1)}))
        device_share = amount / device_size
        if runtime_class.whole_devices and device_share != device_share.to_integral_value():
            return f"it takes whole devices only, and {amount} of {slot} is a part of one"
        device_count += device_share
    if runtime_class.max_devices is not None and device_count > runtime_class.max_devices:
        device_limit_text = f"{runtime_class.max_devices or 'no'} device" + (
            "s" if runtime_class.max_devices != 1 else ""
        )
        amounts = ", ".join(f"{amount} of {slot}" for slot, amount in requested_amounts.items())
        return f"it takes {device_limit_text} at most, and {amounts} is more"
    return ""


def _device_sizes(agent: Agent, reader: DeviceReader) -> dict[str, set[Decimal]]:
    sizes_of_slot: dict[str, set[Decimal]] = {}
    for plugin in reader.plugins_of(agent):
        for device in plugin.devices:
            for slot in device.slots:
                sizes_of_slot.setdefault(slot.slot_name, set()).add(slot.amount)
    return sizes_of_slot


class DeviceReader:
    """Parses the reported devices of agents, which takes milliseconds per agent, and caches them until a new report."""

    def __init__(self) -> None:
        self._devices: dict[AgentId, tuple[object, tuple[PluginDevices, ...]]] = {}

    def plugins_of(self, agent: Agent) -> tuple[PluginDevices, ...]:
        """Returns the devices of an agent by plugin. A slot that no device offers becomes a single pooled device."""
        reported_devices = agent.devices, agent.plugins, agent.available_slots
        cached_entry = self._devices.get(agent.id)
        if cached_entry is not None and cached_entry[0] == reported_devices:
            return cached_entry[1]
        plugins = _parse_devices(agent)
        if len(self._devices) >= _CACHED_AGENTS_LIMIT:
            self._devices.clear()
        self._devices[agent.id] = reported_devices, plugins
        return plugins
