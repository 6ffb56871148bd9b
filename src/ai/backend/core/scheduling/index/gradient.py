"""Chooses the agent whose free accelerators lose the least value for typical requests by a placement.

Agents with the same devices and the same free amounts lose the same, so what is compared are such *states*, of which
there are far fewer than agents: docs/decisions/0361-fragmentation-is-compared-by-states.md. To that comes the price of
devices that others name, see device_prices.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from decimal import Decimal
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import NamedTuple

from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.slot_pool import MICRO, SlotPool
from ai.backend.core.scheduling.index.agent_state import AgentState, NodeClass
from ai.backend.core.scheduling.index.device_prices import DevicePrices, NamedRequest
from ai.backend.core.scheduling.index.fragmentation import COMPANIONS, TypicalRequest, lost_units
from ai.backend.core.scheduling.index.part_values import PartValueCache, PartValues

_MAX_CACHED_LOSSES = 65_536
_MAX_ENDED_STATES = 128
"""The largest number of states without agents in the log, beside one for every 16 states with agents."""
_TIGHTNESS = 1e-3
"""The weight of a device's remaining free amount, which decides among parts of equal worth."""
Fingerprint = tuple[object, ...]


class FreeAccelerator(NamedTuple):
    """The free amount of one accelerator slot of an agent, in units of the slot.

    Attributes:
        units: the sum over its devices.
        whole: how many devices are free as a whole.
        largest: the size of the largest device, free or not, in quanta.
        quantum: of the slot.
        levels: the distinct free amounts of devices in quanta, ascending; empty where devices are taken as a whole.
        lost: the units that typical requests cannot use now.
        values: what free parts of a device are worth; None where only whole devices are requested.
    """

    units: float
    whole: int
    largest: int
    quantum: float
    levels: tuple[int, ...]
    lost: float
    values: PartValues | None


class FreeState:
    """Describes the free amounts that some agents with equal devices have in common.

    ``agent_mask``: these agents; 0 once there are none. ``group``: see :class:`DevicePrices`. ``number``: of its
    appearance, from 0. ``usable_micro``: of each accelerator slot what typical requests can use. ``units``: what is
    free of each accelerator slot.
    """

    __slots__ = (
        "accelerators",
        "agent_mask",
        "cores",
        "fingerprint",
        "group",
        "memory",
        "node_class",
        "number",
        "units",
        "usable_micro",
    )

    def __init__(
        self,
        node_class: NodeClass,
        fingerprint: Fingerprint,
        cores: float,
        memory: float,
        accelerators: Sequence[tuple[str, FreeAccelerator]],
        group: int = 0,
        usable_micro: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.node_class = node_class
        self.group = group
        self.usable_micro = usable_micro
        self.fingerprint = fingerprint
        self.cores = cores
        self.memory = memory
        self.accelerators = accelerators
        self.units = {slot: free_accelerator.units for slot, free_accelerator in accelerators}
        self.agent_mask = 0
        self.number = 0


class FreeStates:
    """Groups the agents of an index by their free amounts (:class:`FreeState`).

    ``log`` are the states in the order of their appearance, by ascending number. A state that no agent has any more is
    dropped from it at times, and is a new one when it comes again.
    """

    def __init__(
        self,
        agents: Sequence[AgentState],
        typical: Mapping[str, TypicalRequest],
        value_cache: PartValueCache,
        named_requests: Sequence[NamedRequest] = (),
    ) -> None:
        self.typical = typical
        self.prices = DevicePrices(named_requests, {slot: request.units for slot, request in typical.items()})
        self.log: list[FreeState] = []
        self._next_number = 0
        self._agents = agents
        self._class_numbers: dict[NodeClass, int] = {}
        self._states: dict[Fingerprint, FreeState] = {}
        self._value_cache = value_cache
        self._values: dict[tuple[str, int, Decimal], PartValues | None] = {}
        self._losses: dict[tuple[str, float, int, float, float], float] = {}
        self._state_of_rank = [self._add_to_state(rank) for rank in range(len(agents))]

    @property
    def present_states(self) -> list[FreeState]:
        """Returns the states that agents have now, in the order in which the states appeared."""
        return list(self._states.values())

    def update_agent(self, rank: int) -> None:
        """Updates the state of an agent."""
        old_state = self._state_of_rank[rank]
        old_state.agent_mask ^= 1 << rank
        if not old_state.agent_mask:
            del self._states[old_state.fingerprint]
        if old_state.usable_micro:
            self.prices.count_free(old_state.group, old_state.usable_micro, -1)
        self._state_of_rank[rank] = self._add_to_state(rank)

    def loss_of(self, slot: str, units: float, whole_count: int, cores: float, memory: float) -> float:
        """Returns :func:`lost_units`, cached: the state after one request is the state before the next one."""
        cache_key = slot, units, whole_count, cores, memory
        loss = self._losses.get(cache_key)
        if loss is None:
            if len(self._losses) >= _MAX_CACHED_LOSSES:
                self._losses.clear()
            free_of_companion = {"cpu": cores, "mem": memory}
            loss = self._losses[cache_key] = lost_units(self.typical[slot], units, whole_count, free_of_companion)
        return loss

    def _add_to_state(self, rank: int) -> FreeState:
        agent = self._agents[rank]
        class_number = self._class_numbers.setdefault(agent.node_class, len(self._class_numbers))
        pools, shared_slots = agent.pools, agent.node_class.shared
        fingerprint_parts: list[object] = [class_number]
        for name in (*COMPANIONS, *self.typical):
            pool = pools.get(name)
            fingerprint_parts.append(0 if pool is None else pool.total_free)
            if pool is not None and (name in shared_slots or (pool.largest > 1 and name not in COMPANIONS)):
                fingerprint_parts.append(tuple((level, pool.levels[level].bit_count()) for level in pool.free_levels))
        fingerprint = tuple(fingerprint_parts)
        state = self._states.get(fingerprint)
        if state is None:
            state = self._states[fingerprint] = self._new_state(agent, fingerprint)
            state.number = self._next_number
            self._next_number += 1
            self.log.append(state)
            if len(self.log) - len(self._states) > _MAX_ENDED_STATES + len(self._states) // 16:
                self.log = self.present_states
        state.agent_mask |= 1 << rank
        if state.usable_micro:
            self.prices.count_free(state.group, state.usable_micro, 1)
        return state

    def _new_state(self, agent: AgentState, fingerprint: Fingerprint) -> FreeState:
        pools = agent.pools
        cores, memory = (
            float(pools[name].total_free * pools[name].quantum) if name in pools else 0.0 for name in COMPANIONS
        )
        accelerators = []
        for slot in self.typical:
            pool = pools.get(slot)
            if pool is None:
                continue
            units, whole_count = float(pool.total_free * pool.quantum), pool.whole
            lost_units = self.loss_of(slot, units, whole_count, cores, memory)
            levels = tuple(pool.free_levels) if slot in agent.node_class.shared or pool.largest > 1 else ()
            part_values = self._values_of(slot, pool) if slot in agent.node_class.shared else None
            free_accelerator = FreeAccelerator(
                units, whole_count, pool.largest, float(pool.quantum), levels, lost_units, part_values
            )
            accelerators.append((slot, free_accelerator))
        if not self.prices.is_needed:
            return FreeState(agent.node_class, fingerprint, cores, memory, accelerators)
        group = self.prices.group_of(agent.node_class)
        usable_micro = [
            (slot, max(0, round((free_accelerator.units - free_accelerator.lost) * MICRO)))
            for slot, free_accelerator in accelerators
        ]
        return FreeState(agent.node_class, fingerprint, cores, memory, accelerators, group, usable_micro)

    def _values_of(self, slot: str, pool: SlotPool) -> PartValues | None:
        """Returns the worth of the parts of a slot's largest device; the other devices of the slot use the same."""
        cache_key = slot, pool.largest, pool.quantum
        if cache_key not in self._values:
            sizes: dict[int, float] = {}
            for amount, request_count in self.typical[slot].amounts.items():
                if size := pool.quanta(amount):
                    sizes[size] = sizes.get(size, 0.0) + request_count * float(pool.largest * pool.quantum)
            is_shared = pool.largest and any(size < pool.largest for size in sizes)
            self._values[cache_key] = self._value_cache.get(sizes, pool.largest) if is_shared else None
        return self._values[cache_key]


def _part_loss(accelerator: FreeAccelerator, level: int, quanta: int) -> float:
    """Returns how many units become unusable if a part is taken of a device with ``level`` quanta free."""
    remaining_units = (level - quanta) * accelerator.quantum
    if accelerator.values is None:
        return remaining_units
    return (
        accelerator.values.lost_worth(level, quanta) * accelerator.largest * accelerator.quantum
        + _TIGHTNESS * remaining_units
    )


Candidate = tuple[float, int, float, float, Fingerprint, int, FreeState]
"""(units that are lost, kinds of slots left unused, cores left, memory left, fingerprint, number of the state, state):
of equal losses the fullest agent is taken, and equal arguments give an equal order."""
_number_of = attrgetter("number")


class FragmentationGradient:
    """Orders the free states that have room for one demand by the loss that the demand causes there.

    Each state is evaluated once.
    """

    __slots__ = ("_cores", "_count", "_heaps", "_memory", "_requested", "_seen", "_unused_kinds")

    def __init__(self, requested_slots: ResourceSlot, node_classes: frozenset[NodeClass]) -> None:
        """Prepares the search for one demand.

        ``requested_slots``: of the demand. ``node_classes``: those that support the demand.
        """
        self._requested = {slot: float(quantity) for slot, quantity in requested_slots.items()}
        self._cores, self._memory = (self._requested.get(companion, 0.0) for companion in COMPANIONS)
        slots = self._requested.keys()
        self._unused_kinds = {node_class: len(node_class.kinds - slots) for node_class in node_classes}
        self._heaps: dict[int, list[Candidate]] = {}
        self._seen = -1
        self._count = 0

    def best_rank(self, states: FreeStates, agent_mask: int) -> int:
        """Returns the agent of a mask that loses the least, and the first one of equals.

        Returns -1 if no agent has room.
        """
        self._evaluate_new_states(states)
        top_of_groups = [
            (group, top_candidate)
            for group, heap in self._heaps.items()
            if (top_candidate := _top_candidate(heap, agent_mask)) is not None
        ]
        if not top_of_groups:
            return -1
        _, best_candidate = top_of_groups[0]
        if len(top_of_groups) > 1:
            prices = states.prices.compute_prices(self._requested)
            best_candidate = min(
                (round(top_candidate[0] + prices[group], 9), *top_candidate[1:])
                for group, top_candidate in top_of_groups
            )
        best_mask = best_candidate[-1].agent_mask & agent_mask
        return (best_mask & -best_mask).bit_length() - 1

    def _evaluate_new_states(self, states: FreeStates) -> None:
        new_states, heaps = states.log, self._heaps
        rebuilds = self._seen < 0 or self._count > 4 * len(new_states) + 4096
        if rebuilds:
            heaps.clear()
            self._count = 0
        else:
            new_states = new_states[bisect_right(new_states, self._seen, key=_number_of) :]
        needed_cores, needed_memory = self._cores, self._memory
        slot, needed_units = next(
            ((slot, self._requested[slot]) for slot in states.typical if slot in self._requested), ("", 0.0)
        )
        for state in new_states:
            if (
                state.units.get(slot, 0.0) >= needed_units
                and state.cores >= needed_cores
                and state.memory >= needed_memory
                and state.agent_mask
                and (candidate := self._evaluate(states, state)) is not None
            ):
                self._count += 1
                heap = heaps.setdefault(state.group, [])
                if rebuilds:
                    heap.append(candidate)
                else:
                    heappush(heap, candidate)
        if rebuilds:
            for heap in heaps.values():
                heapify(heap)
        if new_states:
            self._seen = new_states[-1].number

    def _evaluate(self, states: FreeStates, state: FreeState) -> Candidate | None:
        """Returns the loss that the demand causes on an agent of a state, which has enough cores and memory.

        Returns None if the state has no room.
        """
        cores, memory = state.cores - self._cores, state.memory - self._memory
        unused_kinds = self._unused_kinds.get(state.node_class)
        if unused_kinds is None:
            return None
        loss, requested_units = 0.0, self._requested
        for slot, accelerator in state.accelerators:
            units, whole_count, largest_quanta, quantum_units, levels, lost_before, _ = accelerator
            if slot_units := requested_units.get(slot):
                if slot_units > units:
                    return None
                if levels:
                    quanta = round(slot_units / quantum_units)
                    if quanta >= largest_quanta:
                        opened_count = -(-quanta // largest_quanta)
                    else:
                        level_index = bisect_left(levels, quanta)
                        if level_index == len(levels):
                            return None
                        level = levels[level_index]
                        opened_count = int(level == largest_quanta)
                        loss += _part_loss(accelerator, level, quanta)
                else:
                    opened_count = round(slot_units)
                units -= slot_units
                whole_count -= opened_count
            loss += states.loss_of(slot, units, whole_count, cores, memory) - lost_before
        return round(loss, 9), unused_kinds, cores, memory, state.fingerprint, state.number, state


def _top_candidate(heap: list[Candidate], agent_mask: int) -> Candidate | None:
    """Returns the first candidate that has an agent of the mask. Drops earlier candidates that have no agent at all."""
    outside_candidates: list[Candidate] = []
    top_candidate: Candidate | None = None
    while heap and top_candidate is None:
        agents_of_top = heap[0][-1].agent_mask
        if not agents_of_top:
            heappop(heap)
        elif agents_of_top & agent_mask:
            top_candidate = heap[0]
        else:
            outside_candidates.append(heappop(heap))
    for candidate in outside_candidates:
        heappush(heap, candidate)
    return top_candidate
