"""Stores the devices of this node, their slots, and the allocations of the node's kernels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from types import MappingProxyType

from ai.backend.agent.devices.holdings import ClaimedDevices, Holding, Holdings, split
from ai.backend.agent.devices.kinds import DeviceKind, with_taint
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.devices.queries import PluginQueries, query_devices
from ai.backend.agent.devices.whole_devices import WholeDevices, with_partitions_counted
from ai.backend.common.devices import (
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    VariantProperty,
)
from ai.backend.common.errors import (
    BackendError,
    InsufficientResource,
    InvalidAllocation,
    PluginError,
    UnsupportedResource,
)
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.slots import ResourceSlot, format_quantity
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import UnhealthyDevice
from ai.backend.core.allocation.alloc_map import AbstractAllocMap
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices
from ai.backend.core.allocation.requests.compiled import RequestCompiler
from ai.backend.core.allocation.sharing import is_shareable
from ai.backend.core.allocation.stock_maps import build_alloc_map
from ai.backend.plugin.accelerator import AbstractComputePlugin, DeviceHealthChange, slot_totals
from ai.backend.plugin.sysfs.tree import Tree
from ai.backend.pluginhost import Allocate, ExternalAllocMap, allocator
from ai.backend.pluginhost.handle import PluginHandle
from ai.backend.pluginhost.health import DeviceHealthTracker

log = logging.getLogger(__name__)
INTRINSIC = frozenset({"cpu", "mem"})
"""The names of devices whose slots only the intrinsic plugins may offer, even if these plugins are blocked."""
_LOST_REASON = "its plugin lists it no more"
KEPT_PARTITION_S = 60.0
"""The seconds for which a partition is left alone after its plugin refused to join it."""


async def _allocate_function_of(plugin: AbstractComputePlugin) -> Allocate:
    alloc_map = await plugin.create_alloc_map()
    return alloc_map.choose if isinstance(alloc_map, ExternalAllocMap) else allocator(alloc_map)


def _raise_unavailable(*_: object) -> DeviceAllocation:
    raise InsufficientResource("the plugin's alloc map is not available")


class Inventory:
    """Stores the devices of each plugin and the allocations of live kernels.

    ``generation`` grows with every change of devices, their health or their slots, also over restarts of the agent.
    """

    def __init__(
        self,
        plugins: PluginSet,
        epoch: int,
        *,
        cut_on_demand: Collection[str] = (),
        whole_devices: WholeDevices | None = None,
        tree: Tree | None = None,
    ) -> None:
        """Makes an inventory that has no devices until the first refresh.

        ``cut_on_demand``: the plugins whose devices are offered by the partitions that they can be cut into. ``tree``:
        sysfs.
        """
        self._plugins = plugins
        self._whole_devices = whole_devices if whole_devices is not None else WholeDevices()
        self._kept_partitions: dict[tuple[str, DeviceId], float] = {}
        self.cut_on_demand = frozenset(cut_on_demand)
        self.generation = epoch << 20
        self.kinds: dict[str, DeviceKind] = {}
        self._health: dict[str, DeviceHealthTracker] = {}
        self._reason_of_withheld: dict[tuple[str, DeviceId], str] = {}
        self._reason_of_cordoned: Mapping[tuple[str, DeviceId], str] = {}
        self._taint_of_device: Mapping[tuple[str, DeviceId], str] = {}
        self._reason_of_uncounted: dict[tuple[str, DeviceId], str] = {}
        self._allocator = NodeAllocator({})
        self._request_compiler = RequestCompiler()
        self._holdings = Holdings()
        self._offering_keys: frozenset[str] = frozenset()
        self._built_devices: dict[str, tuple[ComputeDevice, ...]] = {}
        self._queries = PluginQueries(
            partial(
                query_devices,
                other_owner_of=self._other_owner_of,
                cut_on_demand=self.cut_on_demand,
                tree=tree if tree is not None else Tree(),
            ),
            apply=self._apply,
            apply_info=self._apply_info,
            finish=self._finish_refresh,
            report=self._report_change,
        )
        self._failed_ids: dict[str, frozenset[DeviceId]] = {}
        self.failed: Callable[[str, DeviceId], None] = lambda plugin_key, device_id: None
        """Called for each device that fails, by itself and not by an administrator."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the answer of a slow plugin has changed devices or slots, and when versions have changed."""

    async def refresh(self, now: float) -> bool:
        """Queries every plugin; returns True if any device or slot changed. A failed plugin keeps its last devices.

        The answer of a slow plugin is applied when it comes, and then ``changed`` is called.
        """
        async with self._queries.lock:
            await self._plugins.start(now)
            handles = self._plugins.started()
            is_changed = await self._queries.ask_devices(handles, lambda: self._plugins.handles)
            offering_keys = frozenset(handle.key for handle in self._plugins.started())
            is_changed, self._offering_keys = is_changed or offering_keys != self._offering_keys, offering_keys
            await self._finish_refresh(is_changed)
            await self._queries.ask_info([handle for handle in handles if handle.key in self.kinds])
            return is_changed

    async def _finish_refresh(self, is_changed: bool) -> None:
        if is_changed or self.is_stale:
            await self.rebuild()
        if is_changed:
            self.generation += 1

    def _report_change(self) -> None:
        self.changed()

    def holders_of(self, plugin_key: str) -> list[str]:
        """Returns the kernels that hold devices of a plugin."""
        return [kernel_id for kernel_id in self._holdings.of_kernel if self.holding_of(kernel_id, plugin_key).slots]

    def forget(self, plugin_key: str) -> None:
        """Drops the devices of a plugin that has been removed; the next refresh reports it."""
        self.kinds.pop(plugin_key, None)

    async def close(self) -> None:
        """Cancels queries that have not been answered."""
        await self._queries.close()

    @property
    def is_stale(self) -> bool:
        """Returns True if devices have changed since the alloc maps were built, so that a rebuild is due."""
        return self._built_devices != {key: kind.devices for key, kind in self.kinds.items()}

    def _apply(self, handle: PluginHandle, query: asyncio.Task[DeviceKind]) -> bool:
        """Stores the answer of a plugin. Returns True if the plugin's devices or slots changed."""
        if query.cancelled() or isinstance(query.exception(), BackendError):
            log.debug("the inventory of %s is not renewed: %s", handle.key, query)
            return False
        kind = query.result()
        # Two plugins may have answered at the same time: the first in allocation order keeps a slot of both.
        for slot_name in sorted(kind.slot_names):
            if (owner_key := self.owner_of(slot_name)) not in (None, handle.key):
                handle.complain("list_devices", f"list_devices: {slot_name} belongs to the plugin {owner_key}")
                return False
        old_kind = self.kinds.get(handle.key)
        if old_kind is not None:
            kind.info = old_kind.info
            if lost_device_ids := self._lost_devices(old_kind, kind):
                return self._keep_lost_devices(handle, old_kind, kind, lost_device_ids)
        if handle.key in self.cut_on_demand:
            self._whole_devices.update(handle.key, kind.listed_devices)
        self._update_health(handle.key, kind)
        if old_kind is not None and kind == old_kind:
            old_kind.listed_devices, old_kind.queried_at = kind.listed_devices, kind.queried_at
            return False
        self.kinds[handle.key] = kind
        return True

    def _apply_info(self, handle: PluginHandle, info: dict[str, str]) -> None:
        """Stores the versions that a plugin reports of its node."""
        kind = self.kinds.get(handle.key)
        if kind is not None and kind.info != info:
            kind.info = info
            self.changed()

    def _other_owner_of(self, plugin_key: str, slot: str) -> str | None:
        """Returns the other plugin that owns a slot by its name or by an existing offer, or None if no other plugin
        does.
        """
        device_name = slot.partition(".")[0]
        other_plugin_keys = {handle.key for handle in self._plugins.handles if handle.key != plugin_key} | (
            INTRINSIC - {plugin_key}
        )
        if device_name in other_plugin_keys:
            return device_name
        owner_key = self.owner_of(slot)
        return owner_key if owner_key != plugin_key else None

    def _lost_devices(self, old_kind: DeviceKind, new_kind: DeviceKind) -> frozenset[DeviceId]:
        """Returns the devices that kernels hold and that the plugin does not list any more."""
        removed_devices = {device.device_id: device for device in old_kind.listed_devices}
        for device in new_kind.listed_devices:
            removed_devices.pop(device.device_id, None)
        held_slots = [holding.allocation.slots for _, holding in self._holdings.all()] if removed_devices else []
        return frozenset(
            device.device_id
            for device in removed_devices.values()
            if any(device.device_id in slots.get(slot.slot_name, ()) for slots in held_slots for slot in device.slots)
        )

    def _keep_lost_devices(
        self, handle: PluginHandle, old_kind: DeviceKind, new_kind: DeviceKind, lost_device_ids: frozenset[DeviceId]
    ) -> bool:
        """Keeps the old devices and marks lost devices as failed: ids must not change under a workload.

        The other devices have the health of the new answer.
        """
        id_text = ", ".join(sorted(lost_device_ids)[:3])
        handle.complain("list_devices", f"list_devices: {id_text:.200} is listed no more, and a kernel holds it")
        previous_devices = old_kind.devices
        listed_devices = {device.device_id: device for device in new_kind.listed_devices}
        old_kind.listed_devices = tuple(
            replace(device, health=DeviceHealth.UNHEALTHY, health_reason=_LOST_REASON)
            if (listed_device := listed_devices.get(device.device_id)) is None
            else replace(device, health=listed_device.health, health_reason=listed_device.health_reason)
            for device in old_kind.listed_devices
        )
        old_kind.queried_at = new_kind.queried_at
        self._update_health(handle.key, old_kind)
        return old_kind.devices != previous_devices

    def _update_health(self, plugin_key: str, kind: DeviceKind) -> None:
        """Sets the health of a plugin's devices by its last list and by later changes, and recomputes the slots."""
        tracker = self._health.setdefault(plugin_key, DeviceHealthTracker())
        tracker.retain(device.device_id for device in kind.listed_devices)
        reason_of_excluded = {**self._reason_of_uncounted, **self._reason_of_withheld}
        kind.devices_with_health = tuple(
            device
            if (taint := _value_of_device_or_parent(self._taint_of_device, plugin_key, device)) is None
            else with_taint(device, taint)
            for device in tracker.evaluate(kind.listed_devices, kind.queried_at, asyncio.get_running_loop().time())
        )
        kind.devices = tuple(
            device
            if (
                reason := reason_of_excluded.get((plugin_key, device.device_id))
                or _value_of_device_or_parent(self._reason_of_cordoned, plugin_key, device)
            )
            is None
            else replace(device, health=DeviceHealth.UNHEALTHY, health_reason=reason)
            for device in kind.devices_with_health
        )
        if plugin_key in self.cut_on_demand:
            is_joinable = partial(self._is_held_or_joinable, plugin_key, kind.slot_names)
            kind.devices = with_partitions_counted(kind.devices, self._whole_devices.of(plugin_key), is_joinable)
        kind.slots = {**kind.slots, **slot_totals(kind.devices)}
        failed_ids = frozenset(d.device_id for d in kind.devices_with_health if d.health is not DeviceHealth.HEALTHY)
        new_ids, self._failed_ids[plugin_key] = failed_ids - self._failed_ids.get(plugin_key, frozenset()), failed_ids
        for device_id in sorted(new_ids):
            self.failed(plugin_key, device_id)

    def _is_held_or_joinable(self, plugin_key: str, slot_names: Collection[SlotName], device: ComputeDevice) -> bool:
        return self._is_idle(plugin_key, device) or bool(self._holders_of([device.device_id], slot_names))

    def _is_idle(self, plugin_key: str, device: ComputeDevice) -> bool:
        """Returns True if a partition may be joined with its device as soon as no kernel holds the partition.

        A partition that is unhealthy, tainted or refused by its plugin may not, because somebody works on it or will
        inspect it.
        """
        key = plugin_key, device.device_id
        return (
            device.health is DeviceHealth.HEALTHY
            and key not in self._taint_of_device
            and self._kept_partitions.get(key, 0.0) <= asyncio.get_running_loop().time()
        )

    def is_idle_partition(self, plugin_key: str, device: ComputeDevice) -> bool:
        """Returns True for a partition that no kernel holds and that may be joined."""
        exclusion_reasons = (self._reason_of_uncounted, self._reason_of_cordoned, self._reason_of_withheld)
        return (
            not any((plugin_key, device.device_id) in reasons for reasons in exclusion_reasons)
            and self._is_idle(plugin_key, device)
            and not self._holders_of([device.device_id], self.kinds[plugin_key].slot_names)
        )

    def keep_partition(self, plugin_key: str, partition_id: DeviceId) -> None:
        """Prevents for a while that a partition is joined, since its plugin refuses to join it.

        The partition counts as a device of its own meanwhile.
        """
        now = asyncio.get_running_loop().time()
        self._kept_partitions = {key: until for key, until in self._kept_partitions.items() if until > now}
        self._kept_partitions[plugin_key, partition_id] = now + KEPT_PARTITION_S
        self.on_health_changes(plugin_key)

    def on_health_changes(self, plugin_key: str, changes: Iterable[DeviceHealthChange] = ()) -> bool:
        """Applies health changes and due recoveries of devices; after True, :meth:`rebuild` must follow."""
        kind, now = self.kinds.get(plugin_key), asyncio.get_running_loop().time()
        if kind is None:
            return False
        listed_ids = {device.device_id for device in kind.listed_devices}
        for change in changes:
            if change.device_id in listed_ids:
                self._health[plugin_key].on_change(change, now)
        previous_devices = kind.devices
        self._update_health(plugin_key, kind)
        if kind.devices == previous_devices:
            return False
        self.generation += 1
        return True

    def set_cordons(
        self, reasons: Mapping[tuple[str, DeviceId], str], taints: Mapping[tuple[str, DeviceId], str]
    ) -> None:
        """Replaces the cordons and the taints of all devices by ``reasons`` and ``taints``.

        A cordoned device is excluded from allocation. Both hold for the partitions of a device too. :meth:`rebuild`
        must follow.
        """
        changed_keys = {key for key, _ in reasons.items() ^ self._reason_of_cordoned.items()}
        changed_keys |= {key for key, _ in taints.items() ^ self._taint_of_device.items()}
        self._reason_of_cordoned, self._taint_of_device = dict(reasons), dict(taints)
        for plugin_key in {key for key, _ in changed_keys}:
            self.on_health_changes(plugin_key)

    def withhold(self, plugin_key: str, device_id: DeviceId, reason: str) -> None:
        """Excludes a device from allocation until :meth:`restore`. :meth:`rebuild` must follow."""
        self._reason_of_withheld[plugin_key, device_id] = reason
        self.on_health_changes(plugin_key)

    def restore(self, plugin_key: str, device_id: DeviceId) -> None:
        """Returns a withheld device to allocation. :meth:`rebuild` must follow."""
        self._reason_of_withheld.pop((plugin_key, device_id), None)
        self.on_health_changes(plugin_key)

    def holders(self, plugin_key: str, device_id: DeviceId) -> list[str]:
        """Returns the kernels that hold a device of a plugin, or hold a partition that is counted at this device."""
        kind = self.kinds[plugin_key]
        partition_ids = next((d.partition_ids for d in kind.devices if d.device_id == device_id), ())
        return self._holders_of([device_id, *partition_ids], kind.slot_names)

    def _holders_of(self, device_ids: Collection[DeviceId], slot_names: Collection[SlotName]) -> list[str]:
        return [
            kernel_id
            for kernel_id in self._holdings.of_kernel
            if any(
                not devices.keys().isdisjoint(device_ids)
                for slot, devices in self.holding(kernel_id).slots.items()
                if slot in slot_names
            )
        ]

    def next_recovery_at(self) -> float | None:
        """Returns the time at which the next device may recover, in seconds of the monotonic clock."""
        return min((due_at for tracker in self._health.values() if (due_at := tracker.due()) is not None), default=None)

    def may_change_at(self, plugin_key: str, now: float) -> bool:
        """Returns True if the devices that a plugin offers may have changed by the passage of time alone.

        A device may be due to recover, and a partition counts by what kernels hold and by how long it is kept.
        """
        tracker = self._health.get(plugin_key)
        due_at = tracker.due() if tracker is not None else now
        return plugin_key in self.cut_on_demand or (due_at is not None and due_at <= now)

    def unhealthy_devices(self, kernel_id: str) -> list[UnhealthyDevice]:
        """Returns the failed devices that a kernel holds, in a stable order."""
        held_slots = self.holding(kernel_id).slots
        return [
            UnhealthyDevice(device_name=key, device_id=device.device_id, reason=device.health_reason[:500])
            for key, kind in sorted(self.kinds.items())
            for device in kind.devices_with_health
            if device.health is not DeviceHealth.HEALTHY
            and any(device.device_id in held_slots.get(slot.slot_name, ()) for slot in device.slots)
        ]

    async def rebuild(self) -> None:
        """Builds the alloc maps anew from the present devices and the allocations of kernels."""
        allocate_of_plugin: dict[str, Allocate] = {}
        for key in [key for key, kind in self.kinds.items() if kind.alloc_map_spec is None]:
            try:
                allocate_of_plugin[key] = await self._plugins.get(key).call("create_alloc_map", _allocate_function_of)
            except BackendError as e:
                allocate_of_plugin[key] = _raise_unavailable
                log.warning("nothing of %s can be allocated: %s", key, e)
        # No await from here on: an allocation made meanwhile would be missing from the new maps.
        alloc_map_of_plugin: dict[str, AbstractAllocMap] = {}
        for key, kind in self.kinds.items():
            try:
                if kind.alloc_map_spec is not None:
                    alloc_map_of_plugin[key] = build_alloc_map(kind.alloc_map_spec, kind.devices)
                else:
                    complain = partial(self._complain, key)
                    alloc_map_of_plugin[key] = ExternalAllocMap(
                        kind.devices, allocate_of_plugin.get(key, _raise_unavailable), complain=complain
                    )
            except BackendError as e:
                log.error("nothing of %s can be allocated: %s", key, e)
        self._allocator = NodeAllocator(alloc_map_of_plugin, order=self._plugins.order)
        for key in alloc_map_of_plugin:
            self._allocator.record_devices(key, self.kinds[key].devices, self.kinds[key].namespaces)
        for holdings in (self._holdings.of_kernel, self._holdings.of_claim):
            for holder_key, holding in holdings.items():
                holdings[holder_key] = self._count_allocation(holder_key, holding.allocation)
        self._built_devices = {key: kind.devices for key, kind in self.kinds.items()}
        self._update_uncounted()

    def _update_uncounted(self) -> None:
        """Excludes from allocation each device of which a kernel holds more than the device offers now."""
        reason_of_uncounted: dict[tuple[str, DeviceId], str] = {}
        for kernel_id, holding in self._holdings.all():
            for slot, quantities in holding.allocation.slots.items():
                taken_amounts = holding.taken_devices.slots.get(slot, {})
                for device_id, quantity in quantities.items():
                    for key in self._owners_of_held(slot) if taken_amounts.get(device_id, 0) < quantity else ():
                        reason = f"the kernel {kernel_id} holds {format_quantity(quantity)} {slot} of it"
                        reason_of_uncounted[key, device_id] = f"{reason}, which it does not offer now"
        changed_keys = {key for (key, _), _ in reason_of_uncounted.items() ^ self._reason_of_uncounted.items()}
        self._reason_of_uncounted = reason_of_uncounted
        for key in changed_keys:
            self.on_health_changes(key)

    def _owners_of_held(self, slot: str) -> list[str]:
        """Returns the keys of the plugins that may own the devices of a slot that a kernel holds.

        The kernel may be from before a restart.
        """
        device_name = slot.partition(".")[0]
        plugin_keys = [
            key
            for key, kind in self.kinds.items()
            if device_name == key or any(name.partition(".")[0] == device_name for name in kind.slot_names)
        ]
        return plugin_keys or [
            handle.key for handle in self._plugins.handles if handle.key in self.kinds and not handle.key_is_slot_prefix
        ]

    def _complain(self, plugin_key: str, reason: str | None) -> None:
        for handle in self._plugins.started():
            if handle.key == plugin_key:
                handle.complain("allocate", reason)

    def _count_allocation(self, kernel_id: str, allocation: DeviceAllocation) -> Holding:
        held_slots = ResourceSlot({slot: allocation.total(slot) for slot in allocation.slots})
        taken_devices = self._allocator.adopt(held_slots, allocation)
        if taken_devices.slots != allocation.slots:
            log.warning("kernel %s holds more than the present devices have; what is missing is not counted", kernel_id)
        return Holding(allocation, taken_devices)

    def owner_of(self, slot: str) -> str | None:
        """Returns the plugin that offers a slot, if there is one."""
        name = SlotName(slot)
        return next((key for key, kind in self.kinds.items() if name in kind.slots or name in kind.slot_names), None)

    def check_supported(self, slots: ResourceSlot, agent_id: str) -> None:
        """Checks that a plugin offers every slot that is not zero (spec 01).

        Raises UnsupportedResource, and InsufficientResource while a plugin that may offer the slot is started again.
        """
        for slot in slots.nonzero():
            if self.owner_of(slot) is None:
                for handle in self._plugins.handles:
                    if handle.may_return and (not handle.version or slot.partition(".")[0] == handle.key):
                        raise InsufficientResource(f"{slot}: the plugin {handle.key} is not available: {handle.reason}")
                raise UnsupportedResource(
                    f"the agent {agent_id} has no resource slot {slot}", data={"slot": slot, "agent": agent_id}
                )

    def bind(
        self,
        kernel_id: str,
        slots: ResourceSlot,
        plan: DeviceAllocation,
        plan_generation: int,
        requirements: Sequence[VariantProperty] = (),
        device_requests: Sequence[str] = (),
        *,
        claim: ClaimedDevices | None = None,
        devices_of_claims: Mapping[str, DeviceAllocation] = MappingProxyType({}),
    ) -> None:
        """Allocates the planned devices to a kernel, or equivalent ones if the inventory has changed since the plan.

        Args:
            claim: the kernel's device claim. Devices that it has already are taken as they are.
            devices_of_claims: the devices of the node's claims, by claim; those of other claims are not allocated.

        Raises:
            InvalidAllocation: the plan is of the present inventory and impossible, or does not match the request.
            InsufficientResource, NotMultipleOfQuantum: the request is impossible, or a plugin is not available.
        """
        if kernel_id in self._holdings.of_kernel:
            return
        self._check_available(slots)
        own_claim_id = claim.claim_id if claim is not None else None
        reserved_allocations = [
            self._reserve(allocation)
            for claim_id, allocation in devices_of_claims.items()
            if claim_id != own_claim_id and claim_id not in self._holdings.of_claim
        ]
        try:
            if claim is not None and (bound_devices := self._bound_of(claim)) is not None:
                holding = self._claim_holding(claim.claim_id, bound_devices)
                own_slots = ResourceSlot({slot: amount for slot, amount in slots.items() if slot not in claim.slots})
                own_plan, _ = split(plan, claim.slots)
                try:
                    allocation = self._allocate(own_slots, own_plan, plan_generation, requirements, ())
                except BaseException:
                    if claim.claim_id not in self._holdings.of_claim:
                        self._allocator.free(holding.taken_devices)
                    raise
                self._holdings.of_claim[claim.claim_id] = holding
            else:
                allocation = self._allocate(slots, plan, plan_generation, requirements, device_requests)
                if claim is not None:
                    allocation, claimed_devices = split(allocation, claim.slots)
                    self._holdings.of_claim[claim.claim_id] = Holding(claimed_devices, claimed_devices)
        finally:
            for reserved_allocation in reserved_allocations:
                self._allocator.free(reserved_allocation)
        if claim is not None:
            self._holdings.claim_of_kernel[kernel_id] = claim.claim_id
        self._holdings.of_kernel[kernel_id] = Holding(allocation, allocation)

    def _reserve(self, allocation: DeviceAllocation) -> DeviceAllocation:
        """Takes the present devices of a claim that no kernel holds, and returns the devices that were taken."""
        return self._allocator.adopt(ResourceSlot(), allocation)

    def _bound_of(self, claim: ClaimedDevices) -> DeviceAllocation | None:
        """Returns the devices to which a claim is bound, by the manager or because another kernel holds the claim.
        Returns None for a claim that is not bound.
        """
        holding = self._holdings.of_claim.get(claim.claim_id)
        return claim.bound_devices if claim.bound_devices is not None or holding is None else holding.allocation

    def _claim_holding(self, claim_id: str, bound_devices: DeviceAllocation) -> Holding:
        """Returns the holding of a bound claim, and takes its devices if no other kernel holds the claim yet. Raises
        InsufficientResource if a device is not there, not healthy or taken.
        """
        if unhealthy_ids := bound_devices.device_ids() - self._healthy_ids(bound_devices):
            raise InsufficientResource(f"devices of the claim are missing or have failed: {', '.join(unhealthy_ids)}")
        if (holding := self._holdings.of_claim.get(claim_id)) is not None:
            if holding.allocation.slots != bound_devices.slots:
                raise InsufficientResource("another kernel holds the claim with other devices")
            if not is_shareable(self._plugin_devices(), bound_devices):
                raise InsufficientResource("another kernel holds the claim, whose devices are not shared")
            return holding
        try:
            self._allocator.apply(bound_devices)
        except InvalidAllocation as e:
            raise InsufficientResource(f"devices of the claim are taken: {e.message}") from None
        return Holding(bound_devices, bound_devices)

    def _plugin_devices(self) -> list[PluginDevices]:
        return [
            PluginDevices(name=DeviceName(key), devices=kind.devices, alloc_map=kind.alloc_map_spec)
            for key, kind in self.kinds.items()
        ]

    def _allocate(
        self,
        slots: ResourceSlot,
        plan: DeviceAllocation,
        plan_generation: int,
        requirements: Sequence[VariantProperty],
        device_requests: Sequence[str],
    ) -> DeviceAllocation:
        """Takes the planned devices, or equivalent ones. Raises as :meth:`bind`."""
        missing_ids = plan.device_ids() - self._healthy_ids(plan)
        # A partition that was cut for one kernel may be planned for another before the manager hears of the first.
        is_changing = any(self.owner_of(slot) in self.cut_on_demand for slot in plan.slots)
        if plan_generation == self.generation and not is_changing:
            if missing_ids:
                raise InvalidAllocation(f"planned devices are missing or not healthy: {', '.join(sorted(missing_ids))}")
            allocator_snapshot = self._allocator.snapshot()
            try:
                self._allocator.apply(plan)
            finally:
                self._allocator.restore(allocator_snapshot)
        allocator_snapshot = self._allocator.snapshot()
        allocation = self._allocator.verify_or_rebind(
            slots.nonzero(),
            DeviceAllocation() if missing_ids else plan,
            requirements=requirements,
            device_requests=[self._request_compiler.compile(request_text) for request_text in device_requests],
        )
        if failed_ids := allocation.device_ids() - self._healthy_ids(allocation):
            # A plugin's own map may be older than the last health changes.
            self._allocator.restore(allocator_snapshot)
            raise InsufficientResource(f"no healthy device is left in place of {', '.join(sorted(failed_ids))}")
        return allocation

    def _check_available(self, slots: ResourceSlot) -> None:
        for slot in slots.nonzero():
            if (owner_key := self.owner_of(slot)) is not None:
                try:
                    self._plugins.get(owner_key)
                except PluginError as e:
                    raise InsufficientResource(f"{slot}: {e.message}", data={"slot": slot}) from None

    def _healthy_ids(self, plan: DeviceAllocation) -> frozenset[str]:
        healthy_ids = set()
        for slot, devices in plan.slots.items():
            kind = self.kinds.get(self.owner_of(slot) or "")
            healthy_offered_ids = {
                device_id
                for device in (kind.devices if kind else ())
                if device.health is DeviceHealth.HEALTHY
                for device_id in (device.device_id, *device.partition_ids)
            }
            healthy_ids |= healthy_offered_ids & devices.keys()
        return frozenset(healthy_ids)

    def adopt(self, kernel_id: str, allocation: DeviceAllocation, claim: ClaimedDevices | None = None) -> None:
        """Records the allocation of a kernel from before the agent's restart.

        The allocation is recorded even if it exceeds the present devices.
        """
        if claim is not None:
            allocation, claimed_devices = split(allocation, claim.slots)
            self._holdings.claim_of_kernel[kernel_id] = claim.claim_id
            if claim.claim_id not in self._holdings.of_claim:
                self._holdings.of_claim[claim.claim_id] = self._count_allocation(claim.claim_id, claimed_devices)
        self._holdings.of_kernel[kernel_id] = self._count_allocation(kernel_id, allocation)
        self._update_uncounted()

    def free(self, kernel_id: str) -> None:
        """Frees the allocation of a kernel, and the allocation of its claim if no other kernel holds the claim."""
        freed_holdings = self._holdings.remove(kernel_id)
        for holding in freed_holdings:
            self._allocator.free(holding.taken_devices)
        if any(holding.taken_devices.slots != holding.allocation.slots for holding in freed_holdings):
            self._update_uncounted()

    def replace_device(self, kernel_id: str, slot_name: SlotName, device_id: DeviceId, partition_id: DeviceId) -> None:
        """Gives a kernel, or its claim, a partition in place of a partition of the device that was not cut yet. A
        kernel that has ended gets nothing. :meth:`rebuild` must follow.
        """
        holdings, holder_key = self._holdings.holder_of(kernel_id, slot_name)
        if (holding := holdings.get(holder_key)) is None:
            return
        slots = {slot: dict(quantities) for slot, quantities in holding.allocation.slots.items()}
        remaining_amount = slots[slot_name].pop(device_id, Decimal(0)) - 1
        if remaining_amount > 0:
            slots[slot_name][device_id] = remaining_amount
        slots[slot_name][partition_id] = Decimal(1)
        holdings[holder_key] = Holding(DeviceAllocation(slots=slots), holding.taken_devices)

    async def change_and_relist(self, handle: PluginHandle, change: Callable[[], Awaitable[None]]) -> None:
        """Changes the devices of a plugin and then lists them again. Other lists of the plugin are ignored meanwhile.

        Raises BackendError, of ``change``; the devices are listed then, too.
        """
        async with self._queries.lock:
            try:
                await change()
            finally:
                if await self._queries.ask_devices_again(handle):
                    self.generation += 1
                await self.rebuild()  # also where only what a kernel holds has changed
        self.changed()

    def holds(self, kernel_id: str) -> bool:
        return kernel_id in self._holdings.of_kernel

    def holding(self, kernel_id: str) -> DeviceAllocation:
        """Returns the allocation of a kernel over all plugins, with the devices of its claim."""
        return self._holdings.allocation(kernel_id)

    def holding_of(self, kernel_id: str, plugin_key: str) -> DeviceAllocation:
        """Returns the part of a kernel's allocation that belongs to one plugin."""
        kind = self.kinds.get(plugin_key)
        slot_names = kind.slot_names if kind is not None else frozenset()
        return DeviceAllocation(
            slots={slot: devices for slot, devices in self.holding(kernel_id).slots.items() if slot in slot_names}
        )


def _value_of_device_or_parent(
    values: Mapping[tuple[str, DeviceId], str], plugin_key: str, device: ComputeDevice
) -> str | None:
    """Returns the value of a device. If there is none, returns the value of the device of which it is a partition."""
    own_value = values.get((plugin_key, device.device_id))
    return (
        own_value if own_value is not None or device.parent_id is None else values.get((plugin_key, device.parent_id))
    )
