"""Calls one method of a plugin's hook with its context, its deadline, and the plugin's managed state."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import PluginState, read_allocation
from ai.backend.agent.lifecycle.context import AgentContext, StepContext
from ai.backend.agent.lifecycle.hook_facts import hook_context_fields
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError, CreationDenied, DeadlineExceeded, PluginError
from ai.backend.common.states import KernelEventReason
from ai.backend.common.wire.agent import KernelSpec
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
from ai.backend.plugin.options import problems_of_options

log = logging.getLogger(__name__)
Method = Literal["pre_create", "post_create", "pre_terminate", "post_terminate"]


class HookCalls:
    """Calls methods of hooks by the contract of AbstractLifecycleHook. The steps decide the order of calls."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._hidden = (os.path.realpath(context.settings.agent.data_dir),)

    async def call(
        self,
        plugin_key: str,
        method: Method,
        kernel: Kernel,
        step: StepContext,
        *,
        timeout_s: float | None = None,
        changes: Mapping[str, Any] = MappingProxyType({}),
        allocation: DeviceAllocation | None = None,
    ) -> WorkloadConfig | None:
        """Records that a hook call begins, then calls the hook's method. Only ``pre_create`` returns a config.

        The default hook acts before the creation alone, and changes nothing: its other methods are not called, and no
        call of it is recorded.

        Args:
            plugin_key: the plugin.
            method: the method of the hook.
            kernel: the kernel; the call is for its present workload.
            step: gives the cause, unless the call was begun before the agent was restarted.
            timeout_s: a deadline shorter than a plugin's usual one.
            changes: fields of the kernel's record that are stored before the call, in the same write.
            allocation: the plugin's share of the kernel's devices, if it is not that of the record.

        Raises:
            BackendError: what the hook raises (CreationDenied ...), and PluginError for every other failure.
            TerminationDeferred: only from ``pre_terminate``.
        """
        is_recorded = bool(changes) or not self.has_default_hook(plugin_key)
        if method != "pre_create" and not is_recorded:
            return None
        plugin_timeout_s = self._context.settings.kernel_lifecycles.plugin_timeout
        deadline_s = plugin_timeout_s if timeout_s is None else min(plugin_timeout_s, timeout_s)
        epoch_of_method = kernel.record.begun.get(plugin_key, {})
        if is_recorded and method not in epoch_of_method:
            begun_calls = {**kernel.record.begun, plugin_key: {**epoch_of_method, method: self._context.epoch}}
            kernel.save(begun=begun_calls, **changes)
        elif changes:
            kernel.save(**changes)
        is_repeat = epoch_of_method.get(method, self._context.epoch) != self._context.epoch
        call_ended = asyncio.Event()
        state = self._managed_state(plugin_key, kernel, call_ended)
        labels = await self._labels_of(kernel.record.spec)
        if method == "pre_create":
            self._check_options(plugin_key, kernel.record.spec)

        async def run(plugin: AbstractComputePlugin) -> WorkloadConfig | None:
            record = kernel.record
            held_devices = allocation if allocation is not None else self._allocation_at_creation(plugin_key, kernel)
            workload = Workload(
                id=record.workload_id,
                type=self._context.runtime.info().workload_type,
                kernel_id=record.kernel_id,
                session_id=record.session_id,
            )
            hook_context = HookContext(
                cause=LifecycleCause.RECOVER if is_repeat else step.cause,
                attempt=record.standing_attempt,
                state=state,
                previous_allocation=held_devices if step.restarting else None,
                deadline_s=deadline_s,
                is_diagnostic=plugin_key in record.diagnosed,
                **hook_context_fields(plugin_key, kernel, method, labels, restarting=step.restarting),
            )
            result = await _call_method(method, plugin.create_lifecycle_hook(workload, held_devices, hook_context))
            try:
                self._save_state(plugin_key, kernel, state)
                return check_config(result, hidden_paths=self._hidden) if method == "pre_create" else None
            except (PluginError, ValueError) as e:
                raise InvalidResponse(str(e)) from e

        crash_point(f"hook.{plugin_key}.{method}.before")
        try:
            async with asyncio.timeout(timeout_s):
                returned_config = await self._context.plugins.get(plugin_key).call(method, run)
        except BaseException as e:
            self._save_state_after(e, plugin_key, kernel, state)
            if isinstance(e, TimeoutError):
                raise DeadlineExceeded(
                    f"the plugin {plugin_key} did not answer {method} within {deadline_s:g} s"
                ) from None
            raise
        finally:
            call_ended.set()
        crash_point(f"hook.{plugin_key}.{method}.after")
        return returned_config

    def has_default_hook(self, plugin_key: str) -> bool:
        """Returns True if a started plugin has the default hook, which has nothing to undo.

        Returns False before the plugin is started, when its hook is not known yet.
        """
        try:
            plugin = self._context.plugins.get(plugin_key).plugin
        except PluginError:
            return False
        make_hook = getattr(plugin.create_lifecycle_hook, "__func__", None)
        return make_hook is AbstractComputePlugin.create_lifecycle_hook

    def _check_options(self, plugin_key: str, spec: KernelSpec) -> None:
        """Raises CreationDenied for options that this node's version of the plugin does not take."""
        options = spec.plugin_options.get(plugin_key)
        if not options:
            return
        schema = self._context.plugins.get(plugin_key).options_schema
        problems = {"": "it takes none"} if schema is None else problems_of_options(options, schema)
        if problems:
            problem_text = "; ".join(
                f"{option_path}: {problem}" if option_path else problem for option_path, problem in problems.items()
            )
            raise CreationDenied(
                f"the plugin {plugin_key} does not take the options of this session: {problem_text}",
                data={"plugins": [plugin_key], "field": "plugin_options"},
            )

    async def _labels_of(self, spec: KernelSpec) -> Mapping[str, str]:
        """Returns the labels of a kernel's image, or no labels if the runtime cannot read them now, so that the kernel
        can still end.
        """
        try:
            return await self._context.services.labels_of(spec)
        except BackendError as e:
            log.warning("hooks are not told of the image %s: %s", spec.image, e)
            return {}

    def report(
        self, kernel: Kernel, plugin_key: str, method: Method, problem: object, state: HookState, since: float = 0.0
    ) -> None:
        """Reports a failed hook call, or its later success, in the log and in the kernel's ``status_data``."""
        log_level = logging.INFO if state == "done" else logging.WARNING
        log.log(log_level, "%s of %s for kernel %s: %s: %s", method, plugin_key, kernel.id, state, problem)
        hook_trouble = HookTrouble(
            plugin=plugin_key,
            method=method,
            state=state,
            message=(str(problem) or type(problem).__name__)[:500],
            since=since or self._context.wall_clock(),
        )
        self._context.observer.report(
            kernel.id, kernel.attempt, kernel.status, KernelEventReason.UNKNOWN, hook_troubles=[hook_trouble]
        )

    @staticmethod
    def _allocation_at_creation(plugin_key: str, kernel: Kernel) -> DeviceAllocation:
        """Returns the plugin's devices that a kernel held when its creation began.

        For a plugin that diagnoses devices these are the devices that it diagnoses.
        """
        if plugin_key in kernel.record.diagnosed:
            return read_allocation(kernel.record.diagnosed[plugin_key])
        slot_names = kernel.record.hook_slots.get(plugin_key, ())
        held_slots = kernel.record.device_allocation.slots
        return DeviceAllocation(slots={slot: devices for slot, devices in held_slots.items() if slot in slot_names})

    def _managed_state(self, plugin_key: str, kernel: Kernel, call_ended: asyncio.Event) -> ManagedState:
        async def save(state: ManagedState) -> None:
            if call_ended.is_set():  # the record may belong to another attempt by now
                raise PluginError("the call that this state belongs to is over")
            self._save_state(plugin_key, kernel, state)

        stored_state = kernel.record.states.get(plugin_key, PluginState())
        state_data = msgspec.json.decode(msgspec.json.encode(stored_state.data))  # the plugin's own copy
        return ManagedState(state_data, stored_state.version, saver=save)

    @staticmethod
    def _save_state(plugin_key: str, kernel: Kernel, state: ManagedState) -> None:
        try:
            encoded_data = msgspec.json.encode(state.data)
            new_state = PluginState(version=state.version, data=msgspec.json.decode(encoded_data, type=dict))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as e:
            raise PluginError(f"the state is no JSON object: {e}") from e
        if not isinstance(state.version, int):
            raise PluginError("the version of the state is no number")
        if len(encoded_data) > MANAGED_STATE_LIMIT:
            raise PluginError(f"the state has {len(encoded_data)} bytes; {MANAGED_STATE_LIMIT} are allowed")
        if kernel.record.states.get(plugin_key, PluginState()) != new_state:
            kernel.save(states={**kernel.record.states, plugin_key: new_state})

    def _save_state_after(self, error: BaseException, plugin_key: str, kernel: Kernel, state: ManagedState) -> None:
        """Stores the plugin's managed state after a failed hook call. A second error is only logged, so that the first
        is raised.
        """
        try:
            self._save_state(plugin_key, kernel, state)
        except PluginError as e:
            if str(e) not in str(error):
                log.warning("the state of %s for kernel %s is not kept: %s", plugin_key, kernel.id, e)


async def _call_method(method: Method, hook: AbstractLifecycleHook) -> object:
    """Calls a hook's method, and turns exceptions that hooks must not raise into RuntimeError."""
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
