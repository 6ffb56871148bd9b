"""Indexes the agents of a resource group by their free amounts, so that few mask operations find the agents that fit.

Agents are numbered in the order of their ids (``rank``). Invariant: every index says what the agents' allocators say.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import NamedTuple, TypeVar

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.node import PreparedRequest
from ai.backend.core.allocation.proximity import fabric_domains
from ai.backend.core.allocation.requests.compiled import DeviceRequest
from ai.backend.core.scheduling.index.agent_state import REFUSALS, AgentState, KernelRequest, NodeClass, NodeClassCache
from ai.backend.core.scheduling.index.device_prices import NamedRequest
from ai.backend.core.scheduling.index.fragmentation import TypicalRequest, typical_requests
from ai.backend.core.scheduling.index.gradient import FragmentationGradient, FreeStates
from ai.backend.core.scheduling.index.slot_index import SlotIndex, mask_of, ranks_in_mask, to_micro
from ai.backend.core.scheduling.index.vector_index import Edges, VectorIndex
from ai.backend.core.scheduling.snapshot import PendingKernel, Snapshot

K = TypeVar("K", bound=Hashable)
SlotNeed = tuple[SlotIndex, int]
_UNLIMITED_KERNELS = 10**9
_FEW_AGENTS = 8
_SCARCITY_RANKS = {"cpu": 1, "mem": 2}


def scarcity(slot: str) -> tuple[int, str]:
    """Returns a sort key that puts accelerators before cores, and cores before memory."""
    return _SCARCITY_RANKS.get(slot, 0), slot


class FitClass(NamedTuple):
    """Groups agents on which a demand leaves equally many kinds of slots unused.

    Attributes:
        agent_mask: the mask of the agents.
        vectors: the agents by what they have free of the requested slots.
        floor: the least vector that can fit.
        edges: the slots of which an agent with the level of the floor may still lack something.
        is_small: there are so few agents that each can be inspected.
    """

    agent_mask: int
    vectors: VectorIndex
    floor: int
    edges: Edges
    is_small: bool


@dataclass(slots=True, eq=False, kw_only=True)
class Demand:
    """Describes what one agent must provide at once: for one kernel, or for all kernels of a single-node session.

    Attributes:
        requests: by kernel.
        total: their sum.
        matching_mask: permitted agents of its architecture that can start its images.
        supporting_mask: matching agents that have such slots and devices at all, free or not.
        order: the requested slots, the scarcest first.
        ranked: the same, each with the amount in millionths.
        special: the needs that vectors do not cover: parts of devices, whole devices, room for kernels.
        fit_classes: ``supporting_mask``, grouped by how many kinds of slots would stay unused, the fewest first.
        gradient: the cache of the least-fragmentation placement.
        refused_mask: agents whose allocator refused it since they last gained something.
    """

    requests: tuple[KernelRequest, ...]
    total: ResourceSlot
    matching_mask: int
    supporting_mask: int
    needs: tuple[SlotNeed, ...]
    order: tuple[str, ...]
    ranked: tuple[SlotNeed, ...]
    special: tuple[SlotNeed, ...]
    fit_classes: tuple[FitClass, ...]
    refused_mask: int = 0
    prepared_requests: dict[NodeClass, tuple[PreparedRequest, ...]] = field(default_factory=dict)
    capable_mask: int | None = None
    gradient: FragmentationGradient | None = None

    @property
    def device_request(self) -> DeviceRequest | None:
        """Returns the device request, which is the same for all kernels of the demand."""
        return self.requests[0][2] if self.requests else None

    def fitting_mask(self) -> int:
        """Returns the agents that seem to have room now. The mask may hold too many agents, but never too few."""
        agent_mask = self.supporting_mask & ~self.refused_mask
        for slot_index, amount_micro in self.needs:
            if not agent_mask:
                return 0
            agent_mask &= slot_index.mask_with_free(amount_micro)
        return agent_mask

    def open_mask(self) -> int:
        """Returns the agents that support the demand, have not refused it, and meet its special needs.

        Vectors tell which of these agents have room.
        """
        agent_mask = self.supporting_mask & ~self.refused_mask if self.refused_mask else self.supporting_mask
        for slot_index, amount_micro in self.special:
            agent_mask &= slot_index.mask_with_free(amount_micro)
        return agent_mask


class AgentIndex:
    """Indexes the agents of a snapshot, except ``broken`` agents, whose devices contradict each other."""

    def __init__(self, snapshot: Snapshot, node_classes: NodeClassCache) -> None:
        self.broken: list[tuple[AgentId, str]] = []
        self.agents: list[AgentState] = []
        for view in sorted(snapshot.agents, key=lambda agent: agent.agent_id):
            if view.is_schedulable:
                try:
                    self.agents.append(AgentState(view, node_classes.get(view.plugins, snapshot.allocation_order)))
                except BackendError as e:
                    self.broken.append((view.agent_id, e.message))
        self.size = len(self.agents)
        self._free_states: FreeStates | None = None
        self._snapshot = snapshot
        self.request_compiler = node_classes.request_compiler
        self._part_value_cache = node_classes.part_value_cache
        self.all_agents = (1 << self.size) - 1
        self.ranks = {agent.agent_id: rank for rank, agent in enumerate(self.agents)}
        self.cursor = -1
        """The agent that was chosen last. Round-robin continues after this agent."""
        self.node_classes = self._group_masks((agent.node_class, rank) for rank, agent in enumerate(self.agents))
        self._by_reserve = self._group_masks(
            ((agent.node_class, agent.view.reserved), rank) for rank, agent in enumerate(self.agents)
        )
        self._agents_by_image = self._group_masks(
            ((agent.view.architecture, agent.view.images, agent.view.features), rank)
            for rank, agent in enumerate(self.agents)
        )
        self._matching: dict[tuple[str, str | None, frozenset[str]], int] = {}
        self._demands: dict[Hashable, Demand] = {}
        self.indexes: dict[str, SlotIndex] = {}
        self._largest: dict[str, SlotIndex] = {}
        self._whole: dict[str, SlotIndex] = {}
        self._grain: dict[str, int] = {}
        self._vectors: dict[tuple[tuple[str, ...], int], VectorIndex] = {}
        """(slots, number of kinds of slots left unused) -> the agents that have all the slots, by vector."""
        self._vectors_of: dict[NodeClass, list[VectorIndex]] = {node_class: [] for node_class in self.node_classes}
        for slot in sorted({slot for node_class in self.node_classes for slot in node_class.pools}):
            self._index_slot(slot)
        self._room: SlotIndex | None = None
        kernel_rooms = [agent.room for agent in self.agents]
        if any(kernel_room is not None for kernel_room in kernel_rooms):
            free_counts = [_UNLIMITED_KERNELS if kernel_room is None else kernel_room for kernel_room in kernel_rooms]
            self._room = SlotIndex(free_counts, max(agent.view.kernel_limit or 0 for agent in self.agents))

    def _group_masks(self, keyed_ranks: Iterable[tuple[K, int]]) -> dict[K, int]:
        ranks_by_key: dict[K, list[int]] = {}
        for key, rank in keyed_ranks:
            ranks_by_key.setdefault(key, []).append(rank)
        return {key: mask_of(ranks, self.size) for key, ranks in ranks_by_key.items()}

    def _index_slot(self, slot: str) -> None:
        pools = [agent.pools.get(slot) for agent in self.agents]
        most_micro = max(
            (int(pool.total * pool.micro) for node_class in self.node_classes if (pool := node_class.pools.get(slot))),
            default=0,
        )
        quanta_micro = [pool.micro for node_class in self.node_classes if (pool := node_class.pools.get(slot))]
        grain_micro = (
            gcd(*(int(quantum_micro) for quantum_micro in quanta_micro))
            if all(quantum_micro == int(quantum_micro) for quantum_micro in quanta_micro)
            else 1
        )
        self.indexes[slot] = SlotIndex([pool.free_micro if pool else 0 for pool in pools], most_micro, grain_micro)
        if any(slot in node_class.shared for node_class in self.node_classes):
            largest_micro = [
                int(pool.largest * pool.micro)
                for node_class in self.node_classes
                if (pool := node_class.pools.get(slot)) and pool.largest
            ]
            self._grain[slot] = min(largest_micro, default=0)
            self._largest[slot] = SlotIndex(
                [pool.most_micro if pool else 0 for pool in pools], max(largest_micro, default=0)
            )
            self._whole[slot] = SlotIndex([pool.whole if pool else 0 for pool in pools], 0)

    @property
    def free_states(self) -> FreeStates:
        """Returns the agents grouped by their free amounts. The groups are built at the first use."""
        if self._free_states is None:
            self._free_states = FreeStates(
                self.agents, self._typical_requests(), self._part_value_cache, self._named_requests()
            )
        return self._free_states

    def _named_requests(self) -> list[NamedRequest]:
        """Returns the typical requests that name devices."""
        snapshot = self._snapshot
        count_of_request = {(texts, slots): float(count) for texts, slots, count in snapshot.device_workload}
        if not snapshot.workload:
            held_kernels = ((kernel.device_requests, kernel.slots) for view in snapshot.agents for kernel in view.held)
            pending_kernels = (
                (session.device_requests, kernel.slots) for session in snapshot.pending for kernel in session.kernels
            )
            for request_key in (*held_kernels, *pending_kernels):
                if request_key[0]:
                    count_of_request[request_key] = count_of_request.get(request_key, 0.0) + 1
        return [
            NamedRequest(tuple(map(self.request_compiler.compile, texts)), slots.nonzero(), count)
            for (texts, slots), count in count_of_request.items()
        ]

    def _typical_requests(self) -> dict[str, TypicalRequest]:
        """Returns the typical requests of the snapshot's workload.

        Without a workload, held and pending kernels count.
        """
        count_of_slots: dict[ResourceSlot, float] = {slots: float(count) for slots, count in self._snapshot.workload}
        if not count_of_slots:
            held_slots = (kernel.slots for view in self._snapshot.agents for kernel in view.held)
            pending_slots = (kernel.slots for session in self._snapshot.pending for kernel in session.kernels)
            for slots in (*held_slots, *pending_slots):
                count_of_slots[slots] = count_of_slots.get(slots, 0.0) + 1
        return typical_requests(count_of_slots.items())

    def has_fabric(self, slots: ResourceSlot) -> bool:
        """Returns True if devices behind one of these slots are linked with devices of other agents."""
        return bool(self.fabric_masks) and any(slot in self._fabric_slots for slot in slots)

    @cached_property
    def _fabric_slots(self) -> frozenset[str]:
        return frozenset(
            slot.slot_name
            for node_class in self.node_classes
            for plugin in node_class.plugins
            for device in plugin.devices
            if fabric_domains((device,))
            for slot in device.slots
        )

    @cached_property
    def fabric_masks(self) -> dict[tuple[str, ...], int]:
        """Returns the agents of each fabric that links devices of several agents."""
        masks: dict[tuple[str, ...], int] = {}
        for node_class, mask in self.node_classes.items():
            for domain in node_class.fabrics:
                masks[domain,] = masks.get((domain,), 0) | mask
        return {domain: mask for domain, mask in masks.items() if mask & (mask - 1)}

    @cached_property
    def location_tables(self) -> tuple[dict[tuple[str, ...], int], ...]:
        """Returns the agents of each location by its path.

        There is one table for each depth, the narrowest locations first, and before these a table of the fabrics, if
        there are any.
        """
        paths_and_ranks = [(agent.view.location, rank) for rank, agent in enumerate(self.agents) if agent.view.location]
        depths = range(max((len(path) for path, _ in paths_and_ranks), default=0), 0, -1)
        masks_of_depth = (
            self._group_masks((path[:depth], rank) for path, rank in paths_and_ranks if len(path) >= depth)
            for depth in depths
        )
        return ((self.fabric_masks,) if self.fabric_masks else ()) + tuple(masks_of_depth)

    # ---- demands

    def matching_mask(self, kernel: PendingKernel) -> int:
        """Returns the agents that have the kernel's architecture and features and can start its image."""
        cache_key = kernel.image, kernel.architecture, kernel.needs
        if cache_key not in self._matching:
            matching_mask = 0
            for (architecture, images, features), mask in self._agents_by_image.items():
                can_start = kernel.architecture in (None, architecture) and (images is None or kernel.image in images)
                if can_start and kernel.needs <= features:
                    matching_mask |= mask
            self._matching[cache_key] = matching_mask
        return self._matching[cache_key]

    def designated_mask(self, agent_ids: Iterable[AgentId]) -> int:
        return mask_of((self.ranks[agent_id] for agent_id in agent_ids if agent_id in self.ranks), self.size)

    def demand_of(
        self,
        kernels: Sequence[PendingKernel],
        agent_mask: int,
        device_request: DeviceRequest | None = None,
        *,
        near_network: bool = False,
    ) -> Demand:
        """Returns what one agent of a mask must provide to hold all these kernels.

        The device request selects the devices. Equal demands are one object.
        """
        matching_mask = agent_mask
        for kernel in kernels:
            matching_mask &= self.matching_mask(kernel)
        requests: tuple[KernelRequest, ...] = tuple(
            (kernel.slots, kernel.requirements, device_request, near_network) for kernel in kernels
        )
        cache_key = requests, matching_mask
        demand = self._demands.get(cache_key)
        if demand is None:
            demand = self._demands[cache_key] = self._new_demand(requests, matching_mask)
        return demand

    def _new_demand(self, requests: tuple[KernelRequest, ...], matching_mask: int) -> Demand:
        total_slots = sum((slots for slots, *_ in requests), ResourceSlot()).nonzero()
        supporting_mask = 0
        prepared_requests: dict[NodeClass, tuple[PreparedRequest, ...]] = {}
        masks_by_unused: dict[int, int] = {}
        for node_class, all_mask in self.node_classes.items():
            class_mask = all_mask & matching_mask
            if not class_mask:
                continue
            prepared_of_class = [
                prepared_request
                for request in requests
                if (prepared_request := node_class.prepare(request)) is not None
            ]
            if len(prepared_of_class) == len(requests):
                prepared_requests[node_class] = tuple(prepared_of_class)
                supporting_mask |= class_mask
                unused_count = len(node_class.kinds - total_slots.keys())
                masks_by_unused[unused_count] = masks_by_unused.get(unused_count, 0) | class_mask
        ranked_needs: list[SlotNeed] = []
        special_needs: list[SlotNeed] = []
        slot_order = tuple(sorted(total_slots, key=scarcity)) if supporting_mask else ()
        for slot in slot_order:
            ranked_needs.append((self.indexes[slot], to_micro(total_slots[slot])))
            special_needs += self._whole_device_needs(slot, requests)
        if supporting_mask and self._room is not None:
            special_needs.append((self._room, self._room.register_amount(len(requests))))
        amounts = tuple(amount for _, amount in ranked_needs)
        fit_classes = []
        for unused_count, class_mask in sorted(masks_by_unused.items()):
            vectors = self._vector_index(slot_order, unused_count)
            fit_classes.append(
                FitClass(class_mask, vectors, *vectors.floor(amounts), class_mask.bit_count() <= _FEW_AGENTS)
            )
        return Demand(
            requests=requests,
            total=total_slots,
            matching_mask=matching_mask,
            supporting_mask=supporting_mask,
            needs=(*ranked_needs, *special_needs),
            special=tuple(special_needs),
            order=slot_order,
            ranked=tuple(ranked_needs),
            fit_classes=tuple(fit_classes),
            prepared_requests=prepared_requests,
        )

    def _vector_index(self, slot_order: tuple[str, ...], unused_count: int) -> VectorIndex:
        vectors = self._vectors.get((slot_order, unused_count))
        if vectors is None:
            agent_mask = 0
            node_classes = [
                node_class
                for node_class in self.node_classes
                if node_class.pools.keys() >= set(slot_order)
                and len(node_class.kinds - set(slot_order)) == unused_count
            ]
            for node_class in node_classes:
                agent_mask |= self.node_classes[node_class]
            vectors = self._vectors[slot_order, unused_count] = VectorIndex(
                [self.indexes[slot] for slot in slot_order], agent_mask, self.size
            )
            for node_class in node_classes:
                self._vectors_of[node_class].append(vectors)
        return vectors

    def _whole_device_needs(self, slot: str, requests: tuple[KernelRequest, ...]) -> list[SlotNeed]:
        """Returns how much an agent needs on single devices: for requests of a part, and of whole free devices."""
        grain_micro = self._grain.get(slot)
        if not grain_micro:
            return []
        amounts_micro = [to_micro(slots[slot]) for slots, *_ in requests]
        needs = []
        if (
            part_micro := max(
                (amount_micro for amount_micro in amounts_micro if amount_micro <= grain_micro), default=0
            )
        ) > 0:
            needs.append((self._largest[slot], self._largest[slot].register_amount(part_micro)))
        largest_micro = int(
            max(
                node_class.pools[slot].largest * node_class.pools[slot].micro
                for node_class in self.node_classes
                if slot in node_class.pools
            )
        )
        if (
            largest_micro == grain_micro
            and (
                whole_count := sum(
                    amount_micro // grain_micro for amount_micro in amounts_micro if amount_micro % grain_micro == 0
                )
            )
            > 0
        ):
            needs.append((self._whole[slot], self._whole[slot].register_amount(whole_count)))
        return needs

    def capable_mask(self, demand: Demand) -> int:
        """Returns the supporting agents that could serve a demand if they were empty."""
        if demand.capable_mask is None:
            class_mask = 0
            for (node_class, reserved), mask in self._by_reserve.items():
                if mask & demand.supporting_mask and node_class.refusal(demand.requests, reserved) is None:
                    class_mask |= mask & demand.supporting_mask
            if self._room is not None:
                kernel_limits = (agent.view.kernel_limit for agent in self.agents)
                limited_ranks = [
                    rank
                    for rank, kernel_limit in enumerate(kernel_limits)
                    if kernel_limit is not None and kernel_limit < len(demand.requests)
                ]
                class_mask &= ~mask_of(limited_ranks, self.size)
            demand.capable_mask = class_mask
        return demand.capable_mask

    # ---- taking

    def take(self, rank: int, demand: Demand, kernel_ids: Sequence[KernelId]) -> tuple[DeviceAllocation, ...] | None:
        """Allocates the devices of each kernel on one agent. Returns None, with nothing taken, if the agent refuses."""
        agent = self.agents[rank]
        allocations: list[DeviceAllocation] = []
        for slot_index, amount_micro in demand.ranked:
            if slot_index.free[rank] < amount_micro:
                demand.refused_mask |= 1 << rank
                return None
        try:
            for kernel_id, prepared_request in zip(kernel_ids, demand.prepared_requests[agent.node_class], strict=True):
                allocations.append(agent.take(kernel_id, prepared_request))
        except REFUSALS:
            for kernel_id in kernel_ids[: len(allocations)]:
                agent.release(kernel_id)
            demand.refused_mask |= 1 << rank
            return None
        self._update_indexes(rank, demand.order)
        self.cursor = rank
        return tuple(allocations)

    def undo(self, rank: int, kernel_id: KernelId, demands: Iterable[Demand]) -> None:
        """Releases the devices that a kernel just took, and lets ``demands`` be tried on the agent again.

        Only ``demands`` may have been tried since the kernel took the devices.
        """
        agent = self.agents[rank]
        agent.release(kernel_id)
        self._update_indexes(rank, agent.pools)
        for demand in demands:
            demand.refused_mask &= ~(1 << rank)

    def release(self, rank: int, kernel_id: KernelId) -> None:
        """Releases a kernel that an agent held."""
        self.undo(rank, kernel_id, self._demands.values())

    def update(self, snapshot: Snapshot) -> bool:
        """Updates the index to a newer snapshot with the same agents and workload. Returns :attr:`is_exact`."""
        self._snapshot = snapshot
        if not snapshot.workload and self._free_states is not None:
            self._free_states = None
            for demand in self._demands.values():
                demand.gradient = None
        gained_mask = 0
        for view in snapshot.agents:
            rank = self.ranks.get(view.agent_id)
            if rank is None:
                continue
            agent = self.agents[rank]
            removed_ids, new_kernels = agent.find_differences(
                {held_kernel.kernel_id: held_kernel for held_kernel in view.held}
            )
            if not removed_ids and not new_kernels and (agent.is_reserve_current or not agent.view.reserved):
                continue
            agent.unreserve()
            for kernel_id in removed_ids:
                agent.release(kernel_id)
            for held_kernel in new_kernels:
                agent.adopt(held_kernel)
            agent.reserve()
            self._update_indexes(rank, agent.pools)
            gained_mask |= 1 << rank
        for demand in self._demands.values():
            demand.refused_mask &= ~gained_mask
        return self.is_exact

    @property
    def is_exact(self) -> bool:
        """Returns True if all slots that agents hold are counted."""
        return all(agent.is_exact for agent in self.agents)

    def _update_indexes(self, rank: int, slots: Iterable[str]) -> None:
        agent = self.agents[rank]
        if self._free_states is not None:
            self._free_states.update_agent(rank)
        pools, grain_of_slot = agent.pools, self._grain
        for slot in slots if not agent.node_class.hides else pools:
            if pool := pools.get(slot):
                self.indexes[slot].change(rank, int(pool.total_free * pool.micro))
                if slot in grain_of_slot:
                    self._largest[slot].change(rank, pool.most_micro)
                    self._whole[slot].change(rank, pool.whole)
        for vectors in self._vectors_of[agent.node_class]:
            vectors.change(rank)
        if self._room is not None and (kernel_room := agent.room) is not None:
            self._room.change(rank, kernel_room)

    # ---- reading

    def agents_in(self, mask: int) -> list[AgentState]:
        return [self.agents[rank] for rank in ranks_in_mask(mask)]

    def mask_with_room(self, agent_mask: int, kernel_count: int) -> int:
        """Returns the agents of a mask that may hold the given number of further kernels."""
        return agent_mask if self._room is None else agent_mask & self._room.mask_with_free(kernel_count)

    def closest_rank(self, demand: Demand, agent_mask: int) -> int:
        """Returns the rank of the agent of a mask that lacks the least to hold the demand.

        The scarcest slot is compared first, then the next slot. Among equal agents, the first one is returned.

        While no other kernel is put on it, what it lacks never grows, so the least lack never grows either.
        """
        for slot_index, amount_micro in demand.ranked:
            agent_mask = agent_mask & slot_index.mask_with_free(amount_micro) or slot_index.emptiest_mask(agent_mask)
        if self._room is not None:
            agent_mask = self.mask_with_room(agent_mask, len(demand.requests)) or self._room.emptiest_mask(agent_mask)
        return (agent_mask & -agent_mask).bit_length() - 1
