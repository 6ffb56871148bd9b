"""What agents can do beyond slots and images, and what sessions need of it: runtime classes, networks of sessions.

A feature is a word; an agent serves a session if it has all words that the session needs. Source: spec 03-19, 10.3
(runtime classes). Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceAllocation, DeviceSlot, VariantNamespace
from ai.backend.common.errors import InvalidInput, UnsupportedResource
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClusterMode, Enforcement, SlotType
from ai.backend.common.wire.reports import PluginReport, RuntimeClassReport
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.manager.agents.model import Agent

NETWORKS = "session-networks"
MULTI_NODE = "multi-node-networks"
ENCRYPTED = "encrypted-networks"
ENCRYPTION = "encrypted_network"
"""The resource option of a session whose network must be encrypted between agents."""
_SHOWN = 3
_LONGEST = 200
"""Characters of a reason: agents write them, and users read them."""


def is_encrypted(resource_opts: Mapping[str, str]) -> bool:
    return resource_opts.get(ENCRYPTION) == "true"


def class_feature(name: str) -> str:
    return f"runtime class {name}"


def needs_of(
    cluster_size: int, cluster_mode: ClusterMode, runtime_class: str, *, encrypted: bool = False
) -> frozenset[str]:
    """Of the agents of a session."""
    found = {class_feature(runtime_class)} if runtime_class else set()
    if cluster_size > 1:
        found.add(NETWORKS if cluster_mode is ClusterMode.SINGLE_NODE else ENCRYPTED if encrypted else MULTI_NODE)
    return frozenset(found)


def features_of(agent: Agent) -> frozenset[str]:
    """An agent that does not speak of networks is believed to have those of one node, as it refuses by itself, and none
    over several nodes, as the others could not find it."""
    found = {class_feature(one.name) for one in agent.runtime_classes}
    if agent.enforcement.get(NETWORKS) != Enforcement.NONE.value:
        found.add(NETWORKS)
    if agent.overlay is not None and not agent.overlay.why_not:
        found |= {MULTI_NODE} if agent.overlay.why_plain else {MULTI_NODE, ENCRYPTED}
    return frozenset(found)


def with_networks(agents: Sequence[Agent], resource_group: str, needs: frozenset[str]) -> list[Agent]:
    """Those that can give the kernels of a session the network that it needs.

    Raises:
        UnsupportedResource: none can, with the reasons of the first three.
    """
    needs &= {NETWORKS, MULTI_NODE, ENCRYPTED}
    found = [agent for agent in agents if needs <= features_of(agent)]
    if not agents or found:
        return found
    if NETWORKS in needs:
        raise UnsupportedResource(
            f"No agent of {resource_group} can give the kernels of a session a private network: in the process runtime "
            "that takes root and bubblewrap. Ask for one kernel, or for agents with the Docker runtime.",
            data={"clusterSize": "not possible here", "feature": NETWORKS},
        )
    reasons = {agent.id: _why_not(agent)[:_LONGEST] for agent in agents[:_SHOWN]}
    shown = "; ".join(f"{agent_id}: {reason}" for agent_id, reason in reasons.items())
    more = f" (and {len(agents) - _SHOWN} more)" if len(agents) > _SHOWN else ""
    what, field = ("an encrypted", "config.resource_opts") if ENCRYPTED in needs else ("a", "clusterMode")
    raise UnsupportedResource(
        f"No agent of {resource_group} can take part in {what} network over several nodes: {shown}{more}.",
        data={field: "not possible here", "feature": min(needs), "agents": reasons},
    )


def _why_not(agent: Agent) -> str:
    if agent.overlay is None:
        return "it does not say where other agents reach it"
    return agent.overlay.why_not or agent.overlay.why_plain


log = logging.getLogger(__name__)


_READ_LIMIT = 4096


def to_allocation(devices: Mapping[str, Mapping[str, str]]) -> DeviceAllocation:
    """The devices of a kernel as numbers."""
    return DeviceAllocation(
        slots={SlotName(s): {DeviceId(d): Decimal(q) for d, q in per.items()} for s, per in devices.items()}
    )


def from_allocation(allocation: DeviceAllocation) -> dict[str, dict[str, str]]:
    return {s: {d: format(q, "f") for d, q in per.items()} for s, per in allocation.slots.items()}


def _read(agent: Agent) -> tuple[PluginDevices, ...]:
    by_name: dict[DeviceName, list[ComputeDevice]] = {}
    for raw in agent.devices:
        try:
            device = msgspec.convert(raw, ComputeDevice, strict=False)
        except msgspec.ValidationError as e:
            log.warning("agent %s reports a device that cannot be read: %s", agent.id, e)
            continue
        by_name.setdefault(device.device_name, []).append(device)
    reports = {p.name: p for p in agent.plugins}
    found = [_described(agent, name, tuple(devices), reports.get(name)) for name, devices in by_name.items()]
    covered = {slot.slot_name for devices in by_name.values() for d in devices for slot in d.slots}
    for name, amount in agent.available_slots.items():
        if name not in covered:
            quantum = Decimal(1) if amount == amount.to_integral_value() else Decimal("0.01")
            slot = DeviceSlot(slot_name=SlotName(name), slot_type=SlotType.COUNT, amount=amount, quantum=quantum)
            device = ComputeDevice(
                device_name=DeviceName(name), device_id=DeviceId("pool"), hw_location="", slots=(slot,)
            )
            found.append(PluginDevices(name=DeviceName(name), devices=(device,), alloc_map=None))
    return tuple(found)


def _described(
    agent: Agent, name: DeviceName, devices: tuple[ComputeDevice, ...], plugin: PluginReport | None
) -> PluginDevices:
    """With the alloc map and the namespaces of the plugin's report: without a map where it cannot be read, so that the
    agent chooses the devices; without namespaces where these cannot be, so that values are compared exactly."""
    if plugin is None:
        return PluginDevices(name=name, devices=devices, alloc_map=None)
    spec: AllocMapSpec | None = None
    namespaces: tuple[VariantNamespace, ...] = ()
    try:
        spec = msgspec.convert(plugin.alloc_map, AllocMapSpec | None)
        namespaces = msgspec.convert(plugin.variant_namespaces, tuple[VariantNamespace, ...])
    except msgspec.ValidationError as e:
        log.warning("agent %s describes its plugin %s in a way that cannot be read: %s", agent.id, plugin.name, e)
    return PluginDevices(name=name, devices=devices, alloc_map=spec, namespaces=namespaces)


_FIELD = "runtimeClass"


_INTRINSIC = frozenset({"cpu", "mem"})


def with_class(
    agents: Sequence[Agent],
    name: str,
    requests: Iterable[ResourceSlot],
    resource_group: str,
    devices: DeviceReader,
) -> tuple[list[Agent], ResourceSlot]:
    """The agents whose class of this name takes all of these kernels, and the most that it costs on one of them.

    Raises:
        UnsupportedResource: no agent has the class.
        InvalidInput: it is there, and does not take such a request; the reason is that of one of the agents.
    """
    having = [(agent, one) for agent in agents for one in agent.runtime_classes if one.name == name]
    if not having:
        there_are = sorted({one.name for agent in agents for one in agent.runtime_classes})
        raise UnsupportedResource(
            f"No agent of {resource_group} has the runtime class {name[:64]!r}; "
            f"there {'are ' + ', '.join(there_are) if there_are else 'is none'}.",
            data={_FIELD: "unknown", "available": there_are},
        )
    asked = list(requests)
    refusals = [
        next((why for slots in asked if (why := _refusal(agent, one, slots, devices))), "") for agent, one in having
    ]
    taking = [pair for pair, why in zip(having, refusals, strict=True) if not why]
    if not taking:
        raise InvalidInput(f"The runtime class {name} does not take this: {refusals[0]}.", data={_FIELD: "too much"})
    costs = [ResourceSlot.parse(dict(one.overhead)) for _, one in taking]
    slots = {slot for cost in costs for slot in cost}
    return [agent for agent, _ in taking], ResourceSlot({s: max(cost[s] for cost in costs) for s in slots}).nonzero()


def _refusal(agent: Agent, one: RuntimeClassReport, slots: ResourceSlot, reader: DeviceReader) -> str:
    """Why a kernel with these slots cannot be of the class on this agent; empty if it can."""
    wanted = {slot: amount for slot, amount in slots.nonzero().items() if slot not in _INTRINSIC}
    if not wanted or (one.max_devices is None and not one.whole_devices):
        return ""
    sizes = _device_sizes(agent, reader)
    devices = Decimal(0)
    for slot, amount in wanted.items():
        size = max(sizes.get(slot, {Decimal(1)}))
        share = amount / size
        if one.whole_devices and share != share.to_integral_value():
            return f"it takes whole devices only, and {amount} of {slot} is a part of one"
        devices += share
    if one.max_devices is not None and devices > one.max_devices:
        few = f"{one.max_devices} device" + ("s" if one.max_devices != 1 else "")
        return f"it takes {few} at most, and {', '.join(f'{a} of {s}' for s, a in wanted.items())} is more"
    return ""


def _device_sizes(agent: Agent, reader: DeviceReader) -> dict[str, set[Decimal]]:
    """Slot -> how much of it whole devices have."""
    sizes: dict[str, set[Decimal]] = {}
    for plugin in reader.plugins_of(agent):
        for device in plugin.devices:
            for slot in device.slots:
                sizes.setdefault(slot.slot_name, set()).add(slot.amount)
    return sizes


class DeviceReader:
    """Reads the devices of agents and remembers them until an agent reports other ones.

    Reading costs milliseconds for an agent, and every decision needs it.
    """

    def __init__(self) -> None:
        self._devices: dict[AgentId, tuple[object, tuple[PluginDevices, ...]]] = {}

    def plugins_of(self, agent: Agent) -> tuple[PluginDevices, ...]:
        """Return the devices of an agent by plugin. A slot that no device offers becomes a pool of which only sums
        are known."""
        reported = agent.devices, agent.plugins, agent.available_slots
        cached = self._devices.get(agent.id)
        if cached is not None and cached[0] == reported:
            return cached[1]
        plugins = _read(agent)
        if len(self._devices) >= _READ_LIMIT:
            self._devices.clear()
        self._devices[agent.id] = reported, plugins
        return plugins
