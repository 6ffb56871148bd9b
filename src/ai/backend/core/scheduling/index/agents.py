"""The agents of a resource group with indexes over what they have free: which agents fit a demand is a few operations
on masks, whatever the number of agents.

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
from ai.backend.core.scheduling.index.agent_state import REFUSALS, AgentState, NodeClass, NodeClassCache, Wish
from ai.backend.core.scheduling.index.fragmentation import FragmentationGradient, TypicalRequest, usual
from ai.backend.core.scheduling.index.slot_index import SlotIndex, mask_of, members, micro
from ai.backend.core.scheduling.index.vector_index import Edges, VectorIndex
from ai.backend.core.scheduling.snapshot import PendingKernel, Snapshot

K = TypeVar("K", bound=Hashable)
Need = tuple[SlotIndex, int]
_PLENTY = 10**9
_FEW = 8
_CHANGES = 4096
"""So many changes are kept at least, else four for each agent."""
_LAST = {"cpu": 1, "mem": 2}


def scarcity(slot: str) -> tuple[int, str]:
    """Accelerators are scarcer than cores, cores than memory."""
    return _LAST.get(slot, 0), slot


class FitClass(NamedTuple):
    """Agents on which a demand leaves equally many kinds of slots unused.

    Attributes:
        scope: which ones.
        vectors: by what they have free of the requested slots.
        floor: the least vector that may do.
        edges: the slots of which an agent with this very level may still lack something.
        is_small: so few agents that each may be looked at.
    """

    scope: int
    vectors: VectorIndex
    floor: int
    edges: Edges
    is_small: bool


@dataclass(slots=True, eq=False, kw_only=True)
class Demand:
    """What one agent must give at once: one kernel, or all kernels of a single-node session.

    Attributes:
        wishes: by kernel.
        total: their sum.
        matching: agents of its architecture that can start its images and that it may use.
        supporting: those of them that have such slots and devices at all, free or not.
        order: the requested slots, the scarcest first.
        ranked: the same, each with the amount in millionths.
        special: those of the needs that vectors do not know: parts of devices, whole devices, room for kernels.
        tiers: ``supporting``, in parts by how many kinds of slots it would leave unused there, the fewest first; each
            with its agents by vector.
        gradient: what least-fragmentation remembers of it.
        refused: agents whose allocator refused it since they last gained something.
    """

    wishes: tuple[Wish, ...]
    total: ResourceSlot
    matching: int
    supporting: int
    needs: tuple[Need, ...]
    order: tuple[str, ...]
    ranked: tuple[Need, ...]
    special: tuple[Need, ...]
    tiers: tuple[FitClass, ...]
    refused: int = 0
    recipes: dict[NodeClass, tuple[PreparedRequest, ...]] = field(default_factory=dict)
    able: int | None = None
    gradient: FragmentationGradient | None = None

    def fit(self) -> int:
        """The agents that seem to have room now: never too few; their allocators have the last word."""
        found = self.supporting & ~self.refused
        for index, amount in self.needs:
            if not found:
                return 0
            found &= index.at_least(amount)
        return found

    def open(self) -> int:
        """The supporting agents that have not refused it; of these vectors tell which fit."""
        found = self.supporting & ~self.refused if self.refused else self.supporting
        for index, amount in self.special:
            found &= index.at_least(amount)
        return found


class AgentIndex:
    """See the module. ``broken`` names agents whose devices contradict each other; they are left out."""

    def __init__(self, snapshot: Snapshot, makes: NodeClassCache) -> None:
        self.broken: list[tuple[AgentId, str]] = []
        self.agents: list[AgentState] = []
        for view in sorted(snapshot.agents, key=lambda a: a.agent_id):
            if view.is_schedulable:
                try:
                    self.agents.append(AgentState(view, makes.make_of(view.plugins, snapshot.allocation_order)))
                except BackendError as e:
                    self.broken.append((view.agent_id, e.message))
        self.size = len(self.agents)
        self.changes: list[int] = []
        """The ranks of agents in the order in which they changed; now and then it begins anew, and with it every
        gradient, so that what is kept for long does not grow."""
        self._most_changes = max(_CHANGES, 4 * self.size)
        self._snapshot = snapshot
        self.everyone = (1 << self.size) - 1
        self.ranks = {a.agent_id: rank for rank, a in enumerate(self.agents)}
        self.cursor = -1
        """The agent that was chosen last; round-robin goes on after it."""
        self.makes = self._group((a.make, rank) for rank, a in enumerate(self.agents))
        self._kept = self._group(((a.make, a.view.reserved), rank) for rank, a in enumerate(self.agents))
        self._starters = self._group(
            ((a.view.architecture, a.view.images, a.view.features), rank) for rank, a in enumerate(self.agents)
        )
        self._matching: dict[tuple[str, str | None, frozenset[str]], int] = {}
        self._demands: dict[Hashable, Demand] = {}
        self.indexes: dict[str, SlotIndex] = {}
        self._largest: dict[str, SlotIndex] = {}
        self._whole: dict[str, SlotIndex] = {}
        self._grain: dict[str, int] = {}
        self._vectors: dict[tuple[tuple[str, ...], int], VectorIndex] = {}
        """(slots, how many kinds of slots these leave unused) -> the agents that have them all, by vector."""
        self._vectors_of: dict[NodeClass, list[VectorIndex]] = {make: [] for make in self.makes}
        for slot in sorted({slot for make in self.makes for slot in make.books}):
            self._index(slot)
        self._room: SlotIndex | None = None
        rooms = [a.room for a in self.agents]
        if any(room is not None for room in rooms):
            free = [_PLENTY if room is None else room for room in rooms]
            self._room = SlotIndex(free, max(a.view.kernel_limit or 0 for a in self.agents))

    def _group(self, keyed: Iterable[tuple[K, int]]) -> dict[K, int]:
        found: dict[K, list[int]] = {}
        for key, rank in keyed:
            found.setdefault(key, []).append(rank)
        return {key: mask_of(ranks, self.size) for key, ranks in found.items()}

    def _index(self, slot: str) -> None:
        books = [a.books.get(slot) for a in self.agents]
        most = max((int(b.total * b.micro) for m in self.makes if (b := m.books.get(slot))), default=0)
        quanta = [b.micro for m in self.makes if (b := m.books.get(slot))]
        grain = gcd(*(int(q) for q in quanta)) if all(q == int(q) for q in quanta) else 1
        self.indexes[slot] = SlotIndex([b.free_micro if b else 0 for b in books], most, grain)
        if any(slot in make.shared for make in self.makes):
            largest = [int(b.largest * b.micro) for m in self.makes if (b := m.books.get(slot)) and b.largest]
            self._grain[slot] = min(largest, default=0)
            self._largest[slot] = SlotIndex([b.most_micro if b else 0 for b in books], max(largest, default=0))
            self._whole[slot] = SlotIndex([b.whole if b else 0 for b in books], 0)

    @cached_property
    def usual(self) -> dict[str, TypicalRequest]:
        """What is usually requested: as the snapshot says, else what is held and what waits."""
        known: dict[ResourceSlot, float] = {slots: float(count) for slots, count in self._snapshot.workload}
        if not known:
            held = (h.slots for view in self._snapshot.agents for h in view.held)
            pending = (k.slots for s in self._snapshot.pending for k in s.kernels)
            for slots in (*held, *pending):
                known[slots] = known.get(slots, 0.0) + 1
        return usual(known.items())

    @cached_property
    def places(self) -> tuple[dict[tuple[str, ...], int], ...]:
        """The agents of each place, by the path to it: the narrowest places first, and one table for each width."""
        located = [(a.view.location, rank) for rank, a in enumerate(self.agents) if a.view.location]
        depths = range(max((len(path) for path, _ in located), default=0), 0, -1)
        return tuple(
            self._group((path[:depth], rank) for path, rank in located if len(path) >= depth) for depth in depths
        )

    # ---- demands

    def matching(self, kernel: PendingKernel) -> int:
        """The agents of its architecture that can start its image and have what it needs."""
        key = kernel.image, kernel.architecture, kernel.needs
        if key not in self._matching:
            found = 0
            for (architecture, images, features), mask in self._starters.items():
                starts = kernel.architecture in (None, architecture) and (images is None or kernel.image in images)
                if starts and kernel.needs <= features:
                    found |= mask
            self._matching[key] = found
        return self._matching[key]

    def designated(self, agents: Iterable[AgentId]) -> int:
        return mask_of((self.ranks[a] for a in agents if a in self.ranks), self.size)

    def demand(self, kernels: Sequence[PendingKernel], scope: int) -> Demand:
        """What one agent of a mask must give to hold all of these; equal ones are one object."""
        matching = scope
        for kernel in kernels:
            matching &= self.matching(kernel)
        wishes: tuple[Wish, ...] = tuple((k.slots, k.requirements) for k in kernels)
        key = wishes, matching
        found = self._demands.get(key)
        if found is None:
            found = self._demands[key] = self._new_demand(wishes, matching)
        return found

    def _new_demand(self, wishes: tuple[Wish, ...], matching: int) -> Demand:
        total = sum((slots for slots, _ in wishes), ResourceSlot()).nonzero()
        supporting = 0
        recipes: dict[NodeClass, tuple[PreparedRequest, ...]] = {}
        unused: dict[int, int] = {}
        for make, mask in self.makes.items():
            here = mask & matching
            if not here:
                continue
            read = tuple(recipe for wish in wishes if (recipe := make.recipe(wish)) is not None)
            if len(read) == len(wishes):
                recipes[make] = read
                supporting |= here
                left = len(make.kinds - total.keys())
                unused[left] = unused.get(left, 0) | here
        ranked: list[Need] = []
        special: list[Need] = []
        order = tuple(sorted(total, key=scarcity)) if supporting else ()
        if supporting:
            for slot in order:
                amount = micro(total[slot])
                ranked.append((self.indexes[slot], amount))
                special += self._whole_device_needs(slot, wishes)
            if self._room is not None:
                special.append((self._room, self._room.register(len(wishes))))
        amounts = tuple(amount for _, amount in ranked)
        tiers = []
        for left in sorted(unused):
            vectors = self._by_vector(order, left)
            tiers.append(FitClass(unused[left], vectors, *vectors.floor(amounts), unused[left].bit_count() <= _FEW))
        return Demand(
            wishes=wishes,
            total=total,
            matching=matching,
            supporting=supporting,
            needs=(*ranked, *special),
            special=tuple(special),
            order=order,
            ranked=tuple(ranked),
            tiers=tuple(tiers),
            recipes=recipes,
        )

    def _by_vector(self, order: tuple[str, ...], unused: int) -> VectorIndex:
        found = self._vectors.get((order, unused))
        if found is None:
            scope = 0
            makes = [m for m in self.makes if m.books.keys() >= set(order) and len(m.kinds - set(order)) == unused]
            for make in makes:
                scope |= self.makes[make]
            found = self._vectors[order, unused] = VectorIndex([self.indexes[s] for s in order], scope, self.size)
            for make in makes:
                self._vectors_of[make].append(found)
        return found

    def _whole_device_needs(self, slot: str, wishes: tuple[Wish, ...]) -> list[Need]:
        """A part of a device must come from one device; so many whole devices must be free."""
        grain = self._grain.get(slot)
        if not grain:
            return []
        amounts = [micro(slots[slot]) for slots, _ in wishes]
        found = []
        if (part := max((a for a in amounts if a <= grain), default=0)) > 0:
            found.append((self._largest[slot], self._largest[slot].register(part)))
        largest = int(max(m.books[slot].largest * m.books[slot].micro for m in self.makes if slot in m.books))
        if largest == grain and (whole := sum(a // grain for a in amounts if a % grain == 0)) > 0:
            found.append((self._whole[slot], self._whole[slot].register(whole)))
        return found

    def able(self, demand: Demand) -> int:
        """The supporting agents that could serve a demand if they held nothing else."""
        if demand.able is None:
            found = 0
            for (make, reserved), mask in self._kept.items():
                if mask & demand.supporting and make.refusal(demand.wishes, reserved) is None:
                    found |= mask & demand.supporting
            if self._room is not None:
                limits = (a.view.kernel_limit for a in self.agents)
                tight = [r for r, limit in enumerate(limits) if limit is not None and limit < len(demand.wishes)]
                found &= ~mask_of(tight, self.size)
            demand.able = found
        return demand.able

    # ---- taking

    def take(self, rank: int, demand: Demand, kernel_ids: Sequence[KernelId]) -> tuple[DeviceAllocation, ...] | None:
        """The devices of each kernel; None, with nothing taken, if the agent refuses."""
        agent = self.agents[rank]
        done: list[DeviceAllocation] = []
        for index, amount in demand.ranked:
            if index.free[rank] < amount:
                demand.refused |= 1 << rank
                return None
        try:
            for kernel_id, recipe in zip(kernel_ids, demand.recipes[agent.make], strict=True):
                done.append(agent.take(kernel_id, recipe))
        except REFUSALS:
            for kernel_id in kernel_ids[: len(done)]:
                agent.give_back(kernel_id)
            demand.refused |= 1 << rank
            return None
        self._changed(rank, demand.order)
        self.cursor = rank
        return tuple(done)

    def undo(self, rank: int, kernel_ids: Iterable[KernelId], demands: Iterable[Demand]) -> None:
        """Give back what was taken a moment ago; only these demands were tried since."""
        agent = self.agents[rank]
        for kernel_id in kernel_ids:
            agent.give_back(kernel_id)
        self._changed(rank, agent.books)
        for demand in demands:
            demand.refused &= ~(1 << rank)

    def release(self, rank: int, kernel_id: KernelId) -> None:
        """A kernel that an agent held is over."""
        self.agents[rank].give_back(kernel_id)
        self._changed(rank, self.agents[rank].books)
        self._gained(1 << rank)

    def _gained(self, scope: int) -> None:
        for demand in self._demands.values():
            demand.refused &= ~scope

    def renew(self, snapshot: Snapshot) -> bool:
        """The same agents at another moment: hold what it says. Returns :attr:`is_exact`."""
        self._snapshot = snapshot
        if "usual" in vars(self):
            del self.usual
            for demand in self._demands.values():
                demand.gradient = None
        gained = 0
        for view in snapshot.agents:
            rank = self.ranks.get(view.agent_id)
            if rank is None:
                continue
            agent = self.agents[rank]
            gone, new = agent.differs({held.kernel_id: held for held in view.held})
            if not gone and not new and (agent.is_settled or not agent.view.reserved):
                continue
            agent.unreserve()
            for kernel_id in gone:
                agent.give_back(kernel_id)
            for held in new:
                agent.adopt(held)
            agent.reserve()
            self._changed(rank, agent.books)
            gained |= 1 << rank
        self._gained(gained)
        return self.is_exact

    @property
    def is_exact(self) -> bool:
        """Whether everything that the agents hold is counted in full."""
        return all(agent.is_exact for agent in self.agents)

    def _changed(self, rank: int, slots: Iterable[str]) -> None:
        agent = self.agents[rank]
        agent.version += 1
        if len(self.changes) >= self._most_changes:
            self.changes.clear()
            for demand in self._demands.values():
                demand.gradient = None
        self.changes.append(rank)
        books, grain = agent.books, self._grain
        for slot in slots if not agent.make.hides else books:
            if book := books.get(slot):
                self.indexes[slot].change(rank, int(book.total_free * book.micro))
                if slot in grain:
                    self._largest[slot].change(rank, book.most_micro)
                    self._whole[slot].change(rank, book.whole)
        for vectors in self._vectors_of[agent.make]:
            vectors.change(rank)
        if self._room is not None and (room := agent.room) is not None:
            self._room.change(rank, room)

    # ---- reading

    def members(self, mask: int) -> list[AgentState]:
        return [self.agents[rank] for rank in members(mask)]

    def with_room(self, scope: int, kernels: int) -> int:
        """The agents of a mask that may hold so many more kernels."""
        return scope if self._room is None else scope & self._room.at_least(kernels)

    def closest(self, demand: Demand, scope: int) -> int:
        """The agent of a mask that lacks least: of the scarcest slot, then of the next one; the first of equals.

        While nobody else is put on it, what it lacks never grows; so the least lack never grows either.
        """
        for index, amount in demand.ranked:
            scope = scope & index.at_least(amount) or index.emptiest(scope)
        if self._room is not None:
            scope = self.with_room(scope, len(demand.wishes)) or self._room.emptiest(scope)
        return (scope & -scope).bit_length() - 1
