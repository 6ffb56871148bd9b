"""Indexes the agents of a resource group by what they have free, so that few mask operations find those that fit.

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
from ai.backend.core.scheduling.index.agent_state import REFUSALS, AgentState, KernelRequest, NodeClass, NodeClassCache
from ai.backend.core.scheduling.index.fragmentation import FragmentationGradient, TypicalRequest, typical_requests
from ai.backend.core.scheduling.index.slot_index import SlotIndex, mask_of, members, micro
from ai.backend.core.scheduling.index.vector_index import Edges, VectorIndex
from ai.backend.core.scheduling.snapshot import PendingKernel, Snapshot

K = TypeVar("K", bound=Hashable)
Need = tuple[SlotIndex, int]
_PLENTY = 10**9
_FEW = 8
_CHANGES = 4096
"""The least number of changes that are recorded; with many agents four for each."""
_LAST = {"cpu": 1, "mem": 2}


def scarcity(slot: str) -> tuple[int, str]:
    """Sort key: accelerators are scarcer than cores, cores than memory."""
    return _LAST.get(slot, 0), slot


class FitClass(NamedTuple):
    """Agents on which a demand leaves equally many kinds of slots unused.

    Attributes:
        scope: the mask of the agents.
        vectors: the agents by what they have free of the requested slots.
        floor: the least vector that can fit.
        edges: the slots of which an agent with the level of the floor may still lack something.
        is_small: there are so few agents that each can be inspected.
    """

    scope: int
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
        matching: permitted agents of its architecture that can start its images.
        supporting: matching agents that have such slots and devices at all, free or not.
        order: the requested slots, the scarcest first.
        ranked: the same, each with the amount in millionths.
        special: the needs that vectors do not cover: parts of devices, whole devices, room for kernels.
        fit_classes: ``supporting``, grouped by how many kinds of slots would stay unused, the fewest first.
        gradient: the cache of the least-fragmentation placement.
        refused: agents whose allocator refused it since they last gained something.
    """

    requests: tuple[KernelRequest, ...]
    total: ResourceSlot
    matching: int
    supporting: int
    needs: tuple[Need, ...]
    order: tuple[str, ...]
    ranked: tuple[Need, ...]
    special: tuple[Need, ...]
    fit_classes: tuple[FitClass, ...]
    refused: int = 0
    prepared_requests: dict[NodeClass, tuple[PreparedRequest, ...]] = field(default_factory=dict)
    capable: int | None = None
    gradient: FragmentationGradient | None = None

    def fit(self) -> int:
        """Returns the agents that seem to have room now: possibly too many, never too few."""
        agents = self.supporting & ~self.refused
        for index, amount in self.needs:
            if not agents:
                return 0
            agents &= index.at_least(amount)
        return agents

    def open(self) -> int:
        """Returns the supporting agents that have not refused the demand. Vectors tell which of these fit."""
        agents = self.supporting & ~self.refused if self.refused else self.supporting
        for index, amount in self.special:
            agents &= index.at_least(amount)
        return agents


class AgentIndex:
    """Indexes the agents of a snapshot, but for the ``broken`` ones, whose devices contradict each other."""

    def __init__(self, snapshot: Snapshot, node_classes: NodeClassCache) -> None:
        self.broken: list[tuple[AgentId, str]] = []
        self.agents: list[AgentState] = []
        for view in sorted(snapshot.agents, key=lambda a: a.agent_id):
            if view.is_schedulable:
                try:
                    self.agents.append(AgentState(view, node_classes.get(view.plugins, snapshot.allocation_order)))
                except BackendError as e:
                    self.broken.append((view.agent_id, e.message))
        self.size = len(self.agents)
        self.changes: list[int] = []
        """The ranks of changed agents in order; at its limit it is cleared together with every gradient."""
        self._most_changes = max(_CHANGES, 4 * self.size)
        self._snapshot = snapshot
        self.all_agents = (1 << self.size) - 1
        self.ranks = {a.agent_id: rank for rank, a in enumerate(self.agents)}
        self.cursor = -1
        """The agent that was chosen last, after which round-robin continues."""
        self.node_classes = self._group((a.node_class, rank) for rank, a in enumerate(self.agents))
        self._by_reserve = self._group(((a.node_class, a.view.reserved), rank) for rank, a in enumerate(self.agents))
        self._agents_by_image = self._group(
            ((a.view.architecture, a.view.images, a.view.features), rank) for rank, a in enumerate(self.agents)
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
            self._index(slot)
        self._room: SlotIndex | None = None
        rooms = [a.room for a in self.agents]
        if any(room is not None for room in rooms):
            free = [_PLENTY if room is None else room for room in rooms]
            self._room = SlotIndex(free, max(a.view.kernel_limit or 0 for a in self.agents))

    def _group(self, keyed: Iterable[tuple[K, int]]) -> dict[K, int]:
        groups: dict[K, list[int]] = {}
        for key, rank in keyed:
            groups.setdefault(key, []).append(rank)
        return {key: mask_of(ranks, self.size) for key, ranks in groups.items()}

    def _index(self, slot: str) -> None:
        pools = [a.pools.get(slot) for a in self.agents]
        most = max((int(b.total * b.micro) for m in self.node_classes if (b := m.pools.get(slot))), default=0)
        quanta = [b.micro for m in self.node_classes if (b := m.pools.get(slot))]
        grain = gcd(*(int(q) for q in quanta)) if all(q == int(q) for q in quanta) else 1
        self.indexes[slot] = SlotIndex([b.free_micro if b else 0 for b in pools], most, grain)
        if any(slot in node_class.shared for node_class in self.node_classes):
            largest = [int(b.largest * b.micro) for m in self.node_classes if (b := m.pools.get(slot)) and b.largest]
            self._grain[slot] = min(largest, default=0)
            self._largest[slot] = SlotIndex([b.most_micro if b else 0 for b in pools], max(largest, default=0))
            self._whole[slot] = SlotIndex([b.whole if b else 0 for b in pools], 0)

    @cached_property
    def typical_requests(self) -> dict[str, TypicalRequest]:
        """Returns the typical requests: those of the snapshot's workload, else those of held and pending kernels."""
        counts: dict[ResourceSlot, float] = {slots: float(count) for slots, count in self._snapshot.workload}
        if not counts:
            held = (h.slots for view in self._snapshot.agents for h in view.held)
            pending = (k.slots for s in self._snapshot.pending for k in s.kernels)
            for slots in (*held, *pending):
                counts[slots] = counts.get(slots, 0.0) + 1
        return typical_requests(counts.items())

    @cached_property
    def places(self) -> tuple[dict[tuple[str, ...], int], ...]:
        """The agents of each location by its path: one table for each depth, the narrowest locations first."""
        located = [(a.view.location, rank) for rank, a in enumerate(self.agents) if a.view.location]
        depths = range(max((len(path) for path, _ in located), default=0), 0, -1)
        return tuple(
            self._group((path[:depth], rank) for path, rank in located if len(path) >= depth) for depth in depths
        )

    # ---- demands

    def matching(self, kernel: PendingKernel) -> int:
        """Returns the agents of the kernel's architecture that can start its image and have its features."""
        key = kernel.image, kernel.architecture, kernel.needs
        if key not in self._matching:
            matching = 0
            for (architecture, images, features), mask in self._agents_by_image.items():
                starts = kernel.architecture in (None, architecture) and (images is None or kernel.image in images)
                if starts and kernel.needs <= features:
                    matching |= mask
            self._matching[key] = matching
        return self._matching[key]

    def designated(self, agents: Iterable[AgentId]) -> int:
        return mask_of((self.ranks[a] for a in agents if a in self.ranks), self.size)

    def demand(self, kernels: Sequence[PendingKernel], scope: int) -> Demand:
        """Returns what one agent of a mask must provide to hold all these kernels. Equal demands are one object."""
        matching = scope
        for kernel in kernels:
            matching &= self.matching(kernel)
        requests: tuple[KernelRequest, ...] = tuple((k.slots, k.requirements) for k in kernels)
        key = requests, matching
        demand = self._demands.get(key)
        if demand is None:
            demand = self._demands[key] = self._new_demand(requests, matching)
        return demand

    def _new_demand(self, requests: tuple[KernelRequest, ...], matching: int) -> Demand:
        total = sum((slots for slots, _ in requests), ResourceSlot()).nonzero()
        supporting = 0
        prepared_requests: dict[NodeClass, tuple[PreparedRequest, ...]] = {}
        unused: dict[int, int] = {}
        for node_class, mask in self.node_classes.items():
            agents = mask & matching
            if not agents:
                continue
            prepared = [p for request in requests if (p := node_class.prepare(request)) is not None]
            if len(prepared) == len(requests):
                prepared_requests[node_class] = tuple(prepared)
                supporting |= agents
                count = len(node_class.kinds - total.keys())
                unused[count] = unused.get(count, 0) | agents
        ranked: list[Need] = []
        special: list[Need] = []
        order = tuple(sorted(total, key=scarcity)) if supporting else ()
        for slot in order:
            ranked.append((self.indexes[slot], micro(total[slot])))
            special += self._whole_device_needs(slot, requests)
        if supporting and self._room is not None:
            special.append((self._room, self._room.register(len(requests))))
        amounts = tuple(amount for _, amount in ranked)
        fit_classes = []
        for count, agents in sorted(unused.items()):
            vectors = self._by_vector(order, count)
            fit_classes.append(FitClass(agents, vectors, *vectors.floor(amounts), agents.bit_count() <= _FEW))
        return Demand(
            requests=requests,
            total=total,
            matching=matching,
            supporting=supporting,
            needs=(*ranked, *special),
            special=tuple(special),
            order=order,
            ranked=tuple(ranked),
            fit_classes=tuple(fit_classes),
            prepared_requests=prepared_requests,
        )

    def _by_vector(self, order: tuple[str, ...], unused: int) -> VectorIndex:
        vectors = self._vectors.get((order, unused))
        if vectors is None:
            scope = 0
            node_classes = [
                m for m in self.node_classes if m.pools.keys() >= set(order) and len(m.kinds - set(order)) == unused
            ]
            for node_class in node_classes:
                scope |= self.node_classes[node_class]
            vectors = self._vectors[order, unused] = VectorIndex([self.indexes[s] for s in order], scope, self.size)
            for node_class in node_classes:
                self._vectors_of[node_class].append(vectors)
        return vectors

    def _whole_device_needs(self, slot: str, requests: tuple[KernelRequest, ...]) -> list[Need]:
        """Returns the needs of partial devices (from one device) and of whole free devices."""
        grain = self._grain.get(slot)
        if not grain:
            return []
        amounts = [micro(slots[slot]) for slots, _ in requests]
        needs = []
        if (part := max((a for a in amounts if a <= grain), default=0)) > 0:
            needs.append((self._largest[slot], self._largest[slot].register(part)))
        largest = int(max(m.pools[slot].largest * m.pools[slot].micro for m in self.node_classes if slot in m.pools))
        if largest == grain and (whole := sum(a // grain for a in amounts if a % grain == 0)) > 0:
            needs.append((self._whole[slot], self._whole[slot].register(whole)))
        return needs

    def capable(self, demand: Demand) -> int:
        """Returns the supporting agents that could serve a demand if they were empty."""
        if demand.capable is None:
            agents = 0
            for (node_class, reserved), mask in self._by_reserve.items():
                if mask & demand.supporting and node_class.refusal(demand.requests, reserved) is None:
                    agents |= mask & demand.supporting
            if self._room is not None:
                limits = (a.view.kernel_limit for a in self.agents)
                tight = [r for r, limit in enumerate(limits) if limit is not None and limit < len(demand.requests)]
                agents &= ~mask_of(tight, self.size)
            demand.capable = agents
        return demand.capable

    # ---- taking

    def take(self, rank: int, demand: Demand, kernel_ids: Sequence[KernelId]) -> tuple[DeviceAllocation, ...] | None:
        """Allocates the devices of each kernel on one agent. Returns None, with nothing taken, if the agent refuses."""
        agent = self.agents[rank]
        done: list[DeviceAllocation] = []
        for index, amount in demand.ranked:
            if index.free[rank] < amount:
                demand.refused |= 1 << rank
                return None
        try:
            for kernel_id, prepared in zip(kernel_ids, demand.prepared_requests[agent.node_class], strict=True):
                done.append(agent.take(kernel_id, prepared))
        except REFUSALS:
            for kernel_id in kernel_ids[: len(done)]:
                agent.release(kernel_id)
            demand.refused |= 1 << rank
            return None
        self._changed(rank, demand.order)
        self.cursor = rank
        return tuple(done)

    def undo(self, rank: int, kernel_id: KernelId, demands: Iterable[Demand]) -> None:
        """Releases what was just taken. Only these demands may have been tried since."""
        agent = self.agents[rank]
        agent.release(kernel_id)
        self._changed(rank, agent.pools)
        for demand in demands:
            demand.refused &= ~(1 << rank)

    def release(self, rank: int, kernel_id: KernelId) -> None:
        """Releases a kernel that an agent held."""
        self.undo(rank, kernel_id, self._demands.values())

    def update(self, snapshot: Snapshot) -> bool:
        """Updates the same agents to a newer snapshot with the same workload. Returns :attr:`is_exact`."""
        self._snapshot = snapshot
        if not snapshot.workload and "typical_requests" in vars(self):
            del self.typical_requests
            for demand in self._demands.values():
                demand.gradient = None
        gained = 0
        for view in snapshot.agents:
            rank = self.ranks.get(view.agent_id)
            if rank is None:
                continue
            agent = self.agents[rank]
            removed, new = agent.differs({held.kernel_id: held for held in view.held})
            if not removed and not new and (agent.is_reserve_current or not agent.view.reserved):
                continue
            agent.unreserve()
            for kernel_id in removed:
                agent.release(kernel_id)
            for held in new:
                agent.adopt(held)
            agent.reserve()
            self._changed(rank, agent.pools)
            gained |= 1 << rank
        for demand in self._demands.values():
            demand.refused &= ~gained
        return self.is_exact

    @property
    def is_exact(self) -> bool:
        """True if everything that the agents hold is counted in full."""
        return all(agent.is_exact for agent in self.agents)

    def _changed(self, rank: int, slots: Iterable[str]) -> None:
        agent = self.agents[rank]
        agent.version += 1
        if len(self.changes) >= self._most_changes:
            self.changes.clear()
            for demand in self._demands.values():
                demand.gradient = None
        self.changes.append(rank)
        pools, grain = agent.pools, self._grain
        for slot in slots if not agent.node_class.hides else pools:
            if pool := pools.get(slot):
                self.indexes[slot].change(rank, int(pool.total_free * pool.micro))
                if slot in grain:
                    self._largest[slot].change(rank, pool.most_micro)
                    self._whole[slot].change(rank, pool.whole)
        for vectors in self._vectors_of[agent.node_class]:
            vectors.change(rank)
        if self._room is not None and (room := agent.room) is not None:
            self._room.change(rank, room)

    # ---- reading

    def members(self, mask: int) -> list[AgentState]:
        return [self.agents[rank] for rank in members(mask)]

    def with_room(self, scope: int, kernels: int) -> int:
        """Returns the agents of a mask that may hold so many more kernels."""
        return scope if self._room is None else scope & self._room.at_least(kernels)

    def closest(self, demand: Demand, scope: int) -> int:
        """Returns the agent of a mask that lacks least of the scarcest slot, then of the next one; the first of equals.

        While no other kernel is put on it, what it lacks never grows, so the least lack never grows either.
        """
        for index, amount in demand.ranked:
            scope = scope & index.at_least(amount) or index.emptiest(scope)
        if self._room is not None:
            scope = self.with_room(scope, len(demand.requests)) or self._room.emptiest(scope)
        return (scope & -scope).bit_length() - 1
