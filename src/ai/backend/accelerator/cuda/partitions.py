"""Partitions GPUs in MIG mode into instances, and removes them.

The administrator switches the mode itself (``nvidia-smi -i N -mig 1``). In it a GPU offers instances only."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.accelerator.cuda.gpus import Gpu, Node, Profile, read_instances, read_profiles
from ai.backend.accelerator.cuda.inventory import mig_slot
from ai.backend.accelerator.cuda.nvml import Code, Nvml, NvmlFailure, optional
from ai.backend.common.errors import BackendError, Conflict, Forbidden, InvalidInput, NotFound, PluginError
from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import PartitionProfile


def _gpu(node: Node, device_id: DeviceId) -> Gpu:
    for gpu in node.gpus:
        if gpu.uuid == device_id:
            return gpu
    raise NotFound(f"there is no GPU {device_id}")


def profiles(nvml: Nvml, node: Node, device_id: DeviceId) -> Sequence[PartitionProfile]:
    """Lists the MIG profiles of a GPU; none may be available while it is not in MIG mode. Raises NotFound."""
    gpu = _gpu(node, device_id)
    return [
        PartitionProfile(
            name=profile.name,
            slot_name=mig_slot(profile.name),
            memory_size=profile.memory_size,
            available=_remaining(nvml, gpu, profile) if gpu.uuid in node.mig_gpus else 0,
        )
        for profile in read_profiles(nvml, gpu)
    ]


def _remaining(nvml: Nvml, gpu: Gpu, profile: Profile) -> int:
    return int(optional(nvml, "nvmlDeviceGetGpuInstanceRemainingCapacity", gpu.uuid, profile.number) or 0)


def create(nvml: Nvml, node: Node, device_id: DeviceId, profile_name: str) -> DeviceId:
    """Raises NotFound, InvalidInput for a profile that the GPU does not have, Conflict, Forbidden."""
    gpu = _gpu(node, device_id)
    if gpu.uuid not in node.mig_gpus:
        raise Conflict(f"the MIG mode of {gpu.uuid} is off; switch it on while no program uses the GPU")
    by_name = {profile.name: profile for profile in read_profiles(nvml, gpu)}
    profile = by_name.get(profile_name)
    if profile is None:
        raise InvalidInput(f"{gpu.uuid} has no profile {profile_name[:64]!r}; it has {', '.join(by_name) or 'none'}")
    before = {instance.uuid for instance in read_instances(nvml, gpu)}
    try:
        nvml.create_instance(gpu.uuid, profile.number)
    except NvmlFailure as e:
        raise _refusal(e, f"another {profile_name} on {gpu.uuid}") from e
    made = [instance.uuid for instance in read_instances(nvml, gpu) if instance.uuid not in before]
    if len(made) != 1:
        raise PluginError(f"{len(made)} new instances appeared on {gpu.uuid} instead of one")
    return DeviceId(made[0])


def destroy(nvml: Nvml, node: Node, partition_id: DeviceId) -> None:
    """Removes an instance, not its neighbours in one GPU instance. Safe if it is gone. Raises Conflict, Forbidden."""
    for instance in node.instances:
        if instance.uuid == partition_id:
            if optional(nvml, "nvmlDeviceGetComputeRunningProcesses", instance.uuid):
                raise Conflict(f"programs run on {partition_id}")
            try:
                nvml.destroy_instance(instance.parent.uuid, instance.gpu_instance, instance.compute_instance)
            except NvmlFailure as e:
                if e.code != Code.NOT_FOUND:
                    raise _refusal(e, str(partition_id)) from e


def _refusal(e: NvmlFailure, what: str) -> BackendError:
    if e.code == Code.NO_PERMISSION:
        return Forbidden(f"{what}: only root may change MIG instances")
    if e.code in (Code.IN_USE, Code.INSUFFICIENT_RESOURCES):
        return Conflict(f"{what}: {e}")
    return PluginError(f"{what}: {e}")
