"""One call of a plugin's hook: its circumstances, its deadline, and the plugin's managed state."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Literal

import msgspec

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import PluginState
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import DeadlineExceeded, PluginError
from ai.backend.common.states import KernelEventReason
from ai.backend.common.wire.reports import HookState, HookTrouble
from ai.backend.plugin.accelerator import (
    MANAGED_STATE_LIMIT,
    AbstractComputePlugin,
    AbstractLifecycleHook,
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

log = logging.getLogger(__name__)
Method = Literal["pre_create", "post_create", "pre_terminate", "post_terminate"]


class HookCalls:
    """Makes a hook and calls one of its methods. What the contract of AbstractLifecycleHook says of a call holds here;
    in which order the calls come is the steps' matter.
    """

    def __init__(self, around: AgentContext) -> None:
        self._around = around
        self._hidden = (os.path.realpath(around.settings.agent.data_dir),)

    async def call(
        self, key: str, method: Method, kernel: Kernel, why: StepContext, *, timeout_s: float | None = None
    ) -> WorkloadConfig | None:
        """Note durably that the call begins, then call. Only ``pre_create`` gives something.

        Args:
            key: the plugin.
            method: of the hook.
            kernel: its standing workload is meant.
            why: the cause unless this call was begun in an earlier life of the agent.
            timeout_s: for a call that gets less than a plugin's usual deadline.

        Raises:
            BackendError: what the hook says (CreationDenied ...), and PluginError for whatever else went wrong.
            TerminationDeferred: only by ``pre_terminate``.
        """
        usual_s = self._around.settings.kernel_lifecycles.plugin_timeout
        deadline_s = usual_s if timeout_s is None else min(usual_s, timeout_s)
        began = kernel.record.begun.get(key, {})
        if method not in began:
            begun = {**kernel.record.begun, key: {**began, method: self._around.epoch}}
            kernel.save(begun=begun)
        is_repeat = began.get(method, self._around.epoch) != self._around.epoch
        is_over = asyncio.Event()
        state = self._state(key, kernel, is_over)

        async def run(plugin: AbstractComputePlugin) -> WorkloadConfig | None:
            context = self._context(key, kernel, why, state, deadline_s, is_repeat=is_repeat)
            hook = plugin.create_lifecycle_hook(self._workload(kernel), self._allocation(key, kernel), context)
            result = await _stay_in_role(method, hook)
            try:
                self._keep(key, kernel, state)
                return check_config(result, hidden=self._hidden) if method == "pre_create" else None
            except (PluginError, ValueError) as e:
                raise InvalidResponse(str(e)) from e

        crash_point(f"hook.{key}.{method}.before")
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._around.plugins.get(key).call(method, run)
        except BaseException as e:
            self._keep_after(e, key, kernel, state)
            if isinstance(e, TimeoutError):
                raise DeadlineExceeded(f"the plugin {key} did not answer {method} within {deadline_s:g} s") from None
            raise
        finally:
            is_over.set()
        crash_point(f"hook.{key}.{method}.after")
        return answer

    def tell(
        self, kernel: Kernel, key: str, method: Method, problem: object, state: HookState, since: float = 0.0
    ) -> None:
        """Record what a hook did not do in its time where people look: the log, and the kernel's ``status_data``."""
        level = logging.INFO if state == "done" else logging.WARNING
        log.log(level, "%s of %s for kernel %s: %s: %s", method, key, kernel.id, state, problem)
        trouble = HookTrouble(
            plugin=key,
            method=method,
            state=state,
            message=(str(problem) or type(problem).__name__)[:500],
            since=since or self._around.wall_clock(),
        )
        self._around.observer.report(
            kernel.id, kernel.attempt, kernel.status, KernelEventReason.UNKNOWN, hook_troubles=[trouble]
        )

    # ---- inside

    def _workload(self, kernel: Kernel) -> Workload:
        return Workload(
            id=kernel.record.workload_id,
            type=self._around.runtime.info().workload_type,
            kernel_id=kernel.key.kernel_id,
            session_id=kernel.record.session_id,
        )

    @staticmethod
    def _allocation(key: str, kernel: Kernel) -> DeviceAllocation:
        """The plugin's share, as it was when the creation began: also of slots that it does not offer any more."""
        names = kernel.record.hook_slots.get(key, ())
        held = kernel.record.device_allocation.slots
        return DeviceAllocation(slots={slot: devices for slot, devices in held.items() if slot in names})

    def _context(
        self, key: str, kernel: Kernel, why: StepContext, state: ManagedState, deadline_s: float, *, is_repeat: bool
    ) -> HookContext:
        return HookContext(
            cause=LifecycleCause.RECOVER if is_repeat else why.cause,
            attempt=kernel.record.standing_attempt,
            state=state,
            previous_allocation=self._allocation(key, kernel) if why.restarting else None,
            deadline_s=deadline_s,
        )

    def _state(self, key: str, kernel: Kernel, is_over: asyncio.Event) -> ManagedState:
        async def save(state: ManagedState) -> None:
            if is_over.is_set():  # the record may be of another attempt by now
                raise PluginError("the call that this state belongs to is over")
            self._keep(key, kernel, state)

        kept = kernel.record.states.get(key, PluginState())
        data = msgspec.json.decode(msgspec.json.encode(kept.data))  # the plugin's own copy
        return ManagedState(data, kept.version, saver=save)

    @staticmethod
    def _keep(key: str, kernel: Kernel, state: ManagedState) -> None:
        """Raises PluginError if it cannot be kept."""
        try:
            encoded = msgspec.json.encode(state.data)
            new = PluginState(version=state.version, data=msgspec.json.decode(encoded, type=dict))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as e:
            raise PluginError(f"the state is no JSON object: {e}") from e
        if not isinstance(state.version, int):
            raise PluginError("the version of the state is no number")
        if len(encoded) > MANAGED_STATE_LIMIT:
            raise PluginError(f"the state has {len(encoded)} bytes; {MANAGED_STATE_LIMIT} are allowed")
        if kernel.record.states.get(key, PluginState()) != new:
            kernel.save(states={**kernel.record.states, key: new})

    def _keep_after(self, error: BaseException, key: str, kernel: Kernel, state: ManagedState) -> None:
        """The error of the call is the one that counts."""
        try:
            self._keep(key, kernel, state)
        except PluginError as e:
            if str(e) not in str(error):
                log.warning("the state of %s for kernel %s is not kept: %s", key, kernel.id, e)


async def _stay_in_role(method: Method, hook: AbstractLifecycleHook) -> object:
    """Call, and take what only others may raise for the mistake that it is."""
    task = asyncio.current_task()
    try:
        return await getattr(hook, method)()
    except TerminationDeferred as e:
        if method == "pre_terminate":
            raise
        raise RuntimeError(f"{method} cannot defer a termination: {e}") from e
    except asyncio.CancelledError as e:
        if task is not None and task.cancelling():
            raise
        raise RuntimeError(f"{method} cancelled itself") from e
