"""Represents a plugin in a host as an :class:`AbstractComputePlugin`, so that the agent calls it like any other."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar

import msgspec

from ai.backend.common.devices import AllocMapSpec, DeviceAllocation
from ai.backend.common.errors import InvalidAllocation, InvalidName, PluginError
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.names import check_slot_name
from ai.backend.core.allocation.alloc_map import AbstractAllocMap, AffinityHint
from ai.backend.plugin.accelerator import (
    POWERS,
    AbstractComputePlugin,
    AbstractLifecycleHook,
    DeviceHealthChange,
    HookContext,
    Workload,
    WorkloadConfig,
    build_alloc_map,
)
from ai.backend.plugin.accelerator.plugin import PluginHook
from ai.backend.plugin.accelerator.shapes import (
    PLUGIN_CALLS,
    POWER_CALLS,
    Hello,
    HookCall,
    InvalidResponse,
    KeptState,
    LoadRequest,
)
from ai.backend.plugin.options import check_schema
from ai.backend.plugin.programs import check_program, is_program
from ai.backend.pluginhost.external_alloc_map import ExternalAllocMap
from ai.backend.pluginhost.process import HookState, HostProcess, host_environment
from ai.backend.pluginhost.protocol import PROTOCOLS, Choice

_MAX_VERSION, _MAX_VERIFIED_ON = 64, 256


class HostedPlugin(AbstractComputePlugin):
    """Represents a plugin in a host: forwards every call to the host, and stores answers that never change.

    Subclasses are made by :func:`launch`. ``init`` and ``cleanup`` are those of the plugin; :meth:`close` ends the
    process.
    """

    _is_program: ClassVar[bool] = False
    """True if the host is an executable, which has no alloc map of its own."""
    _options_schema: ClassVar[Mapping[str, Any] | None] = None

    def __init__(self, host: HostProcess, settings: Mapping[str, Any], deadline_s: float) -> None:
        super().__init__()
        self.host = host
        self._values = dict(settings)
        self.deadline_s = deadline_s
        self._spec: AllocMapSpec | None = None
        self._initialised = False

    @classmethod
    def options_schema(cls) -> Mapping[str, Any] | None:
        return cls._options_schema

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self.host.call(method, arguments, self.deadline_s)

    async def make(self) -> None:
        """Sends the settings to the plugin in the host. Raises BackendError for wrong settings."""
        await self._call("make", json.loads(json.dumps(self._values, default=str)))

    async def init(self) -> None:
        await self.make()
        self._spec = (await self._call("init")).spec
        if self._spec is None and self._is_program:
            raise PluginError("init returned no alloc map; an executable names one of the stock ones")
        self._initialised = True

    async def cleanup(self) -> None:
        try:
            if self._initialised and self.host.reason is None:
                await self._call("cleanup")
        finally:
            await self.close()

    async def close(self) -> None:
        await self.host.stop()

    def alloc_map_spec(self) -> AllocMapSpec | None:
        if not self._initialised:
            raise PluginError("the plugin is not initialised")
        return self._spec

    async def create_alloc_map(self) -> AbstractAllocMap:
        devices = await self.list_devices()
        if self._spec is not None:
            return build_alloc_map(self._spec, devices)
        await self._call("create_alloc_map")
        return ExternalAllocMap(devices, self._choose)

    def _choose(
        self,
        held_devices: DeviceAllocation,
        request: Mapping[SlotName, Decimal],
        hint: AffinityHint,
        eligible: frozenset[DeviceId] | None,
    ) -> DeviceAllocation:
        choice = Choice(held=held_devices, request=dict(request), numa_nodes=hint.numa_nodes, eligible=eligible)
        try:
            allocation: DeviceAllocation = self.host.choose(choice)
        except TimeoutError:
            raise InvalidAllocation(f"the alloc map of {self.key} does not answer") from None
        return allocation

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return HostedHook(workload, device_alloc, context, self)


class HostedHook(PluginHook):
    """Forwards the calls of a lifecycle hook to the plugin's host, and stores the managed state that the host returns.

    The host returns the state after each call, and when a call saves it.
    """

    _plugin: HostedPlugin

    async def _call(self, method: str) -> Any:
        context = self.context
        hook_call = HookCall(
            method=method,
            workload=self.workload,
            device_alloc=self.device_alloc,
            cause=context.cause,
            attempt=context.attempt,
            deadline_s=context.deadline_s,
            state=KeptState(data=msgspec.json.encode(context.state.data), version=context.state.version),
            previous_allocation=context.previous_allocation,
            image=context.image,
            cluster_role=context.cluster_role,
            cluster_rank=context.cluster_rank,
            cluster_size=context.cluster_size,
            end_reason=context.end_reason,
            is_forced=context.is_forced,
            is_diagnostic=context.is_diagnostic,
            options=dict(context.options),
        )
        deadline_s = min(self._plugin.deadline_s, context.deadline_s)
        return await self._plugin.host.call(
            "hook", (hook_call,), deadline_s, HookState(self._take_state, context.state.save)
        )

    def _take_state(self, returned_state: KeptState) -> None:
        """Stores the state that a hook returned. Raises DecodeError for a state that is no JSON object."""
        self.context.state.data = msgspec.json.decode(returned_state.data, type=dict[str, Any])
        self.context.state.version = returned_state.version

    async def pre_create(self) -> WorkloadConfig:
        config = await self._call("pre_create")
        if config is None:
            raise PluginError("pre_create returned nothing instead of a WorkloadConfig")
        return config  # type: ignore[no-any-return]  # read by the shape of a hook

    async def post_create(self) -> None:
        await self._call("post_create")

    async def pre_terminate(self) -> None:
        await self._call("pre_terminate")

    async def post_terminate(self) -> None:
        await self._call("post_terminate")


def _forward(method: str) -> Callable[..., Any]:
    async def call(self: HostedPlugin, *arguments: Any) -> Any:
        return await self._call(method, *arguments)

    call.__name__ = method
    return call


def _watch_health(self: HostedPlugin) -> AsyncIterator[DeviceHealthChange]:
    return self.host.stream("watch_health")


def _check_hello(hello: Hello) -> None:
    """Checks the description that a host sends of its plugin. Raises InvalidResponse if a part is invalid."""
    if hello.protocol not in PROTOCOLS:
        supported_versions = ", ".join(map(str, PROTOCOLS))
        raise InvalidResponse(
            f"it speaks version {hello.protocol} of the host protocol; this agent speaks {supported_versions}"
        )
    try:
        check_slot_name(hello.key)
    except InvalidName as e:
        raise InvalidResponse(f"its key is {e.message}") from None
    if "." in hello.key:
        raise InvalidResponse(f"its key {hello.key!r} has a dot in it")
    if len(hello.version) > _MAX_VERSION or len(hello.verified_on or "") > _MAX_VERIFIED_ON:
        raise InvalidResponse("its version or verified_on is too long")
    if hello.options_schema is not None:
        try:
            check_schema(hello.options_schema)
        except ValueError as e:
            raise InvalidResponse(str(e)) from None
    for power in hello.powers:
        if power not in POWERS or not getattr(hello.capabilities, power):
            raise InvalidResponse(f"it names the power {power[:64]!r}, which its capabilities do not declare")


def _class_of(hello: Hello, *, is_program: bool) -> type[HostedPlugin]:
    """Returns a new subclass of :class:`HostedPlugin` with the description and the powers of the hosted plugin."""
    calls_of_powers = (POWER_CALLS.get(power, ()) for power in hello.powers)
    call_functions = {
        call_name: _forward(call_name) for call_names in (PLUGIN_CALLS, *calls_of_powers) for call_name in call_names
    }
    if "health_watching" in hello.powers:
        call_functions["watch_health"] = _watch_health
    class_attributes = {
        "key": DeviceName(hello.key),
        "version": hello.version,
        "verified_on": hello.verified_on,
        "key_is_slot_prefix": hello.key_is_slot_prefix,
        "capabilities": hello.capabilities,
        "_is_program": is_program,
        "_options_schema": hello.options_schema,
    }
    return type("HostedPlugin", (HostedPlugin,), {**class_attributes, **call_functions})


async def launch(
    reference: str,
    settings_of: Callable[[str], Mapping[str, Any]],
    *,
    deadline_s: float,
    on_ended: Callable[[str], None],
    environment: Sequence[str] = (),
) -> HostedPlugin:
    """Starts a host and has it import a plugin; the caller calls ``init``.

    Args:
        reference: ``package.module`` or ``package.module:Name``, found as this process would find it; or the absolute
            path of an executable that speaks the host protocol, which is then the host.
        settings_of: the settings for a plugin's key.
        deadline_s: for every call.
        on_ended: called once with the reason when the process ends by itself, or is killed for what it does.
        environment: names of variables that it gets besides the usual ones.

    Raises TimeoutError if the import takes too long (nothing is left of it); PluginError, HostedCallFailed or
    BackendError if the plugin cannot be loaded; InvalidResponse if its description is of no use; OSError if there can
    be no process.
    """
    is_executable = is_program(reference)
    if is_executable:
        check_program(reference)
    host = HostProcess(reference, on_ended)
    try:
        await host.start(host_environment(environment), reference if is_executable else "")
        path = () if is_executable else tuple(sys.path)
        request = LoadRequest(protocols=PROTOCOLS, reference=reference, path=path)
        hello: Hello = await host.call("load", (request,), deadline_s)
        _check_hello(hello)
    except BaseException:
        host.kill("it was not loaded")
        await host.stop()
        raise
    return _class_of(hello, is_program=is_executable)(host, settings_of(hello.key), deadline_s)
