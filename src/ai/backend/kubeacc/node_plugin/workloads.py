"""Allocates devices to workloads and releases them: runs lifecycle hooks, and stores durably who holds which device."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth
from ai.backend.common.errors import BackendError, Conflict, PluginError, Unavailable
from ai.backend.common.ids import DeviceId, KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.kubeacc.node_plugin.checkpoint import Checkpoint, HeldDevice, PluginShare, WorkloadRecord
from ai.backend.kubeacc.node_plugin.devices import (
    DeviceKey,
    DeviceTracker,
    share_slot,
    sum_allocations,
    whole_allocation,
)
from ai.backend.kubeacc.node_plugin.edits import CdiFiles, check_no_conflict, check_supported
from ai.backend.kubeacc.node_plugin.places import pci_address
from ai.backend.plugin.accelerator import (
    MANAGED_STATE_LIMIT,
    AbstractComputePlugin,
    HookContext,
    LifecycleCause,
    ManagedState,
    TerminationDeferred,
    Workload,
    WorkloadConfig,
    check_config,
)
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.plugin.crash_points import crash_point
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)
RELEASE_LIMIT_S = 60.0
"""The seconds for which a plugin that fails to release devices keeps the devices from other workloads."""
_DEFERRAL_LIMIT_S = 20.0
_NAMESPACE = uuid.UUID("5f0e6f8e-7a6e-4a0f-9a2b-0c1d6f2f6c11")


def share_amount(device: ComputeDevice) -> Decimal:
    """Returns the total amount of all shares of a device. Returns 0 for a device that cannot be divided."""
    slot = share_slot(device)
    return slot.amount if slot is not None else Decimal(0)


def _allocation(held_device: HeldDevice, device: ComputeDevice) -> DeviceAllocation:
    slot = share_slot(device)
    if held_device.amount is None or slot is None:
        return whole_allocation(device)
    return DeviceAllocation(slots={slot.slot_name: {device.device_id: Decimal(held_device.amount)}})


def _held_parts(record: WorkloadRecord) -> set[tuple[str, str | None]]:
    return {(device.name, device.share_id) for device in record.devices}


def kernel_id_of(uid: str) -> KernelId:
    """Returns the id of a workload for plugins, which is its uid if the uid is a UUID."""
    try:
        return KernelId(uuid.UUID(uid))
    except ValueError:
        return KernelId(uuid.uuid5(_NAMESPACE, uid))


class Workloads:
    """Holds the workloads of this node that hold devices, by uid. A device has one holder, or several that share it.

    Calls for one workload never overlap; each may be repeated after a crash at any instruction (AbstractLifecycleHook
    says what hooks may rely on). ``changed`` is called when a device gets or loses its holder.
    """

    def __init__(
        self,
        tracker: DeviceTracker,
        checkpoint: Checkpoint,
        cdi: CdiFiles,
        *,
        hidden_folders: Sequence[str] = (),
        deadline_s: float = 25.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tracker, self._checkpoint, self._cdi = tracker, checkpoint, cdi
        self._hidden, self._deadline_s, self._clock = hidden_folders, deadline_s, clock
        self.records: dict[str, WorkloadRecord] = checkpoint.load()
        self._interrupted = set(self.records)
        """Workloads with a call of a hook that began and has no answer: the process died, or the kubelet gave up."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.changed: Callable[[], None] = lambda: None
        self.withheld_reason: Callable[[DeviceKey], str] = lambda key: ""
        """Why a device is given to nobody; empty if it is."""
        tracker.is_held = lambda key: self.holder_of(key) is not None

    def holder_of(self, key: DeviceKey) -> WorkloadRecord | None:
        """Returns the workload that holds a device."""
        plugin_key, device_id = key
        for record in self.records.values():
            if any(device.plugin == plugin_key and device.device_id == device_id for device in record.devices):
                return record
        return None

    def workload_of_claim(self, namespace: str, name: str) -> WorkloadRecord | None:
        """Returns the workload that serves a resource claim."""
        records = (record for record in self.records.values() if record.way == "dra")
        return next((record for record in records if (record.namespace, record.name) == (namespace, name)), None)

    def _blocking_holder(
        self, held_device: HeldDevice, device: ComputeDevice, requested_record: WorkloadRecord
    ) -> WorkloadRecord | None:
        """Returns a workload that blocks ``requested_record`` from a device or share. Returns None if there is room.

        All shares together are at most the device; a whole device has one holder."""
        free_amount = share_amount(device)
        for record in (*self.records.values(), requested_record):
            for other_device in record.devices:
                if (other_device.plugin, other_device.device_id) != (held_device.plugin, held_device.device_id):
                    continue
                if other_device is not held_device and (held_device.amount is None or other_device.amount is None):
                    return record
                free_amount -= Decimal(other_device.amount or 0)
                if free_amount < 0 and held_device.amount is not None:
                    return record
        return None

    def _holder_of_relative(self, key: DeviceKey) -> WorkloadRecord | None:
        """Returns the workload that holds a partition of the device ``key``, or the device of which it is a part."""
        plugin_key, device_id = key
        for record in self.records.values():
            for held_device in record.devices:
                is_relative = held_device.device_id.startswith(f"{device_id}/") or device_id.startswith(
                    f"{held_device.device_id}/"
                )
                if held_device.plugin == plugin_key and is_relative:
                    return record
        return None

    def _holder_by_another_plugin(self, plugin_key: str, address: str) -> WorkloadRecord | None:
        """Returns the workload that has the device at a PCI address through another plugin.

        The other plugin need not run now.
        """
        for record in self.records.values() if address else ():
            if any(
                held_device.plugin != plugin_key and held_device.pci_address == address
                for held_device in record.devices
            ):
                return record
        return None

    async def prepare(self, requested_record: WorkloadRecord) -> WorkloadRecord:
        """Allocates devices to a workload, and returns its record with the configurations of all plugins.

        Safe to repeat: a prepared workload keeps what it has. ``requested_record`` needs no ``shares``.

        Raises:
            Conflict: another workload holds a device, or the workload is being released.
            Unavailable: a device is not there, or is withheld.
            BackendError: a plugin refuses; the devices are free again.
        """
        async with self._lock(requested_record.uid):
            record = self.records.get(requested_record.uid)
            if record is not None and record.phase == "releasing":
                raise Conflict(
                    f"the devices of {requested_record.namespace}/{requested_record.name} are being released"
                )
            if record is None:
                record = self._reserve(requested_record)
                try:
                    await self._store(record)
                except BackendError:
                    self.records.pop(record.uid, None)  # no plugin was called
                    raise
            elif _held_parts(record) != _held_parts(requested_record):
                raise Conflict(
                    f"{requested_record.namespace}/{requested_record.name} holds other devices than its claim says now"
                )
            if record.phase == "prepared":
                return await self._describe_in_cdi(record)
            crash_point("kube-acc.prepare.recorded")
            try:
                for plugin_key in record.shares:
                    record = await self._configure(record, plugin_key)
                check_no_conflict({key: share.config for key, share in record.shares.items() if share.config})
                record = await self._describe_in_cdi(record)
            except BackendError:
                await self._release_failed(record.uid)
                raise
            record = replace(record, phase="prepared", at=self._clock())
            await self._store(record)
            crash_point("kube-acc.prepare.prepared")
            return record

    def _reserve(self, requested_record: WorkloadRecord) -> WorkloadRecord:
        """Returns the new record with each plugin's allocation, and marks the devices as held."""
        present_devices = {
            (key, device.device_id): device
            for key in self._tracker.plugin_keys()
            for device in self._tracker.devices(key)
        }
        allocations: dict[str, list[Any]] = {}
        devices: list[HeldDevice] = []
        for held_device in requested_record.devices:
            key = (held_device.plugin, DeviceId(held_device.device_id))
            device = present_devices.get(key)
            if device is None or self._tracker.plugin_handle(held_device.plugin) is None:
                raise Unavailable(
                    f"the device {held_device.name} is not there: the plugin {held_device.plugin} does not list it"
                )
            if device.health is not DeviceHealth.HEALTHY:
                raise Unavailable(
                    f"the device {held_device.name} has failed: {device.health_reason or 'no reason is given'}"
                )
            if reason := self.withheld_reason(key):
                raise Unavailable(f"the device {held_device.name} is not given to workloads: {reason}")
            address = pci_address(device.hw_location)
            holder = (
                self._blocking_holder(held_device, device, requested_record)
                or self._holder_of_relative(key)
                or self._holder_by_another_plugin(held_device.plugin, address)
            )
            if holder is not None:
                raise Conflict(
                    f"the device {held_device.name} is held by {holder.namespace}/{holder.name} ({holder.way})"
                )
            allocations.setdefault(held_device.plugin, []).append(_allocation(held_device, device))
            devices.append(replace(held_device, pci_address=address))
        shares = {
            # The first call begins with this record; the record of each further one is stored before it.
            key: PluginShare(
                allocation=sum_allocations(allocations[key]), calls=("pre_create",) if plugin_index == 0 else ()
            )
            for plugin_index, key in enumerate(sorted(allocations))
        }
        record = replace(requested_record, phase="preparing", devices=tuple(devices), shares=shares, at=self._clock())
        self.records[record.uid] = record
        self.changed()
        return record

    async def _configure(self, record: WorkloadRecord, plugin_key: str) -> WorkloadRecord:
        result = await self._call_hook(record.uid, plugin_key, "pre_create")
        assert isinstance(result, WorkloadConfig)  # checked in _call
        check_supported(plugin_key, result)
        share = replace(self.records[record.uid].shares[plugin_key], config=result)
        shares = {**self.records[record.uid].shares, plugin_key: share}
        # Not stored before the workload is prepared: a repeated call gives an equal one.
        record = self.records[record.uid] = replace(self.records[record.uid], shares=shares)
        return record

    async def _describe_in_cdi(self, record: WorkloadRecord) -> WorkloadRecord:
        """Writes the CDI file of a claim, even if somebody has removed it, and finds the names of its devices."""
        configs = {key: share.config for key, share in record.shares.items() if share.config is not None}
        described_names: set[str] = set()
        for key, config in configs.items():
            cdi_names = {device.cdi_name for device in config.devices if device.cdi_name is not None}
            plugin_handle = self._tracker.plugin_handle(key)
            if cdi_names and plugin_handle is not None:
                described_names |= await self._cdi.filter_described(plugin_handle, cdi_names)
        if record.way == "device-plugin":
            return replace(record, cdi_names={"": tuple(sorted(described_names))})
        try:
            names_of_plugin = await asyncio.to_thread(self._cdi.write, record.uid, configs, described_names)
        except OSError as e:
            raise Unavailable(f"the CDI file of the claim cannot be written: {e.strerror or e}") from None
        return replace(record, cdi_names={key: tuple(cdi_names) for key, cdi_names in names_of_plugin.items()})

    async def record_running(self, uid: str) -> None:
        """Calls ``post_create`` once for a workload that runs. A failure is logged and the call repeated next time."""
        async with self._lock(uid):
            record = self.records.get(uid)
            if record is None or record.phase != "prepared":
                return
            for plugin_key, share in record.shares.items():
                if "post_create.done" not in share.calls:
                    try:
                        await self._call_hook(uid, plugin_key, "post_create")
                        await self._store_share(uid, plugin_key, finished_call="post_create.done")
                    except BackendError as e:
                        log.warning("post_create of %s for %s failed: %s", plugin_key, record.name or uid, e)

    async def release(self, uid: str) -> None:
        """Releases all devices of a workload. Safe if it holds none. Raises BackendError: it still holds them."""
        async with self._lock(uid):
            record = self.records.get(uid)
            if record is None:
                await asyncio.to_thread(self._cdi.remove, uid)
                return
            if record.phase != "releasing":
                record = replace(record, phase="releasing", at=self._clock())
                await self._store(record)
            await self._undo(record)

    async def _release_failed(self, uid: str) -> None:
        """Undoes a failed preparation. A step that cannot be undone now stays recorded, and is undone later."""
        record = replace(self.records[uid], phase="releasing", at=self._clock())
        try:
            await self._store(record)
            await self._undo(record)
        except BackendError as e:
            log.warning("the devices of %s/%s are not free yet: %s", record.namespace, record.name, e)

    async def _undo(self, record: WorkloadRecord) -> None:
        is_overdue = self._clock() - record.at > RELEASE_LIMIT_S
        for plugin_key, share in reversed(record.shares.items()):
            if "post_create" in share.calls and "post_terminate" not in share.calls:
                await self._pre_terminate(record.uid, plugin_key)
            if "pre_create" in share.calls and "post_terminate.done" not in share.calls:
                try:
                    await self._call_hook(record.uid, plugin_key, "post_terminate")
                    await self._store_share(record.uid, plugin_key, finished_call="post_terminate.done")
                except BackendError as e:
                    if not is_overdue:
                        raise
                    log.error("%s could not release devices of %s/%s: %s", plugin_key, record.namespace, record.name, e)
        crash_point("kube-acc.release.undone")
        try:
            await asyncio.to_thread(self._cdi.remove, record.uid)
            await asyncio.to_thread(self._checkpoint.delete, record.uid)
        except OSError as e:
            raise Unavailable(f"the record of {record.uid} cannot be removed: {e}") from None
        self.records.pop(record.uid, None)
        self._interrupted.discard(record.uid)
        self.changed()

    async def _pre_terminate(self, uid: str, plugin_key: str) -> None:
        deadline = time.monotonic() + _DEFERRAL_LIMIT_S
        while True:
            try:
                await self._call_hook(uid, plugin_key, "pre_terminate")
                return
            except TerminationDeferred as e:
                if time.monotonic() + e.retry_after > deadline:
                    return
                await asyncio.sleep(e.retry_after)
            except BackendError as e:
                log.warning("pre_terminate of %s failed: %s", plugin_key, e)
                return

    async def _call_hook(self, uid: str, plugin_key: str, method: str) -> WorkloadConfig | None:
        """Records that a call of a hook begins, makes the call, and stores the state that the hook leaves."""
        record = self.records[uid]
        share = record.shares[plugin_key]
        is_repeat = method in share.calls and uid in self._interrupted
        if method not in share.calls:
            record = await self._store_share(uid, plugin_key, finished_call=method)
        plugin_handle = self._tracker.plugin_handle(plugin_key)
        if plugin_handle is None:
            raise PluginError(f"the plugin {plugin_key} is not available")

        async def save(state: ManagedState) -> None:
            await self._save_state(uid, plugin_key, state)

        state = ManagedState(msgspec.json.decode(msgspec.json.encode(share.state)), share.state_version, saver=save)
        hook_context = HookContext(
            cause=LifecycleCause.RECOVER if is_repeat else LifecycleCause.CREATE,
            attempt=1,
            state=state,
            deadline_s=self._deadline_s,
            end_reason="user-requested" if record.phase == "releasing" else "",
        )
        workload = Workload(
            id="" if record.phase == "preparing" else uid,
            type="container",
            kernel_id=kernel_id_of(uid),
            session_id=SessionId(kernel_id_of(record.pod_uid or uid)),
        )

        async def run(plugin: AbstractComputePlugin) -> WorkloadConfig | None:
            hook = plugin.create_lifecycle_hook(workload, share.allocation, hook_context)
            result: Any = await getattr(hook, method)()
            try:
                return check_config(result, hidden_paths=self._hidden) if method == "pre_create" else None
            except ValueError as e:
                raise InvalidResponse(str(e)) from None

        try:
            return await _call_plugin(plugin_handle, method, run)
        except asyncio.CancelledError:
            self._interrupted.add(uid)
            raise
        finally:
            await self._save_state(uid, plugin_key, state)

    async def _save_state(self, uid: str, plugin_key: str, state: ManagedState) -> None:
        try:
            encoded_state = msgspec.json.encode(state.data)
            data = msgspec.json.decode(encoded_state, type=dict)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as e:
            raise PluginError(f"the state of {plugin_key} is no JSON object: {e}") from None
        if len(encoded_state) > MANAGED_STATE_LIMIT:
            raise PluginError(f"the state has {len(encoded_state)} bytes; {MANAGED_STATE_LIMIT} are allowed")
        share = self.records[uid].shares[plugin_key]
        if (share.state, share.state_version) != (data, state.version):
            await self._store_share(uid, plugin_key, state=data, state_version=state.version)

    async def _store_share(
        self, uid: str, plugin_key: str, *, finished_call: str = "", **changes: Any
    ) -> WorkloadRecord:
        record = self.records[uid]
        share = record.shares[plugin_key]
        if finished_call and finished_call not in share.calls:
            changes["calls"] = (*share.calls, finished_call)
        share = replace(share, **changes)
        record = replace(record, shares={**record.shares, plugin_key: share})
        await self._store(record)
        return record

    async def _store(self, record: WorkloadRecord) -> None:
        try:
            await asyncio.to_thread(self._checkpoint.put, record)
        except OSError as e:
            raise Unavailable(f"the record of {record.uid} cannot be stored: {e.strerror or e}") from None
        self.records[record.uid] = record

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())


async def _call_plugin(
    handle: PluginHandle, method: str, run: Callable[[AbstractComputePlugin], Any]
) -> WorkloadConfig | None:
    result: WorkloadConfig | None = await handle.call(method, run)
    return result


def held_device(plugin_key: str, device_id: str, name: str, requests: Sequence[str] = ()) -> HeldDevice:
    """Returns the entry for a device in a workload record."""
    return HeldDevice(plugin=plugin_key, device_id=device_id, name=name, requests=tuple(requests))
