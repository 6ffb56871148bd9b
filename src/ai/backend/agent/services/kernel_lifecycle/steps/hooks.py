"""What the plugins do before the workload exists and after it is gone."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from ai.backend.agent.model.kernel import PluginState
from ai.backend.agent.services.kernel import Kernel
from ai.backend.agent.services.kernel_lifecycle.context import Circumstances, Surroundings
from ai.backend.agent.services.plugins import PluginHandle
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError, PluginError
from ai.backend.plugin.accelerator import (
    MANAGED_STATE_LIMIT,
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    HookContext,
    LifecycleCause,
    ManagedState,
    Workload,
)

log = logging.getLogger(__name__)
_RELEASE_TRIES = 3


class HookCalls:
    """Makes a hook, calls one of its methods, and keeps the plugin's managed state."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def _hook(
        self, plugin: AbstractComputePlugin, kernel: Kernel, cause: LifecycleCause, state: ManagedState
    ) -> AbstractLifecycleHook:
        allocation = self._around.inventory.holding_of(kernel.id, plugin.key)
        workload = Workload(
            id=kernel.record.workload_id,
            type=self._around.runtime.info().workload_type,
            kernel_id=kernel.record.kernel_id,
            session_id=kernel.record.session_id,
        )
        context = HookContext(
            cause=cause,
            attempt=kernel.attempt,
            state=state,
            previous_allocation=allocation if cause is LifecycleCause.RESTART_IN_PLACE else None,
            deadline_s=self._around.settings.kernel_lifecycles.plugin_timeout,
        )
        return plugin.create_lifecycle_hook(workload, allocation, context)

    async def call(self, key: str, method: str, kernel: Kernel, cause: LifecycleCause) -> object:
        """Raises what the hook says (CreationDenied, TerminationDeferred, ...) or PluginError for anything else."""
        kept = kernel.record.states.get(key)
        state = ManagedState(kept.data, kept.version) if kept is not None else ManagedState()

        async def run(plugin: AbstractComputePlugin) -> object:
            return await getattr(self._hook(plugin, kernel, cause, state), method)()

        try:
            return await self._around.plugins.get(key).call(method, run)
        finally:
            self._keep(key, kernel, state)

    @staticmethod
    def _keep(key: str, kernel: Kernel, state: ManagedState) -> None:
        old = kernel.record.states.get(key)
        if (old.data if old is not None else {}) == state.data:
            return
        try:
            encoded = msgspec.json.encode(state.data)
        except (TypeError, msgspec.MsgspecError) as e:
            raise PluginError(f"the plugin {key} keeps a state that is not JSON: {e}") from e
        if len(encoded) > MANAGED_STATE_LIMIT:
            raise PluginError(
                f"the plugin {key} keeps {len(encoded)} bytes of state; {MANAGED_STATE_LIMIT} are allowed"
            )
        new = PluginState(version=state.version, data=msgspec.json.decode(encoded))
        kernel.save(states={**kernel.record.states, key: new})


class Hooks:
    """``pre_create`` of every plugin whose devices the kernel holds; released by ``post_terminate`` in reverse."""

    name = "hooks"

    def __init__(self, around: Surroundings, calls: HookCalls) -> None:
        self._around = around
        self._calls = calls

    async def acquire(self, kernel: Kernel, why: Circumstances) -> None:
        kernel.configs = []
        attached: dict[str, list[AttachedDevice]] = {}
        for handle in self._around.plugins.started():
            allocation = self._around.inventory.holding_of(kernel.id, handle.key)
            if not allocation.slots:
                continue
            if handle.key not in kernel.record.hooked:
                kernel.save(hooked=[*kernel.record.hooked, handle.key])
            config = await self._calls.call(handle.key, "pre_create", kernel, why.cause)
            kernel.configs.append((handle.key, config))  # type: ignore[arg-type]  # pre_create gives a WorkloadConfig
            attached[handle.key] = await self._attached(handle, allocation)
        kernel.attached = attached
        kernel.save(
            attached_devices={
                key: [
                    {
                        "device_id": str(d.device_id),
                        "model_name": d.model_name,
                        "data": msgspec.to_builtins(dict(d.data)),
                    }
                    for d in devices
                ]
                for key, devices in attached.items()
            }
        )

    @staticmethod
    async def _attached(handle: PluginHandle, allocation: DeviceAllocation) -> list[AttachedDevice]:
        return list(await handle.call("alloc_to_devices", lambda p: p.alloc_to_devices(allocation)))

    async def release(self, kernel: Kernel, why: Circumstances) -> None:
        for key in reversed(kernel.record.hooked):
            await self._post_terminate(key, kernel, why)
            kernel.save(hooked=[k for k in kernel.record.hooked if k != key])
        kernel.save(states={})

    async def _post_terminate(self, key: str, kernel: Kernel, why: Circumstances) -> None:
        """Failures are recorded and retried, but never keep the slots from being released."""
        for attempt in range(_RELEASE_TRIES):
            try:
                await self._calls.call(key, "post_terminate", kernel, why.cause)
                return
            except BackendError as e:
                log.warning("post_terminate of %s for kernel %s failed (%d): %s", key, kernel.id, attempt + 1, e)
            await asyncio.sleep(0.1 * 4**attempt)
