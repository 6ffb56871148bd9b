"""Implements the mock accelerator's plugin: devices, slots, hooks and metrics of declared devices."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field

from ai.backend.accelerator.mock import metrics
from ai.backend.accelerator.mock.declaration import CUDA_DEVICE, Declaration, MockSettings, SlotFormat
from ai.backend.accelerator.mock.faults import act
from ai.backend.accelerator.mock.powers import SimulatedPowers
from ai.backend.accelerator.mock.state import MockState, faulted
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
    """Shows the workload its devices, as a vendor's plugin would."""

    _plugin: MockPlugin

    async def pre_create(self) -> WorkloadConfig:
        return await self._run_with_faults("pre_create", self._prepare)

    async def _prepare(self) -> WorkloadConfig:
        """Loads the image that the session selects into its devices, then configures the workload."""
        options = MockOptions.model_validate(self.context.options)
        if options.image is not None and self.context.is_diagnostic:
            raise CreationDenied("a device that is diagnosed is not programmed")
        if options.image is not None:
            path = image_in(self._plugin.board.settings.images_dir, options.image)
            for device_id in sorted(self.device_alloc.device_ids()):
                await self._plugin.program(DeviceId(device_id.partition("/")[0]), path)
        config = await super().pre_create() if not self.context.is_diagnostic else self._plugin.show(self.device_alloc)
        if options.mode is None:
            return config
        return replace(config, env_vars={**config.env_vars, f"{self._plugin.env_prefix}_MODE": options.mode})

    async def post_create(self) -> None:
        await self._run_with_faults("post_create", super().post_create)

    async def pre_terminate(self) -> None:
        await self._run_with_faults("pre_terminate", super().pre_terminate)

    async def post_terminate(self) -> None:
        async def release() -> None:
            self._plugin.hold(self.workload.kernel_id, DeviceAllocation())

        await self._run_with_faults("post_terminate", release)

    async def _run_with_faults(self, call: str, make: Callable[[], Awaitable[R]]) -> R:
        return await self._plugin.board.faulted(call, make, self.device_alloc.device_ids())


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
        self.board = MockState(config, declaration, isolated=self.capabilities.blocking)

    async def init(self) -> None:
        """Reads the declaration. Raises InvalidInput or PluginError for a bad declaration, naming file and key."""
        self.board.open()
        await self._fail_if_faulted("init")

    async def cleanup(self) -> None:
        await self._fail_if_faulted("cleanup")

    async def _fail_if_faulted(self, call: str) -> None:
        fault = self.board.faults.pick(call)
        if fault is not None:
            await act(fault)

    @property
    def declaration(self) -> Declaration:
        """Returns the declaration in force; the default before :meth:`init`."""
        return self.board.declaration

    @property
    def env_prefix(self) -> str:
        """Returns the first part of the variables of sessions and of lines of ``resource.txt``."""
        if self.declaration.device_plugin_name == CUDA_DEVICE:
            return "CUDA"
        return re.sub(r"\W", "_", self.declaration.slot_name).upper()

    @faulted
    async def list_devices(self) -> Sequence[ComputeDevice]:
        return self.board.present()

    @faulted
    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [self._display(subtype) for subtype in self.board.subtypes()]

    def _display(self, subtype: str) -> SlotDisplay:
        formats = self.declaration.formats
        short = subtype.removeprefix("device:")
        declared = formats.get(subtype) or formats.get(short) or (formats.get("*-mig") if short != subtype else None)
        shown = declared or SlotFormat()
        is_share = subtype == "shares"
        return SlotDisplay(
            slot_name=self.board.slot_name(subtype),
            slot_type=SlotType.UNIQUE if short != subtype else SlotType.COUNT,
            description=shown.description or "Mock accelerator",
            human_readable_name=shown.human_readable_name or "Mock Device",
            display_unit=shown.display_unit or ("Share" if is_share else "Device"),
            display_icon=shown.display_icon or "npu1",
            number_binary=shown.number_format.binary,
            number_round_length=shown.number_format.round_length if declared else 2 * is_share,
        )

    @faulted
    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        return slot_totals(self.board.present())

    @faulted
    async def variant_namespaces(self) -> Sequence[VariantNamespace]:
        return [
            VariantNamespace(
                namespace=name,
                features=tuple(
                    VariantFeature(
                        name=feature, match_mode=mode.match, multi_value=mode.multi_value, ordered_values=mode.values
                    )
                    for feature, mode in features.items()
                ),
            )
            for name, features in self.declaration.variants.items()
        ]

    def alloc_map_spec(self) -> AllocMapSpec:
        kind = "fractional" if self.board.is_fractional() else "discrete"
        return AllocMapSpec(kind=kind, strategy=self.board.settings.strategy, shareable=self.board.settings.shareable)

    @faulted
    async def create_alloc_map(self) -> AbstractAllocMap:
        return build_alloc_map(self.alloc_map_spec(), self.board.present())

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return MockHook(workload, device_alloc, context, self)

    def hold(self, kernel_id: KernelId, device_alloc: DeviceAllocation) -> None:
        """Replaces the recorded allocation of a kernel."""
        used, kernel, device_ids = self.board.hardware.in_use, str(kernel_id), device_alloc.device_ids()
        holders = {device_id: sorted({*used.get(device_id, ()), kernel}) for device_id in device_ids}
        holders |= {
            DeviceId(device_id): [other for other in kernels if other != kernel]
            for device_id, kernels in used.items()
            if device_id not in device_ids
        }
        self.board.hardware.in_use = {device_id: kernels for device_id, kernels in holders.items() if kernels}
        self.board.save()

    async def configure(self, workload: Workload, device_alloc: DeviceAllocation) -> WorkloadConfig:
        self.hold(workload.kernel_id, device_alloc)
        return self.show(device_alloc)

    def show(self, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Returns the config of a workload that sees devices, held or not."""
        ids = sorted(device_alloc.device_ids(), key=self.board.rank)
        if not ids:
            return WorkloadConfig()
        prefix = self.env_prefix
        return WorkloadConfig(
            env_vars={f"{prefix}_VISIBLE_DEVICES": ",".join(ids), f"{prefix}_DEVICE_COUNT": str(len(ids))},
            resource_data=self._resource_data(device_alloc, ids),
        )

    def _held(self, device_alloc: DeviceAllocation) -> list[tuple[ComputeDevice, Decimal]]:
        """Returns the devices of an allocation in order, and the part of each that is held: 1 is the whole device."""
        present_devices = {device.device_id: device for device in self.board.present()}
        return sorted(
            (
                (present_devices[device_id], quantity / slot.amount)
                for name, per_device in device_alloc.slots.items()
                for device_id, quantity in per_device.items()
                if device_id in present_devices
                for slot in present_devices[device_id].slots
                if slot.slot_name == name and slot.amount
            ),
            key=lambda item: self.board.rank(item[0].device_id),
        )

    def _resource_data(self, device_alloc: DeviceAllocation, ids: Sequence[DeviceId]) -> dict[str, str]:
        """Returns lines of ``resource.txt``: what a library hook inside would read (peer facts 2.4)."""
        shares = None
        if self.board.slot_name("shares") in device_alloc.slots:
            held = [(ids.index(device.device_id), part, device) for device, part in self._held(device_alloc)]
            shares = [
                (rank, int(p * device.memory_size), max(1, int(p * device.processing_units)))
                for rank, p, device in held
            ]
        return resource_lines(self.env_prefix, ids, shares)

    @faulted
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
        return self.board.devices[device.device_id.partition("/")[0]].metrics

    def _readings_of(self, device: ComputeDevice, unix_time: float) -> dict[str, float]:
        device_load = metrics.load_at(unix_time, self.board.rank(device.device_id)[0], len(self.board.devices))
        return metrics.readings(device_load, float(device.memory_size), self._scripts(device), unix_time)

    @faulted
    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        prefix = self.declaration.slot_name
        states = [
            (device, self._readings_of(device, ctx.at), float(device.memory_size)) for device in self.board.present()
        ]
        total = metrics.of_parts(prefix, [(values, memory, Decimal(1)) for _, values, memory in states])
        by_device = (
            metrics.of_device(prefix, device.device_id, state, memory, self._scripts(device))
            for device, state, memory in states
        )
        return [*total, *(measurement for of_device in by_device for measurement in of_device)]

    @faulted
    async def gather_workload_metrics(
        self, ctx: StatContext, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        by_kernel: dict[KernelId, Sequence[Measurement]] = {}
        for kernel_id in kernels:
            held = self._held(ctx.allocations.get(kernel_id, DeviceAllocation()))
            parts = [(self._readings_of(device, ctx.at), float(device.memory_size), part) for device, part in held]
            if parts:
                by_kernel[kernel_id] = metrics.of_parts(self.declaration.slot_name, parts)
        return by_kernel

    @faulted
    async def get_node_info(self) -> NodeInfo:
        attributes, problem = self.declaration.attributes, self.board.panel.problem
        return NodeInfo(
            driver_version=attributes.get("nvidia_driver") or attributes.get("driver"),
            runtime_version=attributes.get("cuda_runtime") or attributes.get("runtime"),
            extra={
                "devices": str(len(self.board.devices)),
                "mode": self.board.settings.allocation_mode,
                **({"problem": problem} if problem else {}),
            },
        )
