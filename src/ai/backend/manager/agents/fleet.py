"""Returns all agents in one compact reply for maps of the fleet, with rows of short values instead of objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from ai.backend.common.devices import DeviceHealth
from ai.backend.common.errors import InvalidQuantity
from ai.backend.common.slots import ResourceSlot
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.agents.model import Agent, KernelOccupancy, counted_ids
from ai.backend.manager.agents.store import AgentStore, Occupancy

KEEP_S = 2.0
"""Seconds for which one reply is served again, so that many viewers of the fleet cost one read of the store."""
COLUMNS = (
    *("id", "status", "schedulable", "resource_group", "location", "hardware", "available", "occupied", "kernels"),
    "devices",
)
_INTRINSIC = frozenset({"cpu", "mem"})
_FREE_LETTER, _FULL_LETTER, _FAILED_LETTER = "0", "f", "x"


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """Represents all agents in a compact form, one row of values for each agent; ``columns`` names the values.

    Attributes:
        slots: the names of the amounts in ``available`` and ``occupied``.
        statuses, resource_groups, locations, hardware: what the numbers in rows stand for. A location is a path, the
            widest place first; hardware lists the accelerators, as ``8 cuda:H100``.
        agents: rows. ``schedulable`` is 0 or 1; ``available`` and ``occupied`` are amounts by slot, null for a slot
            that the agent lacks; ``kernels`` how many it holds; ``devices`` a letter for each accelerator in the order
            of plugin and id: ``0`` free, ``1`` to ``9`` tenths in use, ``f`` full, ``x`` failed.
    """

    columns: list[str]
    slots: list[str]
    statuses: list[str]
    resource_groups: list[str]
    locations: list[list[str]]
    hardware: list[str]
    agents: list[tuple[Any, ...]]


class _WordNumbers:
    """Numbers the words of a fleet view, from 0 on, so that rows contain numbers in place of repeated words.

    Numbers are assigned in the order in which the words appear.
    """

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, word: Any) -> int:
        return self.numbers.setdefault(word, len(self.numbers))


def _json_number(amount: Decimal) -> int | float:
    return int(amount) if amount == amount.to_integral_value() else float(amount)


def _accelerators(agent: Agent) -> list[Mapping[str, Any]]:
    devices = (device for device in agent.devices if device.get("device_name") not in _INTRINSIC)
    return sorted(devices, key=lambda device: (str(device.get("device_name")), str(device.get("device_id"))))


def _hardware_of(devices: Sequence[Mapping[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for device in devices:
        name = ":".join(filter(None, (str(device.get("device_name")), device.get("model_name"))))
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _state_letter(device: Mapping[str, Any], held_amounts: Mapping[tuple[str, str], Decimal]) -> str:
    """Returns the character of a device in the fleet view: failed, free, tenths in use, or full.

    The most used slot of the device counts.
    """
    if device.get("health", DeviceHealth.HEALTHY.value) != DeviceHealth.HEALTHY.value:
        return _FAILED_LETTER
    used_share = Decimal(0)
    for slot in device.get("slots", ()):
        try:
            amount = ResourceSlot.parse({"slot": str(slot["amount"])})["slot"]
        except (KeyError, TypeError, InvalidQuantity):
            continue
        if amount > 0:
            slot_name = str(slot.get("slot_name"))
            held_amount = sum(
                (held_amounts.get((slot_name, counted_id), Decimal(0)) for counted_id in counted_ids(device)),
                Decimal(0),
            )
            used_share = max(used_share, held_amount / amount)
    if used_share >= 1:
        return _FULL_LETTER
    return _FREE_LETTER if used_share <= 0 else str(min(9, max(1, round(used_share * 10))))


def fleet_view(agents: Sequence[Agent], holdings: Iterable[KernelOccupancy]) -> FleetView:
    """Returns the compact form of agents and of the slots and devices that kernels hold on them."""
    holdings_of_agent: dict[str, list[KernelOccupancy]] = {}
    for holding in holdings:
        holdings_of_agent.setdefault(holding.agent, []).append(holding)
    slots = sorted({slot for agent in agents for slot in agent.available_slots})
    statuses, groups, locations, hardware = _WordNumbers(), _WordNumbers(), _WordNumbers(), _WordNumbers()
    rows: list[tuple[Any, ...]] = []
    for agent in sorted(agents, key=lambda agent: agent.id):
        held_amounts: dict[tuple[str, str], Decimal] = {}
        for holding in holdings_of_agent.get(agent.id, ()):
            for slot, amount_of_device in holding.devices.items():
                for device_id, amount in amount_of_device.items():
                    held_amounts[slot, device_id] = held_amounts.get((slot, device_id), Decimal(0)) + Decimal(amount)
        devices = _accelerators(agent)
        offered_slots = set(agent.available_slots)
        available_amounts, occupied_amounts = (
            [_json_number(amounts[slot]) if slot in offered_slots else None for slot in slots]
            for amounts in (agent.available_slots, agent.occupied_slots)
        )
        rows.append(
            (
                str(agent.id),
                statuses.number(agent.status.value),
                int(agent.schedulable),
                groups.number(str(agent.scaling_group)),
                locations.number(agent.location),
                hardware.number(_hardware_of(devices)),
                available_amounts,
                occupied_amounts,
                sum(not holding.is_claim for holding in holdings_of_agent.get(agent.id, ())),
                "".join(_state_letter(device, held_amounts) for device in devices),
            )
        )
    return FleetView(
        columns=list(COLUMNS),
        slots=slots,
        statuses=list(statuses.numbers),
        resource_groups=list(groups.numbers),
        locations=[list(location) for location in locations.numbers],
        hardware=list(hardware.numbers),
        agents=rows,
    )


class EncodedFleet(msgspec.Struct, frozen=True):
    """Holds the fleet as JSON, and a tag that is equal for equal contents."""

    body: bytes
    etag: str


class FleetService:
    """Encodes the fleet as JSON, at most once in :data:`KEEP_S` seconds."""

    def __init__(self, agents: AgentStore, occupancy: Occupancy, clock: Clock) -> None:
        self._agents = agents
        self._occupancy = occupancy
        self._clock = clock
        self._kept: tuple[float, EncodedFleet] | None = None

    async def fleet(self, caller: Caller) -> EncodedFleet:
        """Returns all agents as encoded JSON, which may be :data:`KEEP_S` seconds old. Raises Forbidden unless the
        caller may see agents.
        """
        require(caller, Operation.SEE_AGENTS)
        if self._kept is not None and self._clock.monotonic() - self._kept[0] < KEEP_S:
            return self._kept[1]
        agents = await self._agents.agents()
        holdings = await self._occupancy.held([agent.id for agent in agents])
        body = msgspec.json.encode(fleet_view(agents, holdings))
        digest = hashlib.blake2b(body, digest_size=12).hexdigest()
        encoded_fleet = EncodedFleet(body, f'"{digest}"')
        self._kept = self._clock.monotonic(), encoded_fleet
        return encoded_fleet
