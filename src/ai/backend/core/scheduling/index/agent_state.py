"""Tracks the state of one agent during a decision, and shares data among agents with equal devices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property

from ai.backend.common.devices import DeviceAllocation, VariantProperty
from ai.backend.common.errors import BackendError, InvalidQuantity, ResourceError, UnsupportedResource
from ai.backend.common.ids import AgentId, KernelId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices, PreparedRequest, without_placeholders
from ai.backend.core.allocation.proximity import fabric_domains
from ai.backend.core.allocation.requests.compiled import DeviceRequest, RequestCompiler
from ai.backend.core.allocation.slot_pool import SlotPool
from ai.backend.core.allocation.variants import repaired_device
from ai.backend.core.scheduling.index.part_values import PartValueCache
from ai.backend.core.scheduling.snapshot import AgentView, HeldKernel

#: What an allocator raises where a request cannot be served.
REFUSALS = (ResourceError, InvalidQuantity)
KernelRequest = tuple[ResourceSlot, tuple[VariantProperty, ...], DeviceRequest | None, bool]
"""The slots, the variants and the devices that one kernel requests, and whether these are to be near the network."""
_MAX_CACHED_ANSWERS = 4096


def can_allocate(allocator: NodeAllocator, requests: Iterable[KernelRequest]) -> bool:
    """Allocates requests one after the other; returns False if one of them is refused."""
    try:
        for slots, requirements, device_request, _ in requests:
            allocator.allocate(slots, requirements=requirements, device_request=device_request)
    except REFUSALS:
        return False
    return True


class NodeClass:
    """Represents the agents that have equal devices. They share an empty allocator and its cached answers."""

    def __init__(
        self, plugins: tuple[PluginDevices, ...], order: tuple[str, ...], node_classes: NodeClassCache
    ) -> None:
        """Builds the empty allocator. Raises InvalidAllocation or InvalidInput if the devices contradict each other."""
        self._cache = node_classes
        self.plugins = plugins
        self.order = order
        self.empty = NodeAllocator.from_devices(plugins, order=order)
        self.empty.share_grants()
        self.totals = self.empty.totals
        self.pools = self.empty.pools()
        self.kinds = frozenset(slot for slot, total in self.totals.items() if total)
        self.shared = frozenset(
            device_slot.slot_name
            for plugin in plugins
            for device in plugin.devices
            for device_slot in device.slots
            if plugin.alloc_map and plugin.alloc_map.kind == "fractional"
        )
        """The slots of which a device can provide a part."""
        self.hides = any(
            device_slot.exclusive_group is not None
            for plugin in plugins
            for device in plugin.devices
            for device_slot in device.slots
        )
        """True if taking one slot can change what is free of another."""
        self.fabrics = fabric_domains(device for plugin in plugins for device in plugin.devices)
        self.has_pools = any(plugin.alloc_map is None for plugin in plugins)
        """True if an allocation can name devices that the agent will choose."""
        self._prepared: dict[Hashable, PreparedRequest | None] = {}
        self._refusals: dict[Hashable, BackendError | None] = {}

    def prepare(self, request: KernelRequest) -> PreparedRequest | None:
        """Prepares the request of one kernel for the allocators of the class's agents.

        Returns None if the agents never have such slots or devices, free or not, healthy or not.
        """
        if request not in self._prepared:
            if len(self._prepared) >= _MAX_CACHED_ANSWERS:
                self._prepared.clear()
            try:
                slots, requirements, device_request, near_network = request
                self._prepared[request] = self.empty.prepare(
                    slots, requirements, device_request, near_network=near_network
                )
            except UnsupportedResource:
                self._prepared[request] = None
        return self._prepared[request]

    def refusal(self, requests: tuple[KernelRequest, ...], reserved: ResourceSlot) -> BackendError | None:
        """Returns why an empty agent with these reserved slots could not hold all requests.

        Returns None if it could.
        """
        cache_key = requests, reserved
        if cache_key not in self._refusals:
            if len(self._refusals) >= _MAX_CACHED_ANSWERS:
                self._refusals.clear()
            self._refusals[cache_key] = None
            allocator = self.allocator_without(reserved)
            try:
                for slots, requirements, device_request, _ in requests:
                    allocator.allocate(slots, requirements=requirements, device_request=device_request)
            except REFUSALS as e:
                self._refusals[cache_key] = e
        return self._refusals[cache_key]

    def allocator_without(self, reserved: ResourceSlot) -> NodeAllocator:
        """Returns an empty allocator from which the reserved slots are taken."""
        allocator = self.empty.clone()
        allocator.adopt(reserved, DeviceAllocation())
        return allocator

    @cached_property
    def repaired_class(self) -> NodeClass:
        """Returns the same class with every device healthy and untainted.

        Returns itself if no device has failed or is tainted.
        """
        plugins = tuple(
            replace(plugin, devices=tuple(repaired_device(device) for device in plugin.devices))
            for plugin in self.plugins
        )
        return self if plugins == self.plugins else self._cache.get(plugins, self.order)


_MAX_NODE_CLASSES = 8192


class NodeClassCache:
    """Caches node classes and requests. In all decisions that share the cache, equal devices have one node class."""

    def __init__(self) -> None:
        self._by_identity: dict[tuple[int, tuple[str, ...]], NodeClass] = {}
        self._by_outline: dict[Hashable, list[NodeClass]] = {}
        self.request_compiler = RequestCompiler()
        self.part_value_cache = PartValueCache()

    def get(self, plugins: tuple[PluginDevices, ...], order: tuple[str, ...]) -> NodeClass:
        """Returns the class of agents with these devices. Raises InvalidAllocation, InvalidInput."""
        identity_key = id(plugins), order
        node_class = self._by_identity.get(identity_key)
        if node_class is not None and node_class.plugins is plugins:
            return node_class
        outline_key = order, tuple((plugin.name, plugin.alloc_map, len(plugin.devices)) for plugin in plugins)
        node_classes = self._by_outline.setdefault(outline_key, [])
        node_class = next((node_class for node_class in node_classes if node_class.plugins == plugins), None)
        if node_class is None:
            node_class = NodeClass(plugins, order, self)
            node_classes.append(node_class)
            self._by_identity[identity_key] = node_class
            if len(self._by_identity) > _MAX_NODE_CLASSES:
                self._by_identity.clear()
                self._by_outline.clear()
        return node_class


class AgentState:
    """Tracks what one agent has allocated. Its allocator is made lazily: until then it is as empty as its class."""

    def __init__(self, view: AgentView, node_class: NodeClass) -> None:
        self.view = view
        self.agent_id: AgentId = view.agent_id
        self.node_class = node_class
        self.count = 0
        self.is_exact = True
        """True if everything that the agent holds is counted in full; what exceeds its devices is not."""
        self.pools: Mapping[str, SlotPool] = node_class.pools
        self._allocator: NodeAllocator | None = None
        self.held: dict[KernelId, DeviceAllocation] = {}
        """The allocation of each kernel on this agent."""
        self._reported: dict[KernelId, HeldKernel] = {}
        self._reserve = DeviceAllocation()
        self.is_reserve_current = True
        """True if kernels hold the same as when :meth:`reserve` was called."""
        for held_kernel in view.held:
            self.adopt(held_kernel)
        self.reserve()

    @property
    def allocator(self) -> NodeAllocator:
        if self._allocator is None:
            self._allocator = self.node_class.empty.clone()
            self.pools = self._allocator.pools()
        return self._allocator

    @property
    def totals(self) -> ResourceSlot:
        return self.node_class.totals

    @property
    def offered(self) -> ResourceSlot:
        """Returns the agent's total slots minus its reserved slots."""
        return self.totals - self.view.reserved

    @property
    def available(self) -> ResourceSlot:
        return self.node_class.totals if self._allocator is None else self._allocator.available()

    @property
    def room(self) -> int | None:
        """Returns how many more kernels the agent may hold. Returns None if the number is not limited."""
        return None if self.view.kernel_limit is None else max(0, self.view.kernel_limit - self.count)

    def take(self, kernel_id: KernelId, prepared: PreparedRequest) -> DeviceAllocation:
        """Allocates a request. Raises one of :data:`REFUSALS` and then changes nothing."""
        allocation = self.allocator.take(prepared)
        self.held[kernel_id] = allocation
        self.is_reserve_current = False
        self.count += 1
        return allocation

    def adopt(self, kernel: HeldKernel) -> None:
        """Counts a kernel that already runs, as far as the devices allow."""
        allocation = self.held[kernel.kernel_id] = self.allocator.adopt(kernel.slots, kernel.devices)
        self._reported[kernel.kernel_id] = kernel
        self.is_reserve_current = False
        self.count += not kernel.is_claim
        self.is_exact = self.is_exact and self._counts_in_full(allocation, kernel.slots)

    def reserve(self) -> None:
        """Takes the slots that the agent reserves for itself from any device, after all kernels are counted."""
        reserved_slots = self.view.reserved.nonzero()
        if reserved_slots:
            self._reserve = self.allocator.adopt(reserved_slots, DeviceAllocation())
            self.is_exact = self.is_exact and self._counts_in_full(self._reserve, reserved_slots)
        self.is_reserve_current = True

    def unreserve(self) -> None:
        """Makes the slots that the agent reserves for itself available until :meth:`reserve` is called again."""
        if self._reserve.slots:
            self.allocator.free(self._reserve)
            self._reserve = DeviceAllocation()

    def _counts_in_full(self, allocation: DeviceAllocation, held_slots: ResourceSlot) -> bool:
        """Returns True if the allocation covers all that a kernel holds of the slots that the agent has."""
        return all(
            sum(allocation.slots.get(SlotName(slot), {}).values()) == amount
            for slot, amount in held_slots.nonzero().items()
            if slot in self.node_class.totals
        )

    def find_differences(
        self, desired_kernels: Mapping[KernelId, HeldKernel]
    ) -> tuple[list[KernelId], list[HeldKernel]]:
        """Returns the kernels to release and then the kernels to adopt, so that the agent holds exactly the desired
        kernels."""
        removed_ids = [kernel_id for kernel_id in self.held if kernel_id not in desired_kernels]
        new_kernels = [
            held_kernel for kernel_id, held_kernel in desired_kernels.items() if not self._holds(kernel_id, held_kernel)
        ]
        return removed_ids + [
            held_kernel.kernel_id for held_kernel in new_kernels if held_kernel.kernel_id in self.held
        ], new_kernels

    def _holds(self, kernel_id: KernelId, desired_kernel: HeldKernel) -> bool:
        reported_kernel = self._reported.get(kernel_id)
        planned_allocation = (
            self.held.get(kernel_id) if reported_kernel is None else None
        )  # placed by a plan, perhaps carried out
        if (
            planned_allocation is not None
            and without_placeholders(planned_allocation) == desired_kernel.devices
            and self._counts_in_full(planned_allocation, desired_kernel.slots)
        ):
            reported_kernel = self._reported[kernel_id] = desired_kernel
        return reported_kernel is desired_kernel or reported_kernel == desired_kernel

    def release(self, kernel_id: KernelId) -> None:
        """Releases a kernel."""
        reported_kernel = self._reported.pop(kernel_id, None)
        self.allocator.free(self.held.pop(kernel_id))
        self.is_reserve_current = False
        self.count -= reported_kernel is None or not reported_kernel.is_claim
