"""Converts GPUs and MIG instances to devices and slots; partitions GPUs in MIG mode, which only offer instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from ai.backend.accelerator.cuda.gpus import Gpu, MigInstance, Node, Profile, read_instances, read_profiles, slice_name
from ai.backend.accelerator.cuda.nvml import Code, Nvml, NvmlFailure, ask_optional
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.accelerator.cuda.tables import EMULATED, FORMATS, Generation
from ai.backend.common.devices import (
    DOMAIN,
    FABRIC,
    ComputeDevice,
    ComputePrecisionSupport,
    ComputeUnit,
    DeviceHealth,
    DeviceLink,
    DeviceSlot,
    MemorySpec,
    PartitioningCapability,
    PrecisionSupport,
    SlotDisplay,
    VariantFeature,
    VariantMatchMode,
    VariantNamespace,
    VariantProperty,
)
from ai.backend.common.errors import BackendError, Conflict, Forbidden, InvalidInput, NotFound, PluginError
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator import PartitionProfile

PLUGIN_KEY = DeviceName("cuda")
DEVICE_SLOT, SHARES_SLOT = SlotName("cuda.device"), SlotName("cuda.shares")
NAMESPACE_NAME = "nvidia"
SLOT_GROUP = "gpu"
"""The exclusive group of all slots of one device: a GPU is given whole or in shares, never both."""
_MIG_TEXT = "MIG instance of a CUDA-capable GPU with {} GB"

VARIANT_NAMESPACE = VariantNamespace(
    namespace=NAMESPACE_NAME,
    features=(
        VariantFeature(name="cuda_version", match_mode=VariantMatchMode.MINIMUM),
        VariantFeature(name="driver_version", match_mode=VariantMatchMode.MINIMUM),
        VariantFeature(name="compute_capability", match_mode=VariantMatchMode.MINIMUM),
        VariantFeature(
            name="gpu_arch",
            ordered_values=("blackwell", "hopper", "ada", "ampere", "turing", "volta", "pascal", "maxwell", "kepler"),
        ),
        VariantFeature(
            name="memory_type", ordered_values=("HBM3E", "HBM3", "HBM2E", "HBM2", "GDDR7", "GDDR6X", "GDDR6")
        ),
        VariantFeature(name="precision", multi_value=True, ordered_values=FORMATS),
        VariantFeature(name="partitioning", multi_value=True, ordered_values=("MIG",)),
        VariantFeature(name="mig_profile"),
        VariantFeature(name="model"),
    ),
)


def mig_slot(profile: str) -> SlotName:
    return SlotName(f"cuda.device:{slice_name(profile)}-mig")


def slot_displays(instances: Iterable[MigInstance], profiles: Iterable[Profile]) -> list[SlotDisplay]:
    """Returns the name, the type and the texts of every slot that the node's GPUs can offer."""
    names = {*(mig.profile for mig in instances), *(profile.name for profile in profiles)}
    slices = sorted({slice_name(name) for name in names}, key=_slice_order)
    slots = [
        (DEVICE_SLOT, SlotType.COUNT, "GPU", "CUDA-capable GPU", "GPU", 0),
        (SHARES_SLOT, SlotType.COUNT, "fGPU", "Shares of CUDA-capable GPUs", "fGPU", 2),
        *(
            (
                f"cuda.device:{size}-mig",
                SlotType.UNIQUE,
                f"MIG {size}",
                _MIG_TEXT.format(size.removesuffix("g")),
                "MIG",
                0,
            )
            for size in slices
        ),
    ]
    return [
        SlotDisplay(
            slot_name=SlotName(name),
            slot_type=slot_type,
            human_readable_name=display_name,
            description=description,
            display_unit=display_unit,
            display_icon="gpu1",
            number_round_length=decimals,
        )
        for name, slot_type, display_name, description, display_unit, decimals in slots
    ]


def _slice_order(name: str) -> tuple[int, str]:
    digits = name.removesuffix("g")
    return (int(digits) if digits.isdigit() else 0, name)


def share_amount(gpu: Gpu, settings: CudaSettings) -> Decimal:
    """Returns the number of shares that a GPU offers, by its memory or its multiprocessors: the smaller number counts.

    See spec 03-06.
    """
    memory = Decimal(max(0, gpu.memory_size - settings.reserved_memory)) / settings.unit_mem
    amount = min(memory, Decimal(gpu.processors) / settings.unit_proc) if gpu.processors else memory
    return amount // settings.quantum_size * settings.quantum_size


def gpu_slots(gpu: Gpu, settings: CudaSettings, *, in_mig_mode: bool) -> tuple[DeviceSlot, ...]:
    """Returns the slots of a GPU by the allocation mode of the settings. Their amounts are 0 for a GPU in MIG mode.

    A GPU in MIG mode is still listed, for its health and to be cut.
    """
    slot_mode = settings.allocation_mode
    device_count = Decimal(0) if in_mig_mode else Decimal(1)
    share_count = Decimal(0) if in_mig_mode else share_amount(gpu, settings)
    device_slot = DeviceSlot(
        slot_name=DEVICE_SLOT, slot_type=SlotType.COUNT, amount=device_count, exclusive_group=SLOT_GROUP
    )
    quantum = settings.quantum_size
    shares_slot = DeviceSlot(
        slot_name=SHARES_SLOT, slot_type=SlotType.COUNT, amount=share_count, quantum=quantum, exclusive_group=SLOT_GROUP
    )
    return {"discrete": (device_slot,), "fractional": (shares_slot,), "either": (device_slot, shares_slot)}[slot_mode]


def devices(
    node: Node,
    settings: CudaSettings,
    *,
    versions: Mapping[str, str],
    links: Mapping[str, tuple[DeviceLink, ...]],
    faults: Mapping[str, str],
) -> list[ComputeDevice]:
    """Returns each GPU, followed by its instances. ``versions`` are the variant properties of the whole node."""
    result: list[ComputeDevice] = []
    for gpu in node.gpus:
        in_mig_mode = gpu.uuid in node.mig_gpus
        instances = PartitioningCapability(technology="MIG", max_partitions=gpu.max_instances)
        result.append(
            ComputeDevice(
                device_name=PLUGIN_KEY,
                device_id=DeviceId(gpu.uuid),
                hw_location=gpu.pci_address,
                numa_node=gpu.numa_node,
                memory_size=gpu.memory_size,
                processing_units=gpu.processors,
                model_name=gpu.name,
                health=DeviceHealth.UNHEALTHY if gpu.uuid in faults else DeviceHealth.HEALTHY,
                health_reason=faults.get(gpu.uuid, ""),
                memory_spec=MemorySpec(
                    total_memory=gpu.memory_size,
                    memory_type=gpu.memory_type,
                    bandwidth=round(gpu.bandwidth, 1) if gpu.bandwidth else None,
                ),
                compute_units=compute_units(gpu.generation, gpu.processors, gpu.cores),
                precision_support=precisions(gpu),
                partitioning_support=(instances,) if gpu.max_instances else (),
                links=links.get(gpu.uuid, ()),
                variant_properties=variants(gpu, versions, can_be_cut=bool(gpu.max_instances)),
                slots=gpu_slots(gpu, settings, in_mig_mode=in_mig_mode),
            )
        )
        result += (_instance(i, versions, faults) for i in node.instances if i.parent.uuid == gpu.uuid)
    return result


def _instance(instance: MigInstance, versions: Mapping[str, str], faults: Mapping[str, str]) -> ComputeDevice:
    gpu, slot = instance.parent, mig_slot(instance.profile)
    return ComputeDevice(
        device_name=PLUGIN_KEY,
        device_id=DeviceId(instance.uuid),
        parent_id=DeviceId(gpu.uuid),
        hw_location=f"{gpu.pci_address}/gi{instance.gpu_instance}/ci{instance.compute_instance}",
        numa_node=gpu.numa_node,
        memory_size=instance.memory_size,
        processing_units=instance.processors,
        model_name=f"{gpu.name} MIG {instance.profile}",
        health=DeviceHealth.UNHEALTHY if instance.uuid in faults else DeviceHealth.HEALTHY,
        health_reason=faults.get(instance.uuid, ""),
        memory_spec=MemorySpec(total_memory=instance.memory_size, memory_type=gpu.memory_type),
        compute_units=compute_units(gpu.generation, instance.processors, None),
        precision_support=precisions(gpu),
        variant_properties=(
            *variants(gpu, versions, can_be_cut=False),
            VariantProperty(namespace=NAMESPACE_NAME, feature="mig_profile", value=instance.profile),
        ),
        slots=(DeviceSlot(slot_name=slot, slot_type=SlotType.UNIQUE, amount=Decimal(1), exclusive_group=SLOT_GROUP),),
    )


def compute_units(generation: Generation | None, processors: int, cores: int | None) -> tuple[ComputeUnit, ...]:
    units = [ComputeUnit(name="SM", count=processors)] if processors else []
    if cores:
        units.append(ComputeUnit(name="CUDA Core", count=cores))
    if generation and generation.tensor_cores_per_sm and processors:
        units.append(ComputeUnit(name="Tensor Core", count=processors * generation.tensor_cores_per_sm))
    return tuple(units)


def precisions(gpu: Gpu) -> tuple[ComputePrecisionSupport, ...]:
    if gpu.generation is None or gpu.capability is None:
        return ()

    def support(name: str) -> PrecisionSupport:
        assert gpu.generation is not None and gpu.capability is not None  # noqa: PT018  # checked above
        if name in gpu.generation.native:
            return PrecisionSupport.NATIVE
        minimum = EMULATED.get(name)
        return PrecisionSupport.EMULATED if minimum and gpu.capability >= minimum else PrecisionSupport.NONE

    return tuple(ComputePrecisionSupport(format=name, support=support(name)) for name in FORMATS)


def variants(gpu: Gpu, versions: Mapping[str, str], *, can_be_cut: bool) -> tuple[VariantProperty, ...]:
    native_formats = gpu.generation.native if gpu.generation else ()
    feature_values: list[tuple[str, str | None]] = [
        *versions.items(),
        ("compute_capability", f"{gpu.capability[0]}.{gpu.capability[1]}" if gpu.capability else None),
        ("gpu_arch", gpu.generation.arch if gpu.generation else None),
        *(("precision", name) for name in native_formats),
        ("memory_type", gpu.memory_type),
        ("partitioning", "MIG" if can_be_cut else None),
        ("model", gpu.name),
    ]
    properties = tuple(
        VariantProperty(namespace=NAMESPACE_NAME, feature=name, value=value) for name, value in feature_values if value
    )
    if gpu.fabric is None:
        return properties
    return (*properties, VariantProperty(namespace=FABRIC, feature=DOMAIN, value=gpu.fabric))


def held_parts(
    held: Mapping[DeviceId, Decimal], slot: SlotName, devices: Sequence[ComputeDevice]
) -> dict[DeviceId, Decimal]:
    """Returns the held part of each device, from 0 to 1 for the whole device. Devices without the slot are left out."""
    totals = {
        device.device_id: device_slot.amount
        for device in devices
        for device_slot in device.slots
        if device_slot.slot_name == slot
    }
    return {device: quantity / totals[device] for device, quantity in held.items() if totals.get(device)}


def _gpu(node: Node, device_id: DeviceId) -> Gpu:
    for gpu in node.gpus:
        if gpu.uuid == device_id:
            return gpu
    raise NotFound(f"there is no GPU {device_id}")


def partition_profiles(nvml: Nvml, node: Node, device_id: DeviceId) -> Sequence[PartitionProfile]:
    """Lists the MIG profiles of a GPU; none may be available while it is not in MIG mode. Raises NotFound."""
    gpu = _gpu(node, device_id)
    return [
        PartitionProfile(
            name=profile.name,
            slot_name=mig_slot(profile.name),
            memory_size=profile.memory_size,
            slices=slices_of(profile.name),
            available=_remaining_instances(nvml, gpu, profile) if gpu.uuid in node.mig_gpus else 0,
        )
        for profile in read_profiles(nvml, gpu)
    ]


def slices_of(profile_name: str) -> int:
    """Returns the number of compute slices in the name of a MIG profile (``3g.20gb``), or 0 if the name has none."""
    number = profile_name.partition("g.")[0]
    return int(number) if number.isdigit() else 0


def _remaining_instances(nvml: Nvml, gpu: Gpu, profile: Profile) -> int:
    return int(ask_optional(nvml, "nvmlDeviceGetGpuInstanceRemainingCapacity", gpu.uuid, profile.number) or 0)


def create_partition(nvml: Nvml, node: Node, device_id: DeviceId, profile_name: str) -> DeviceId:
    """Creates a MIG instance. Raises NotFound, InvalidInput for a profile the GPU lacks, Conflict, Forbidden."""
    gpu = _gpu(node, device_id)
    if gpu.uuid not in node.mig_gpus:
        raise Conflict(f"the MIG mode of {gpu.uuid} is off; switch it on while no program uses the GPU")
    by_name = {profile.name: profile for profile in read_profiles(nvml, gpu)}
    profile = by_name.get(profile_name)
    if profile is None:
        raise InvalidInput(f"{gpu.uuid} has no profile {profile_name[:64]!r}; it has {', '.join(by_name) or 'none'}")
    existing_ids = {instance.uuid for instance in read_instances(nvml, gpu)}
    try:
        nvml.create_instance(gpu.uuid, profile.number)
    except NvmlFailure as e:
        raise _error_of(e, f"another {profile_name} on {gpu.uuid}") from e
    new_instances = [instance.uuid for instance in read_instances(nvml, gpu) if instance.uuid not in existing_ids]
    if len(new_instances) != 1:
        raise PluginError(f"{len(new_instances)} new instances appeared on {gpu.uuid} instead of one")
    return DeviceId(new_instances[0])


def destroy_partition(nvml: Nvml, node: Node, partition_id: DeviceId) -> None:
    """Removes a MIG instance, and does nothing if it is gone. Other instances in its GPU instance stay.

    Raises Conflict, Forbidden.
    """
    for instance in node.instances:
        if instance.uuid == partition_id:
            if ask_optional(nvml, "nvmlDeviceGetComputeRunningProcesses", instance.uuid):
                raise Conflict(f"programs run on {partition_id}")
            try:
                nvml.destroy_instance(instance.parent.uuid, instance.gpu_instance, instance.compute_instance)
            except NvmlFailure as e:
                if e.code != Code.NOT_FOUND:
                    raise _error_of(e, str(partition_id)) from e


def _error_of(failure: NvmlFailure, action: str) -> BackendError:
    if failure.code == Code.NO_PERMISSION:
        return Forbidden(f"{action}: only root may change MIG instances")
    if failure.code in (Code.IN_USE, Code.INSUFFICIENT_RESOURCES):
        return Conflict(f"{action}: {failure}")
    return PluginError(f"{action}: {failure}")
