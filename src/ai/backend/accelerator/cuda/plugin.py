"""Implements the plugin for NVIDIA's GPUs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec
from pydantic import BaseModel

from ai.backend.accelerator.cuda import inventory, mps
from ai.backend.accelerator.cuda.gpus import Node, read_links, read_node, read_profiles
from ai.backend.accelerator.cuda.health import CriticalErrors, faults_of
from ai.backend.accelerator.cuda.host import Host
from ai.backend.accelerator.cuda.library import NvmlLibrary
from ai.backend.accelerator.cuda.metrics import Meter
from ai.backend.accelerator.cuda.mps import MpsDaemons, Share
from ai.backend.accelerator.cuda.nvml import LIBRARY_FAILURES, Nvml, NvmlFailure, ask_optional
from ai.backend.accelerator.cuda.options import NO_OPTIONS, CudaOptions
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.accelerator.cuda.workload import HeldDevice, cdi_spec, config_of, thread_percentage, with_mps
from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    DeviceLink,
    SlotDisplay,
    VariantNamespace,
)
from ai.backend.common.errors import Forbidden, PluginError
from ai.backend.common.ids import DeviceId, DeviceName, KernelId, SlotName
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    CreationDeferred,
    CreationDenied,
    DeviceHealthChange,
    HookContext,
    Measurement,
    NodeInfo,
    PartitionProfile,
    PluginCapabilities,
    StatContext,
    Workload,
    WorkloadConfig,
)
from ai.backend.plugin.accelerator.plugin import PluginHook

log = logging.getLogger(__name__)
R = TypeVar("R")
EVENT_WAIT_MS = 1000
CHECK_INTERVAL_S = 10.0
"""The seconds after which a watch for events also reads the state of the devices."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the GPUs, links, faults and driver versions of the node at one moment."""

    node: Node
    links: Mapping[str, tuple[DeviceLink, ...]]
    faults: Mapping[str, str]
    versions: Mapping[str, str]


NO_READING = Reading(node=Node(), links={}, faults={}, versions={})


class CudaHook(PluginHook):
    """Configures a workload with GPUs. With MPS it also adds the workload to the GPU's daemon and removes it.

    The config comes from the plugin and the session's options. The daemon starts with the first workload and ends with
    the last.
    """

    _plugin: CudaPlugin

    async def pre_create(self) -> WorkloadConfig:
        options = CudaOptions.model_validate(self.context.options)
        is_diagnostic = self.context.is_diagnostic
        config, held_devices = await self._plugin.configuration(self.device_alloc, options, is_diagnostic=is_diagnostic)
        if self._plugin.mps is None or is_diagnostic or not any(device.is_shared for device in held_devices):
            return config
        return await asyncio.to_thread(self._join_mps, self._plugin.mps, config, held_devices, options)

    def _join_mps(
        self, mps: MpsDaemons, config: WorkloadConfig, held: Sequence[HeldDevice], options: CudaOptions
    ) -> WorkloadConfig:
        if len(held) > 1:
            raise CreationDenied("shares of several GPUs cannot be under MPS on this node; ask for shares of one GPU")
        (device,) = held
        share = Share(memory_bytes=device.memory_limit, percent=thread_percentage(held, options))
        mps_folders = mps.hold(device.uuid, str(self.workload.kernel_id), share)
        return with_mps(config, mps_folders, isolates=mps.isolates)

    async def post_terminate(self) -> None:
        if self._plugin.mps is not None and not self.context.is_diagnostic:
            for device_id in sorted(self.device_alloc.slots.get(inventory.SHARES_SLOT, ())):
                await asyncio.to_thread(self._plugin.mps.release, str(device_id), str(self.workload.kernel_id))


class CudaPlugin(AbstractComputePlugin):
    """Serves whole GPUs, shares and MIG instances. All calls of NVML go through one thread; a wait for events has
    another."""

    key: ClassVar[DeviceName] = inventory.PLUGIN_KEY
    version: ClassVar[str] = "1"
    verified_on: ClassVar[str | None] = None
    settings_model: ClassVar[type[BaseModel] | None] = CudaSettings
    options_model: ClassVar[type[BaseModel] | None] = CudaOptions
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities(
        partitionable=True,
        health_watching=True,
        cdi_provider=True,
        process_metrics=True,
        diagnosable=True,
        blocking=True,
    )

    def __init__(
        self, settings: BaseModel | None = None, *, nvml: Nvml | None = None, host: Host | None = None
    ) -> None:
        super().__init__(settings)
        self._config = settings if isinstance(settings, CudaSettings) else CudaSettings()
        self._nvml: Nvml = nvml or NvmlLibrary()
        self._host: Host = host or Host()
        self._critical_errors = CriticalErrors(ignored=self._config.ignored_xids)
        self._thread: ThreadPoolExecutor | None = None
        self._reading = NO_READING
        self.mps: MpsDaemons | None = None

    async def init(self) -> None:
        """Opens NVML, and prepares the daemons of MPS if the settings demand MPS.

        Raises PluginError with one sentence if there is no usable driver, or not the MPS of the settings.
        """
        if self._config.sharing == "mps":
            self.mps = self._create_mps()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml")
        try:
            await self._run_in_nvml_thread(self._open)
        except BaseException:
            await self.cleanup()
            raise

    async def cleanup(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._nvml.close)
            thread.shutdown(wait=False)

    def _create_mps(self) -> MpsDaemons:
        program = self._config.mps_control or self._host.program(mps.PROGRAM)
        if program is None or self._config.allocation_mode == "discrete":
            problem = (
                f"{mps.PROGRAM} is not installed" if program is None else "plugins.cuda.allocation-mode is discrete"
            )
            raise PluginError(f"plugins.cuda.sharing is mps, and {problem}")
        return MpsDaemons(self._config.mps_dir, program, shared_memory_bytes=self._config.mps_shared_memory)

    async def _run_in_nvml_thread(self, function: Callable[[], R]) -> R:
        """Runs a function in NVML's thread. Raises PluginError in place of NvmlFailure."""
        if self._thread is None:
            raise PluginError("the plugin cuda was not started")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        except NvmlFailure as e:
            raise PluginError(str(e)) from e

    def _open(self) -> None:
        self._nvml.open()
        self._read_gpus()

    def _read_gpus(self) -> Reading:
        """Reads the node's GPUs; opens NVML again once if the driver was reloaded."""
        try:
            return self._update_reading()
        except NvmlFailure as e:
            if e.code not in LIBRARY_FAILURES:
                raise
        self._nvml.close()
        self._nvml.open()
        self._reading = replace(self._reading, links={}, versions={})
        return self._update_reading()

    def _update_reading(self) -> Reading:
        previous_reading = self._reading
        node = read_node(self._nvml, self._host, previous_reading.node, self._config.device_mask)
        for problem in set(node.unreadable) - set(previous_reading.node.unreadable):
            log.warning("a GPU cannot be offered: %s", problem)
        self._reading = Reading(
            node=node,
            # Links do not change while the driver runs.
            links=previous_reading.links
            if previous_reading.links and previous_reading.node.gpus == node.gpus
            else read_links(self._nvml, node.gpus),
            faults=faults_of(self._nvml, node, self._critical_errors, self._config.tolerated_ecc_errors),
            versions=previous_reading.versions or self._versions(),
        )
        return self._reading

    def _versions(self) -> dict[str, str]:
        driver = ask_optional(self._nvml, "nvmlSystemGetDriverVersion")
        cuda = ask_optional(self._nvml, "nvmlSystemGetCudaDriverVersion")
        versions = {"driver_version": str(driver)} if driver else {}
        if cuda:
            versions["cuda_version"] = f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}"
        return versions

    def _devices(self, reading: Reading) -> list[ComputeDevice]:
        return inventory.devices(
            reading.node, self._config, versions=reading.versions, links=reading.links, faults=reading.faults
        )

    def _held_devices(self, alloc: DeviceAllocation, reading: Reading) -> list[HeldDevice]:
        """Returns the devices of an allocation that the node has, in the node's order."""
        part_and_slot = {
            device_id: (part, slot)
            for slot, amount_by_device in alloc.slots.items()
            for device_id, part in inventory.held_parts(amount_by_device, slot, self._devices(reading)).items()
        }
        held_devices: list[HeldDevice] = []
        for device in reading.node.devices:
            part, slot = part_and_slot.get(DeviceId(device.uuid), (Decimal(0), SlotName("")))
            if part:
                is_shared = slot == inventory.SHARES_SLOT
                memory_bytes = device.memory_size - (self._config.reserved_memory if is_shared else 0)
                held_devices.append(
                    HeldDevice(device=device, part=part, memory=max(0, memory_bytes), is_shared=is_shared)
                )
        return held_devices

    async def list_devices(self) -> Sequence[ComputeDevice]:
        return await self._run_in_nvml_thread(lambda: self._devices(self._read_gpus()))

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        def ask() -> Sequence[SlotDisplay]:
            node = self._reading.node
            profiles = [profile for gpu in node.gpus if gpu.max_instances for profile in read_profiles(self._nvml, gpu)]
            return inventory.slot_displays(node.instances, profiles)

        return await self._run_in_nvml_thread(ask)

    async def variant_namespaces(self) -> Sequence[VariantNamespace]:
        return (inventory.VARIANT_NAMESPACE,)

    def alloc_map_spec(self) -> AllocMapSpec:
        kind = "discrete" if self._config.allocation_mode == "discrete" else "fractional"
        return AllocMapSpec(kind=kind, strategy=self._config.strategy, shareable=kind == "fractional")

    async def get_node_info(self) -> NodeInfo:
        reading = self._reading
        extra_info = {
            "gpus": str(len(reading.node.gpus)),
            "mig_instances": str(len(reading.node.instances)),
            "mode": self._config.allocation_mode,
            "sharing": self._config.sharing,
        }
        if reading.node.unreadable:
            extra_info["unreadable"] = "; ".join(reading.node.unreadable)
        return NodeInfo(
            driver_version=reading.versions.get("driver_version"),
            runtime_version=reading.versions.get("cuda_version"),
            extra=extra_info,
        )

    def create_lifecycle_hook(
        self, workload: Workload, device_alloc: DeviceAllocation, context: HookContext
    ) -> AbstractLifecycleHook:
        return CudaHook(workload, device_alloc, context, self)

    async def configure(self, workload: Workload | None, device_alloc: DeviceAllocation) -> WorkloadConfig:
        """Returns the config of a workload with its GPUs. Raises CreationDeferred if a GPU has failed or gone."""
        return (await self.configuration(device_alloc))[0]

    async def configuration(
        self, device_alloc: DeviceAllocation, options: CudaOptions = NO_OPTIONS, *, is_diagnostic: bool = False
    ) -> tuple[WorkloadConfig, Sequence[HeldDevice]]:
        """Returns the config of a workload with its GPUs, and the GPUs themselves. GPUs that are diagnosed may have
        failed. Raises as :meth:`configure`.
        """

        def ask() -> tuple[WorkloadConfig, Sequence[HeldDevice]]:
            reading = self._read_gpus()
            held = self._held_devices(device_alloc, reading)
            for device_id in sorted(device_alloc.device_ids()):
                if device_id in reading.faults and not is_diagnostic:
                    raise CreationDeferred(f"{device_id} has failed: {reading.faults[device_id]}", retry_after=5.0)
                if device_id not in {held_device.uuid for held_device in held}:
                    raise CreationDeferred(f"{device_id} does not offer this any more", retry_after=5.0)
            config = config_of(self._host, held, options, mount_libraries=self._config.mount_libraries)
            return config, held

        return await self._run_in_nvml_thread(ask)

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        devices_by_id = {compute_device.device_id: compute_device for compute_device in self._devices(self._reading)}
        return [
            AttachedDevice(
                device_id=DeviceId(held.uuid),
                model_name=devices_by_id[DeviceId(held.uuid)].model_name or "NVIDIA GPU",
                data={"smp": held.processor_limit, "mem": held.memory_limit},
            )
            for held in self._held_devices(device_alloc, self._reading)
        ]

    async def cdi_spec(self) -> Mapping[str, Any]:
        def ask() -> Mapping[str, Any]:
            reading = self._read_gpus()
            unusable_uuids = reading.faults.keys() | reading.node.mig_gpus
            usable_devices = [device for device in reading.node.devices if device.uuid not in unusable_uuids]
            return cdi_spec(self._host, usable_devices)

        return await self._run_in_nvml_thread(ask)

    async def gather_node_metrics(self, ctx: StatContext) -> Sequence[Measurement]:
        meter = Meter(self._nvml, ctx.at)
        return await self._run_in_nvml_thread(lambda: meter.node(self._reading.node, self._critical_errors.last_xid))

    async def gather_workload_metrics(
        self, ctx: StatContext, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        meter = Meter(self._nvml, ctx.at)

        def ask() -> Mapping[KernelId, Sequence[Measurement]]:
            by_kernel: dict[KernelId, Sequence[Measurement]] = {}
            for kernel in kernels:
                held = self._held_devices(ctx.allocations.get(kernel, DeviceAllocation()), self._reading)
                if held:
                    by_kernel[kernel] = meter.workload(held, ctx.pids.get(kernel))
            return by_kernel

        return await self._run_in_nvml_thread(ask)

    async def gather_process_metrics(
        self, ctx: StatContext, pids: Mapping[int, KernelId]
    ) -> Mapping[int, Sequence[Measurement]]:
        meter = Meter(self._nvml, ctx.at)
        node = self._reading.node
        uuids = [device.uuid for device in node.devices if device.uuid not in node.mig_gpus]
        return await self._run_in_nvml_thread(lambda: meter.processes(uuids, pids))

    async def watch_health(self) -> AsyncIterator[DeviceHealthChange]:
        """Yields first the devices that are unhealthy, and then each change of a device's health. Changes are read at
        critical errors of NVML, and every ten seconds.
        """
        reported_devices: dict[DeviceId, ComputeDevice] = {}
        gpus = self._reading.node.gpus
        watched_uuids = await self._run_in_nvml_thread(lambda: self._nvml.events([gpu.uuid for gpu in gpus]))
        event_wait = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml-events")
        loop = asyncio.get_running_loop()
        next_check_at = loop.time()
        try:
            while True:
                failure: NvmlFailure | None = None
                try:
                    event = await loop.run_in_executor(event_wait, watched_uuids.wait, EVENT_WAIT_MS)
                except NvmlFailure as e:
                    event, failure = None, e
                reason = (
                    ""
                    if event is None
                    else await self._run_in_nvml_thread(partial(self._critical_errors.on_event, event))
                )
                if reason or failure or loop.time() >= next_check_at:
                    next_check_at = loop.time() + CHECK_INTERVAL_S
                    for change in health_changes(reported_devices, await self.list_devices()):
                        yield change
                if failure is not None:
                    raise PluginError(f"NVML tells no events any more: {failure}") from failure
                if self._reading.node.gpus != gpus:
                    return  # the next watch hears of the others too
        finally:
            # A wait may still go on in the thread: the set is freed behind it.
            event_wait.submit(watched_uuids.close)
            event_wait.shutdown(wait=False)

    async def partition_profiles(self, device_id: DeviceId) -> Sequence[PartitionProfile]:
        return await self._run_in_nvml_thread(
            lambda: inventory.partition_profiles(self._nvml, self._read_gpus().node, device_id)
        )

    async def create_partition(self, device_id: DeviceId, profile: str) -> DeviceId:
        self._check_partitioning()
        return await self._run_in_nvml_thread(
            lambda: inventory.create_partition(self._nvml, self._read_gpus().node, device_id, profile)
        )

    async def destroy_partition(self, partition_id: DeviceId) -> None:
        self._check_partitioning()
        await self._run_in_nvml_thread(
            lambda: inventory.destroy_partition(self._nvml, self._read_gpus().node, partition_id)
        )

    def _check_partitioning(self) -> None:
        if not self._config.manage_partitions:
            raise Forbidden("MIG instances are not managed here; set plugins.cuda.manage-partitions to change that")


def health_changes(
    reported_devices: dict[DeviceId, ComputeDevice], current_devices: Sequence[ComputeDevice]
) -> list[DeviceHealthChange]:
    """Returns the devices whose health differs from ``reported_devices``, which is updated."""
    result = [
        DeviceHealthChange(device_id=device.device_id, health=device.health, reason=device.health_reason)
        for device in current_devices
        if (reported_devices[device.device_id].health if device.device_id in reported_devices else DeviceHealth.HEALTHY)
        is not device.health
    ]
    reported_devices.clear()
    reported_devices.update({device.device_id: device for device in current_devices})
    return result
