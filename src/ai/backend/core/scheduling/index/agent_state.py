"""What-if state of one agent during a decision, and what agents of one make have in common."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cached_property

from ai.backend.common.devices import DeviceAllocation, DeviceHealth, VariantProperty
from ai.backend.common.errors import BackendError, InvalidQuantity, ResourceError, UnsupportedResource
from ai.backend.common.ids import AgentId, KernelId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices, PreparedRequest, without_placeholders
from ai.backend.core.allocation.slot_pool import SlotPool
from ai.backend.core.scheduling.snapshot import AgentView, HeldKernel

#: What an allocator raises where a request cannot be served.
REFUSALS = (ResourceError, InvalidQuantity)
Wish = tuple[ResourceSlot, tuple[VariantProperty, ...]]
"""What one kernel asks of an allocator."""
_MAX_MEMO = 4096


class NodeClass:
    """What agents with equal devices have in common: an empty allocator, and what it answered."""

    def __init__(self, plugins: tuple[PluginDevices, ...], order: tuple[str, ...], makes: NodeClassCache) -> None:
        """Raises InvalidAllocation or InvalidInput for devices that contradict each other."""
        self._makes = makes
        self.plugins = plugins
        self.order = order
        self.empty = NodeAllocator.from_devices(plugins, order=order)
        self.empty.remember()
        self.totals = self.empty.totals
        self.books = self.empty.books()
        self.kinds = frozenset(slot for slot, total in self.totals.items() if total)
        self.shared = frozenset(
            s.slot_name
            for p in plugins
            for d in p.devices
            for s in d.slots
            if p.alloc_map and p.alloc_map.kind == "fractional"
        )
        """Slots of which a device can give a part."""
        self.hides = any(s.exclusive_group is not None for p in plugins for d in p.devices for s in d.slots)
        """Whether taking of one slot can change what is free of another."""
        self.has_pools = any(p.alloc_map is None for p in plugins)
        """Whether an allocation can name devices that the agent will choose."""
        self._recipes: dict[Hashable, PreparedRequest | None] = {}
        self._refusals: dict[Hashable, BackendError | None] = {}

    def recipe(self, wish: Wish) -> PreparedRequest | None:
        """How to ask for it; None if it has no such slots or devices at all, free or not, healthy or not."""
        if wish not in self._recipes:
            if len(self._recipes) >= _MAX_MEMO:
                self._recipes.clear()
            try:
                self._recipes[wish] = self.empty.prepare(*wish)
            except UnsupportedResource:
                self._recipes[wish] = None
        return self._recipes[wish]

    def refusal(self, wishes: tuple[Wish, ...], reserved: ResourceSlot) -> BackendError | None:
        """Why an empty agent that keeps ``reserved`` could not hold all of these; None if it could."""
        key = wishes, reserved
        if key not in self._refusals:
            if len(self._refusals) >= _MAX_MEMO:
                self._refusals.clear()
            self._refusals[key] = None
            allocator = self.without(reserved)
            try:
                for slots, requirements in wishes:
                    allocator.allocate(slots, requirements=requirements)
            except REFUSALS as e:
                self._refusals[key] = e
        return self._refusals[key]

    def without(self, reserved: ResourceSlot) -> NodeAllocator:
        """An empty allocator that keeps so much from everybody."""
        allocator = self.empty.clone()
        allocator.adopt(reserved, DeviceAllocation())
        return allocator

    @cached_property
    def mended(self) -> NodeClass:
        """The same with every device healthy; itself if no device has failed."""
        plugins = tuple(
            replace(p, devices=tuple(replace(d, health=DeviceHealth.HEALTHY) for d in p.devices)) for p in self.plugins
        )
        return self if plugins == self.plugins else self._makes.make_of(plugins, self.order)


_MAX_MAKES = 8192


class NodeClassCache:
    """Remembers the makes that decisions have met, with what was found out about them.

    Whoever decides again and again owns one: equal devices are one make, in all decisions that share the cache.
    """

    def __init__(self) -> None:
        self._by_identity: dict[tuple[int, tuple[str, ...]], NodeClass] = {}
        self._by_outline: dict[Hashable, list[NodeClass]] = {}

    def make_of(self, plugins: tuple[PluginDevices, ...], order: tuple[str, ...]) -> NodeClass:
        """Return the make of agents with these devices.

        Raises:
            InvalidAllocation, InvalidInput: the devices contradict each other.
        """
        key = id(plugins), order
        make = self._by_identity.get(key)
        if make is not None and make.plugins is plugins:
            return make
        outline = order, tuple((p.name, p.alloc_map, len(p.devices)) for p in plugins)
        makes = self._by_outline.setdefault(outline, [])
        make = next((make for make in makes if make.plugins == plugins), None)
        if make is None:
            make = NodeClass(plugins, order, self)
            makes.append(make)
            self._by_identity[key] = make
            if len(self._by_identity) > _MAX_MAKES:
                self._by_identity.clear()
                self._by_outline.clear()
        return make


class AgentState:
    """An agent whose allocator a decision may change and undo.

    The allocator is made when it is first needed: until then the agent is as empty as its make.
    """

    def __init__(self, view: AgentView, make: NodeClass) -> None:
        self.view = view
        self.agent_id: AgentId = view.agent_id
        self.make = make
        self.count = 0
        self.is_exact = True
        """Whether everything that it holds is counted in full; what is beyond its devices is not."""
        self.version = 0
        """Grows with every change of what is free."""
        self.books: Mapping[str, SlotPool] = make.books
        self._allocator: NodeAllocator | None = None
        self._held: dict[KernelId, DeviceAllocation] = {}
        self._told: dict[KernelId, HeldKernel] = {}
        self._reserve = DeviceAllocation()
        self.is_settled = True
        """Whether what kernels hold is the same as when :meth:`reserve` was called."""
        for held in view.held:
            self.adopt(held)
        self.reserve()

    @property
    def allocator(self) -> NodeAllocator:
        if self._allocator is None:
            self._allocator = self.make.empty.clone()
            self.books = self._allocator.books()
        return self._allocator

    @property
    def totals(self) -> ResourceSlot:
        return self.make.totals

    @property
    def offered(self) -> ResourceSlot:
        """The totals without what it keeps for itself."""
        return self.totals - self.view.reserved

    @property
    def available(self) -> ResourceSlot:
        return self.make.totals if self._allocator is None else self._allocator.available()

    @property
    def held(self) -> Mapping[KernelId, DeviceAllocation]:
        """What each of its kernels has taken here."""
        return self._held

    @property
    def room(self) -> int | None:
        """How many more kernels it may hold; None for any number."""
        return None if self.view.kernel_limit is None else max(0, self.view.kernel_limit - self.count)

    def take(self, kernel_id: KernelId, recipe: PreparedRequest) -> DeviceAllocation:
        """Raises one of :data:`REFUSALS`; then nothing has changed."""
        allocation = self.allocator.take(recipe)
        self._held[kernel_id] = allocation
        self.is_settled = False
        self.count += 1
        return allocation

    def adopt(self, held: HeldKernel) -> None:
        """Count a kernel that somebody else placed, as well as the devices allow."""
        taken = self._held[held.kernel_id] = self.allocator.adopt(held.slots, held.devices)
        self._told[held.kernel_id] = held
        self.is_settled = False
        self.count += 1
        self.is_exact = self.is_exact and self._counts(taken, held.slots)

    def reserve(self) -> None:
        """Take what the agent keeps for itself, after all kernels: it is of any device, and they have theirs."""
        reserved = self.view.reserved.nonzero()
        if reserved:
            self._reserve = self.allocator.adopt(reserved, DeviceAllocation())
            self.is_exact = self.is_exact and self._counts(self._reserve, reserved)
        self.is_settled = True

    def unreserve(self) -> None:
        """Give that back until :meth:`reserve`."""
        if self._reserve.slots:
            self.allocator.free(self._reserve)
            self._reserve = DeviceAllocation()

    def _counts(self, taken: DeviceAllocation, held: ResourceSlot) -> bool:
        """Whether so much is taken, of the slots that there are."""
        return all(
            sum(taken.slots.get(SlotName(slot), {}).values()) == amount
            for slot, amount in held.nonzero().items()
            if slot in self.make.totals
        )

    def differs(self, wanted: Mapping[KernelId, HeldKernel]) -> tuple[list[KernelId], list[HeldKernel]]:
        """Which kernels are to be given back, and which to be adopted then, to hold exactly these."""
        gone = [kernel_id for kernel_id in self._held if kernel_id not in wanted]
        new = [held for kernel_id, held in wanted.items() if not self._holds(kernel_id, held)]
        return gone + [held.kernel_id for held in new if held.kernel_id in self._held], new

    def _holds(self, kernel_id: KernelId, held: HeldKernel) -> bool:
        told = self._told.get(kernel_id)
        taken = self._held.get(kernel_id) if told is None else None  # by a plan, which may have come true
        if taken is not None and without_placeholders(taken) == held.devices and self._counts(taken, held.slots):
            told = self._told[kernel_id] = held
        return told is held or told == held

    def give_back(self, kernel_id: KernelId) -> None:
        """Undo :meth:`take`, or end a kernel that was held before."""
        self._told.pop(kernel_id, None)
        self.allocator.free(self._held.pop(kernel_id))
        self.is_settled = False
        self.count -= 1
