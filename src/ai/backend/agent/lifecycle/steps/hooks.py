"""The steps that call the plugins' hooks around the creation and the removal of the workload."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from ai.backend.agent.devices.kinds import DeviceKind
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import write_allocation
from ai.backend.agent.lifecycle.context import Step, StepContext
from ai.backend.agent.lifecycle.hook_calls import HookCalls
from ai.backend.agent.lifecycle.hook_retries import HookRetrier
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError, CreationDeferred, CreationDenied, NotFound, PluginError
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.accelerator import AttachedDevice, TerminationDeferred, responses
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)
V = TypeVar("V")
_RETRY_FIRST_S = 0.2


@dataclass
class Hooks(Step):
    """Calls ``pre_create`` of every plugin of the kernel's devices; releases by ``post_terminate`` in reverse."""

    name = "hooks"
    calls: HookCalls
    hook_retrier: HookRetrier

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        """Calls the hooks. Raises the errors of ``pre_create``, CreationDeferred while a plugin is missing, and
        CreationDenied for devices that cannot be diagnosed."""
        if kernel.record.workload_id:
            return  # resumed: the workload was made from the configs already
        plugin_allocations = [*self._plugins_with_allocations(kernel), *self._diagnosed_plugins(kernel)]
        await self.hook_retrier.complete_earlier_attempts(kernel, [handle.key for handle, _ in plugin_allocations])
        kernel.configs = []
        kernel.attached = {}
        for handle, held_allocation in plugin_allocations:
            key = handle.key
            changes: dict[str, Any] = {}
            is_diagnosed = key in kernel.record.spec.diagnosed_devices
            is_recorded = is_diagnosed or not self.calls.has_default_hook(key)
            if is_recorded and key not in kernel.record.hooked:
                changes = {
                    "hooked": [*kernel.record.hooked, key],
                    "hook_slots": {**kernel.record.hook_slots, key: [str(slot) for slot in held_allocation.slots]},
                }
                if is_diagnosed:
                    changes["diagnosed"] = {**kernel.record.diagnosed, key: write_allocation(held_allocation)}
            hook_allocation = None if is_recorded or key in kernel.record.hooked else held_allocation
            config = await self.calls.call(key, "pre_create", kernel, step, changes=changes, allocation=hook_allocation)
            assert config is not None
            kernel.configs.append((key, config))
            kernel.attached[key] = await _attached_devices_of(handle, held_allocation)
        kernel.save(attached_devices={key: _attached_to_wire(devices) for key, devices in kernel.attached.items()})

    def _plugins_with_allocations(self, kernel: Kernel) -> list[tuple[PluginHandle, DeviceAllocation]]:
        plugin_allocations = [
            (handle, allocation)
            for handle in self.context.plugins.started()
            if (allocation := self.context.inventory.holding_of(kernel.id, handle.key)).slots
        ]
        served_slots = {slot for _, allocation in plugin_allocations for slot in allocation.slots}
        if missing_slots := sorted(set(self.context.inventory.holding(kernel.id).slots) - served_slots):
            raise CreationDeferred(f"no plugin of the agent serves {', '.join(missing_slots)} at the moment")
        return plugin_allocations

    def _diagnosed_plugins(self, kernel: Kernel) -> list[tuple[PluginHandle, DeviceAllocation]]:
        """Returns the plugins of devices that a kernel sees for diagnosis but does not hold."""
        plugin_allocations = []
        for key, device_ids in kernel.record.spec.diagnosed_devices.items():
            try:
                handle = self.context.plugins.get(key)
                if not handle.plugin.capabilities.diagnosable:
                    raise CreationDenied(f"the plugin {key} shows no devices for a diagnosis")
                if self.context.inventory.holding_of(kernel.id, key).slots:
                    raise CreationDenied(f"the kernel holds devices of {key}; it cannot diagnose others beside them")
                plugin_allocations.append(
                    (handle, self.context.inventory.kinds.get(key, DeviceKind()).allocation_of_whole(device_ids))
                )
            except (PluginError, NotFound) as e:
                raise CreationDenied(f"the devices of {key} cannot be diagnosed: {e.message}") from e
        return plugin_allocations

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        for key in reversed(kernel.record.hooked):
            if not self.hook_retrier.owes(kernel, key) and not await self._post_terminate(key, kernel, step):
                self.hook_retrier.add_leftover(kernel, key)
            record = kernel.record
            kernel.save(
                hooked=[other_key for other_key in record.hooked if other_key != key],
                states=_without_key(record.states, key),
                begun=_without_key(record.begun, key),
                hook_slots=_without_key(record.hook_slots, key),
                diagnosed=_without_key(record.diagnosed, key),
            )

    async def _post_terminate(self, plugin_key: str, kernel: Kernel, step: StepContext) -> bool:
        """Repeats ``post_terminate`` until success or the deadline of one call; returns True on success."""
        clock = asyncio.get_running_loop().time
        timeout_s = max(self.context.settings.kernel_lifecycles.plugin_timeout, _RETRY_FIRST_S)
        deadline = clock() + self.context.settings.kernel_lifecycles.plugin_timeout
        backoff, remaining_s = Backoff(_RETRY_FIRST_S, timeout_s), None
        while True:
            try:
                await self.calls.call(plugin_key, "post_terminate", kernel, step, timeout_s=remaining_s)
                return True
            except BackendError as e:
                delay_s = backoff.next_s()
                if kernel.is_hurried.is_set() or clock() + delay_s >= deadline:
                    self.calls.report(kernel, plugin_key, "post_terminate", e, "retrying")
                    return False
                log.info("post_terminate of %s for kernel %s failed and is repeated: %s", plugin_key, kernel.id, e)
            await asyncio.sleep(delay_s)
            remaining_s = deadline - clock()


async def _attached_devices_of(handle: PluginHandle, allocation: DeviceAllocation) -> list[AttachedDevice]:
    check_answer = partial(responses.validate_attached, allocation=allocation)
    return list(
        await handle.call("alloc_to_devices", lambda plugin: plugin.alloc_to_devices(allocation), check=check_answer)
    )


def _attached_to_wire(devices: list[AttachedDevice]) -> list[dict[str, Any]]:
    return [
        {
            "device_id": str(device.device_id),
            "model_name": device.model_name,
            "data": msgspec.to_builtins(dict(device.data)),
        }
        for device in devices
    ]


def _without_key(values: Mapping[str, V], key: str) -> dict[str, V]:
    return {other_key: value for other_key, value in values.items() if other_key != key}


@dataclass
class PostCreate(Step):
    """Calls ``post_create`` of every hooked plugin; releases by ``pre_terminate`` in reverse, which may be deferred."""

    name = "post-create"
    calls: HookCalls
    hook_retrier: HookRetrier

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        for key in kernel.record.hooked:
            try:
                await self.calls.call(key, "post_create", kernel, step)
            except BackendError as e:
                now = self.context.wall_clock()
                kernel.save(owed=list(dict.fromkeys([*kernel.record.owed, key])), owed_since=now)
                kernel.hooks_owed_since = None
                self.calls.report(kernel, key, "post_create", e, "retrying", now)
        self.hook_retrier.start_repeating(kernel)

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        await self.hook_retrier.stop_repeating(kernel)
        for key in reversed(kernel.record.hooked):
            begun_keys = kernel.record.begun.get(key, {})
            if "post_create" in begun_keys and "post_terminate" not in begun_keys:
                await self._pre_terminate(key, kernel, step)

    async def _pre_terminate(self, plugin_key: str, kernel: Kernel, step: StepContext) -> None:
        while True:
            try:
                await self.calls.call(plugin_key, "pre_terminate", kernel, step)
                return
            except TerminationDeferred as e:
                if not await self._wait_for_retry(kernel, e.retry_after):
                    if not kernel.is_hurried.is_set():
                        problem = str(e) or "it still defers the termination"
                        self.calls.report(kernel, plugin_key, "pre_terminate", problem, "overrun")
                    return
            except BackendError as e:
                self.calls.report(kernel, plugin_key, "pre_terminate", e, "given-up")
                return

    async def _wait_for_retry(self, kernel: Kernel, retry_after_s: float) -> bool:
        """Waits for the next ``pre_terminate`` call; returns False after the deadline."""
        now, limit_s = self.context.wall_clock(), self.context.settings.kernel_lifecycles.termination_deferral
        clock = asyncio.get_running_loop().time
        if kernel.record.deferred_until is None:
            kernel.save(deferred_until=now + limit_s)
            kernel.deferral_ends = clock() + limit_s
        if kernel.deferral_ends is None:
            kernel.deferral_ends = clock() + min((kernel.record.deferred_until or now) - now, limit_s)
        remaining_s = kernel.deferral_ends - clock()
        if kernel.is_hurried.is_set() or remaining_s <= 0:
            return False
        try:
            async with asyncio.timeout(min(max(0.01, retry_after_s), remaining_s)):
                await kernel.is_hurried.wait()
        except TimeoutError:
            return True
        return False
