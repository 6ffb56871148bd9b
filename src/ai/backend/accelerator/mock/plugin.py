"""Implements the mock accelerator's plugin: devices, slots, hooks and metrics of declared devices."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field

from ai.backend.accelerator.mock import metrics
from ai.backend.accelerator.mock.declaration import CUDA_DEVICE, Declaration, MockSettings, SlotFormat
from ai.backend.accelerator.mock.faults import execute_fault
from ai.backend.accelerator.mock.powers import SimulatedPowers
from ai.backend.accelerator.mock.state import MockState, with_faults
from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    SlotDisplay,
    VariantFeature,
    VariantNamespace,
)
from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import DeviceId, DeviceName, KernelId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import (
    AbstractAllocMap,
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    HookContext,
    Measurement,
    NodeInfo,
    PluginCapabilities,
    ProgrammableOptions,
    StatContext,
    Workload,
    WorkloadConfig,
    build_alloc_map,
    image_in,
    slot_totals,
)
from ai.backend.plugin.accelerator.plugin import PluginHook, resource_lines

__all__ = ["MockHook", "MockOptions", "MockPlugin", "MockSettings"]

R = TypeVar("R")


class MockOptions(ProgrammableOptions):
    """Options of a session on the mock accelerator."""

    mode: Literal["fast", "exact"] | None = Field(
        default=None, description="Shown to the session as the variable MOCK_MODE."
    )


class MockHook(PluginHook):
    """Sets the variables by which a workload finds its mock devices, as the hook of a vendor's plugin would."""

    _plugin: MockPlugin

    async def pre_create(self) -> WorkloadConfig:
        return await self._run_with_faults("pre_create", self._prepare)

    async def _prepare(self) -> WorkloadConfig:
        """Loads the image that the session selects into its devices, then configures the workload."""
        options = MockOptions.model_validate(self.context.options)
        if options.image is not None and self.context.is_diagnostic:
            raise CreationDenied("a device that is diagnosed is not programmed")
        if options.image is not None:
            path = image_in(self._plugin.mock_state.settings.images_dir, options.image)
            for device_id in sorted(self.device_alloc.device_ids()):
                await self._plugin.program(DeviceId(device_id.partition("/")[0]), path)
        config = (
            await super().pre_create()
            if not self.context.is_diagnostic
            else self._plugin.visible_device_config(self.device_alloc)
        )
        if options.mode is None:
            return config
        return replace(config, env_vars={**config.env_vars, f"{self._plugin.env_prefix}_MODE": options.mode})

    async def post_create(self) -> None:
        await self._run_with_faults("post_create", super().post_create)

    async def pre_terminate(self) -> None:
        await self._run_with_faults("pre_terminate", super().pre_terminate)

    async def post_terminate(self) -> None:
        async def release() -> None:
            self._plugin.record_allocation(self.workload.kernel_id, DeviceAllocation())

        await self._run_with_faults("post_terminate", release)

    async def _run_with_faults(self, call: str, make: Callable[[], Awaitable[R]]) -> R:
        return await self._plugin.mock_state.run_with_faults(call, make, self.device_alloc.device_ids())


class MockPlugin(SimulatedPowers, AbstractComputePlugin):
    """Simulates the devices of a declaration; see :class:`MockSettings`."""

    key: ClassVar[DeviceName] = DeviceName("mock")
    version: ClassVar[str] = "2"
    settings_model: ClassVar[type[BaseModel] | None] = MockSettings
    options_model: ClassVar[type[BaseModel] | None] = MockOptions
    key_is_slot_prefix: ClassVar[bool] = False
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities(
        partitionable=True,
        programmable=True,
        power_controllable=True,
        attachable=True,
        diagnosable=True,
        health_watching=True,
        cdi_provider=True,
    )

    def __init__(self, settings: BaseModel | None = None, *, declaration: Declaration | None = None) -> None:
        super().__init__(settings)
        config = settings if isinstance(settings, MockSettings) else MockSettings()
        self.mock_state = MockState(config, declaration, isolated=self.capabilities.blocking)

    async def init(self) -> None:
        """Reads the declaration. Raises InvalidInput or PluginError for a bad declaration, naming file and key."""
        self.mock_state.open()
        await self._fail_if_faulted("init")

    async def cleanup(self) -> None:
        await self._fail_if_faulted("cleanup")

    async def _fail_if_faulted(self, call: str) -> None:
        fault = self.mock_state.faults.take_fault(call)
        if fault is not None:
            await execute_fault(fault)

    @property
    def declaration(self) -> Declaration:
        """Returns the declaration in force; the default before :meth:`init`."""
        return self.mock_state.declaration

    @property
    def env_prefix(self) -> str:
        """Returns the prefix for the names of a session's environment variables and of entries in ``resource.txt``."""
        if self.declaration.device_plugin_name == CUDA_DEVICE:
            return "CUDA"
        return re.sub(r"\W", "_", self.declaration.slot_name).upper()

    @with_faults
    async def list_devices(self) -> Sequence[ComputeDevice]:
        return self.mock_state.present_devices()

    @with_faults
    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [self._display(subtype) for subtype in self.mock_state.subtypes()]

    def _display(self, subtype: str) -> SlotDisplay:
        formats = self.declaration.formats
        short_subtype = subtype.removeprefix("device:")
        declared_format = (
            formats.get(subtype)
            or formats.get(short_subtype)
            or (formats.get("*-mig") if short_subtype != subtype else None)
        )
        slot_format = declared_format or SlotFormat()
        is_share = subtype == "shares"
        return SlotDisplay(
            slot_name=self.mock_state.slot_name(subtype),
            slot_type=SlotType.UNIQUE if short_subtype != subtype else SlotType.COUNT,
            description=slot_format.description or "Mock accelerator",
            human_readable_name=slot_format.human_readable_name or "Mock Device",
            display_unit=slot_format.display_unit or ("Share" if is_share else "Device"),
            display_icon=slot_format.display_icon or "npu1",
            number_binary=slot_format.number_format.binary,
            number_round_length=slot_format.number_format.round_length if declared_format else 2 * is_share,
        )

    @with_faults
    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return slot_totals(self.mock_state.present_devices())

    @with_faults
    async def variant_namespaces(self) -> Sequence[VariantNamespace]:
        return [
            VariantNamespace(
                namespace=name,
                features=tuple(
                    VariantFeature(
                        name=feature,
                        match_mode=feature_rule.match,
                        multi_value=feature_rule.multi_value,
                        ordered_values=feature_rule.values,
                    )
                    for feature, feature_rule in features.items()
                ),
            )
            for name, features in self.declaration.variants.items()
        ]

    def alloc_map_spec(self) -> AllocMapSpec:
        kind = "fractional" if self.mock_state.is_fractional() else "discrete"
        return AllocMapSpec(
            kind=kind, strategy=self.mock_state.settings.strategy, shareable=self.mock_state.settings.shareable
        )

    @with_faults
    async def create_alloc_map(self) -> AbstractAllocMap:
        return build_alloc_map(self.alloc_map_spec(), self.mock_state.present_devices())

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return MockHook(workload, device_alloc, context, self)

    def record_allocation(self, kernel_id: KernelId, device_alloc: DeviceAllocation) -> None:
        """Replaces the recorded allocation of a kernel."""
        kernels_of_device, own_kernel, device_ids = (
            self.mock_state.hardware.in_use,
            str(kernel_id),
            device_alloc.device_ids(),
        )
        holders = {device_id: sorted({*kernels_of_device.get(device_id, ()), own_kernel}) for device_id in device_ids}
        holders |= {
            DeviceId(device_id): [other_kernel for other_kernel in kernels if other_kernel != own_kernel]
            for device_id, kernels in kernels_of_device.items()
            if device_id not in device_ids
        }
        self.mock_state.hardware.in_use = {device_id: kernels for device_id, kernels in holders.items() if kernels}
        self.mock_state.save()

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        self.record_allocation(workload.kernel_id, device_alloc)
        return self.visible_device_config(device_alloc)

    def visible_device_config(self, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Returns the config of a workload that sees these devices, with or without holding them."""
        device_ids = sorted(device_alloc.device_ids(), key=self.mock_state.rank)
        if not device_ids:
            return WorkloadConfig()
        prefix = self.env_prefix
        return WorkloadConfig(
            env_vars={
                f"{prefix}_VISIBLE_DEVICES": ",".join(device_ids),
                f"{prefix}_DEVICE_COUNT": str(len(device_ids)),
            },
            resource_data=self._resource_data(device_alloc, device_ids),
        )

    def _held(self, device_alloc: DeviceAllocation) -> list[tuple[ComputeDevice, Decimal]]:
        """Returns the devices of an allocation in order, and the part of each that is held: 1 is the whole device."""
        present_devices = {device.device_id: device for device in self.mock_state.present_devices()}
        return sorted(
            (
                (present_devices[device_id], quantity / slot.amount)
                for slot_name, amount_by_device in device_alloc.slots.items()
                for device_id, quantity in amount_by_device.items()
                if device_id in present_devices
                for slot in present_devices[device_id].slots
                if slot.slot_name == slot_name and slot.amount
            ),
            key=lambda item: self.mock_state.rank(item[0].device_id),
        )

    def _resource_data(self, device_alloc: DeviceAllocation, ids: Sequence[DeviceId]) -> dict[str, str]:
        """Returns the entries of ``resource.txt`` that describe the devices of a workload, and its shares of them.

        A library hook inside the workload would read them (peer facts 2.4).
        """
        device_shares = None
        if self.mock_state.slot_name("shares") in device_alloc.slots:
            ranked_devices = [(ids.index(device.device_id), part, device) for device, part in self._held(device_alloc)]
            device_shares = [
                (rank, int(held_part * device.memory_size), max(1, int(held_part * device.processing_units)))
                for rank, held_part, device in ranked_devices
            ]
        return resource_lines(self.env_prefix, ids, device_shares)

    @with_faults
    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        return [
            AttachedDevice(
                device_id=device.device_id,
                model_name=device.model_name or "",
                data={"smp": int(part * device.processing_units), "mem": int(part * device.memory_size)},
            )
            for device, part in self._held(device_alloc)
        ]

    def _scripts(self, device: ComputeDevice) -> Mapping[Any, metrics.Script]:
        return self.mock_state.devices[device.device_id.partition("/")[0]].metrics

    def _readings_of(self, device: ComputeDevice, unix_time: float) -> dict[str, float]:
        device_load = metrics.simulated_load(
            unix_time, self.mock_state.rank(device.device_id)[0], len(self.mock_state.devices)
        )
        return metrics.simulated_readings(device_load, float(device.memory_size), self._scripts(device), unix_time)

    @with_faults
    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        prefix = self.declaration.slot_name
        device_readings = [
            (device, self._readings_of(device, ctx.at), float(device.memory_size))
            for device in self.mock_state.present_devices()
        ]
        node_measurements = metrics.usage_measurements(
            prefix, [(readings, memory_bytes, Decimal(1)) for _, readings, memory_bytes in device_readings]
        )
        measurements_by_device = (
            metrics.device_measurements(prefix, device.device_id, readings, memory_bytes, self._scripts(device))
            for device, readings, memory_bytes in device_readings
        )
        return [
            *node_measurements,
            *(measurement for device_measurements in measurements_by_device for measurement in device_measurements),
        ]

    @with_faults
    async def gather_workload_metrics(
        self, ctx: StatContext, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        by_kernel: dict[KernelId, Sequence[Measurement]] = {}
        for kernel_id in kernels:
            held_parts = self._held(ctx.allocations.get(kernel_id, DeviceAllocation()))
            readings_of_parts = [
                (self._readings_of(device, ctx.at), float(device.memory_size), part) for device, part in held_parts
            ]
            if readings_of_parts:
                by_kernel[kernel_id] = metrics.usage_measurements(self.declaration.slot_name, readings_of_parts)
        return by_kernel

    @with_faults
    async def get_node_info(self) -> NodeInfo:
        attributes, problem = self.declaration.attributes, self.mock_state.panel.problem
        return NodeInfo(
            driver_version=attributes.get("nvidia_driver") or attributes.get("driver"),
            runtime_version=attributes.get("cuda_runtime") or attributes.get("runtime"),
            extra={
                "devices": str(len(self.mock_state.devices)),
                "mode": self.mock_state.settings.allocation_mode,
                **({"problem": problem} if problem else {}),
            },
        )
