"""Which agents take a session of a runtime class, and what it costs there. Source: spec 03-19, 10.3. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

from ai.backend.common.errors import InvalidInput, UnsupportedResource
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.wire.reports import RuntimeClassReport
from ai.backend.manager.model.cluster import Agent
from ai.backend.manager.services.snapshots import DeviceReader

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
