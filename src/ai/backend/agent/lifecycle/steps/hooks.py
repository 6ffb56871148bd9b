"""The step that calls the plugins' hooks before the workload is created and after it is removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from ai.backend.agent.devices.plugins import PluginHandle
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.agent.lifecycle.hook_calls import HookCalls
from ai.backend.agent.lifecycle.hook_retries import HookRetrier
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError, CreationDeferred
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.accelerator import AttachedDevice, responses

log = logging.getLogger(__name__)
V = TypeVar("V")
_RETRY_FIRST_S = 0.2


class Hooks:
    """Calls ``pre_create`` of every plugin of the kernel's devices; releases by ``post_terminate`` in reverse."""

    name = "hooks"

    def __init__(self, context: AgentContext, calls: HookCalls, hook_retrier: HookRetrier) -> None:
        self._context = context
        self._calls = calls
        self._hook_retrier = hook_retrier

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        """Call the hooks. Raises what ``pre_create`` raises, and CreationDeferred while a plugin is missing."""
        if kernel.record.workload_id:
            return  # resumed: the workload was made from the configs already
        holders = self._holders(kernel)
        await self._hook_retrier.complete_earlier_attempts(kernel, [handle.key for handle, _ in holders])
        kernel.configs = []
        kernel.attached = {}
        for handle, allocation in holders:
            key = handle.key
            if key not in kernel.record.hooked:
                kernel.save(
                    hooked=[*kernel.record.hooked, key],
                    hook_slots={**kernel.record.hook_slots, key: [str(slot) for slot in allocation.slots]},
                )
            config = await self._calls.call(key, "pre_create", kernel, step)
            assert config is not None
            kernel.configs.append((key, config))
            kernel.attached[key] = await self._attached(handle, allocation)
        kernel.save(attached_devices={key: _attached_to_wire(devices) for key, devices in kernel.attached.items()})

    def _holders(self, kernel: Kernel) -> list[tuple[PluginHandle, DeviceAllocation]]:
        """Return the plugins of the kernel's devices in allocation order."""
        holders = [
            (handle, allocation)
            for handle in self._context.plugins.started()
            if (allocation := self._context.inventory.holding_of(kernel.id, handle.key)).slots
        ]
        served = {slot for _, allocation in holders for slot in allocation.slots}
        if missing := sorted(set(self._context.inventory.holding(kernel.id).slots) - served):
            raise CreationDeferred(f"no plugin of the agent serves {', '.join(missing)} at the moment")
        return holders

    @staticmethod
    async def _attached(handle: PluginHandle, allocation: DeviceAllocation) -> list[AttachedDevice]:
        check = partial(responses.attached, held=allocation)
        return list(await handle.call("alloc_to_devices", lambda p: p.alloc_to_devices(allocation), check=check))

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        for key in reversed(kernel.record.hooked):
            if not self._hook_retrier.owes(kernel, key) and not await self._post_terminate(key, kernel, step):
                self._hook_retrier.add_leftover(kernel, key)
            record = kernel.record
            kernel.save(
                hooked=[other for other in record.hooked if other != key],
                states=_without(record.states, key),
                begun=_without(record.begun, key),
                hook_slots=_without(record.hook_slots, key),
            )

    async def _post_terminate(self, key: str, kernel: Kernel, step: StepContext) -> bool:
        """Call until it succeeds or the deadline of one call has passed, and return whether it has succeeded."""
        clock = asyncio.get_running_loop().time
        timeout_s = max(self._context.settings.kernel_lifecycles.plugin_timeout, _RETRY_FIRST_S)
        deadline = clock() + self._context.settings.kernel_lifecycles.plugin_timeout
        backoff, remaining_s = Backoff(_RETRY_FIRST_S, timeout_s), None
        while True:
            try:
                await self._calls.call(key, "post_terminate", kernel, step, timeout_s=remaining_s)
                return True
            except BackendError as e:
                delay_s = backoff.next_s()
                if kernel.hurry.is_set() or clock() + delay_s >= deadline:
                    self._calls.report(kernel, key, "post_terminate", e, "retrying")
                    return False
                log.info("post_terminate of %s for kernel %s failed and is repeated: %s", key, kernel.id, e)
            await asyncio.sleep(delay_s)
            remaining_s = deadline - clock()


def _attached_to_wire(devices: list[AttachedDevice]) -> list[dict[str, Any]]:
    return [
        {"device_id": str(d.device_id), "model_name": d.model_name, "data": msgspec.to_builtins(dict(d.data))}
        for d in devices
    ]


def _without(values: Mapping[str, V], key: str) -> dict[str, V]:
    return {other: value for other, value in values.items() if other != key}
