"""What-if state of one agent during a decision, and what agents of one make have in common."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cached_property

from ai.backend.common.devices import DeviceAllocation, DeviceHealth, VariantProperty
from ai.backend.common.errors import BackendError, InvalidQuantity, ResourceError, UnsupportedResource
from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.book import SlotBook
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices, Recipe
from ai.backend.core.scheduling.snapshot import AgentView

#: What an allocator raises where a request cannot be served.
REFUSALS = (ResourceError, InvalidQuantity)
Wish = tuple[ResourceSlot, tuple[VariantProperty, ...]]
"""What one kernel asks of an allocator."""
_MAX_MEMO = 4096


class Make:
    """What agents with equal devices have in common: an empty allocator, and what it answered."""

    def __init__(self, plugins: tuple[PluginDevices, ...], order: tuple[str, ...]) -> None:
        """Raises InvalidAllocation or InvalidInput for devices that contradict each other."""
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
        self._recipes: dict[Hashable, Recipe | None] = {}
        self._refusals: dict[Hashable, BackendError | None] = {}

    def recipe(self, wish: Wish) -> Recipe | None:
        """How to ask for it; None if it has no such slots or devices at all, free or not, healthy or not."""
        if wish not in self._recipes:
            if len(self._recipes) >= _MAX_MEMO:
                self._recipes.clear()
            try:
                self._recipes[wish] = self.empty.prepare(*wish)
            except UnsupportedResource:
                self._recipes[wish] = None
        return self._recipes[wish]

    def refusal(self, wishes: tuple[Wish, ...]) -> BackendError | None:
        """Why one empty agent could not hold all of these; None if it could."""
        if wishes not in self._refusals:
            if len(self._refusals) >= _MAX_MEMO:
                self._refusals.clear()
            self._refusals[wishes] = None
            allocator = self.empty.clone()
            try:
                for slots, requirements in wishes:
                    allocator.allocate(slots, requirements=requirements)
            except REFUSALS as e:
                self._refusals[wishes] = e
        return self._refusals[wishes]

    @cached_property
    def mended(self) -> Make:
        """The same with every device healthy; itself if no device has failed."""
        plugins = tuple(
            replace(p, devices=tuple(replace(d, health=DeviceHealth.HEALTHY) for d in p.devices)) for p in self.plugins
        )
        return self if plugins == self.plugins else make_of(plugins, self.order)


_BY_IDENTITY: dict[tuple[int, tuple[str, ...]], Make] = {}
_BY_OUTLINE: dict[Hashable, list[Make]] = {}
_MAX_MAKES = 8192


def make_of(plugins: tuple[PluginDevices, ...], order: tuple[str, ...]) -> Make:
    """The make of agents with these devices. Equal devices are one make; what was found out about it is kept.

    Raises:
        InvalidAllocation, InvalidInput: the devices contradict each other.
    """
    key = id(plugins), order
    found = _BY_IDENTITY.get(key)
    if found is not None and found.plugins is plugins:
        return found
    outline = order, tuple((p.name, p.alloc_map, len(p.devices)) for p in plugins)
    makes = _BY_OUTLINE.setdefault(outline, [])
    found = next((make for make in makes if make.plugins == plugins), None)
    if found is None:
        found = Make(plugins, order)
        makes.append(found)
        _BY_IDENTITY[key] = found
        if len(_BY_IDENTITY) > _MAX_MAKES:
            _BY_IDENTITY.clear()
            _BY_OUTLINE.clear()
    return found


class WorkingAgent:
    """An agent whose allocator a decision may change and undo.

    The allocator is made when it is first needed: until then the agent is as empty as its make.
    """

    def __init__(self, view: AgentView, make: Make) -> None:
        self.view = view
        self.agent_id: AgentId = view.agent_id
        self.make = make
        self.count = len(view.held)
        self.version = 0
        """Grows with every change of what is free."""
        self.books: Mapping[str, SlotBook] = make.books
        self._allocator: NodeAllocator | None = None
        self._held: dict[KernelId, DeviceAllocation] = {}
        for held in view.held:
            self._held[held.kernel_id] = self.allocator.adopt(held.slots, held.devices)

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

    def take(self, kernel_id: KernelId, recipe: Recipe) -> DeviceAllocation:
        """Raises one of :data:`REFUSALS`; then nothing has changed."""
        allocation = self.allocator.take(recipe)
        self._held[kernel_id] = allocation
        self.count += 1
        return allocation

    def give_back(self, kernel_id: KernelId) -> None:
        """Undo :meth:`take`, or end a kernel that was held before."""
        self.allocator.free(self._held.pop(kernel_id))
        self.count -= 1
