"""Records what NVML and this node answer: ``python -m ai.backend.accelerator.cuda.record > recording.json``.

It calls everything that the plugin calls, of every device, and changes nothing. The recording, for ``replay``, has
UUIDs, PCI addresses and process ids of the machine, no names of users or programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import platform
import sys
from decimal import Decimal

from ai.backend.accelerator.cuda.host import Host
from ai.backend.accelerator.cuda.library import NvmlLibrary
from ai.backend.accelerator.cuda.nvml import Nvml
from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.replay import Recording, RecordingHost, RecordingNvml
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.common.devices import ComputeDevice, DeviceAllocation
from ai.backend.common.errors import BackendError
from ai.backend.plugin.accelerator import CreationDeferred, StatContext

RECORD_COMMAND = "python -m ai.backend.accelerator.cuda.record"


async def record(nvml: Nvml, host: Host, *, unix_time: float, date: str) -> Recording:
    """Calls the whole plugin and returns the recording. Raises PluginError if there is no usable driver."""
    recording = Recording()
    plugin = CudaPlugin(
        CudaSettings(mount_libraries=True), nvml=RecordingNvml(nvml, recording), host=RecordingHost(host, recording)
    )
    await plugin.init()
    try:
        devices = await plugin.list_devices()
        await plugin.configurable_slots()
        for device in devices:
            if device.partitioning_support:
                await plugin.partition_profiles(device.device_id)
            for alloc in _whole_allocations(device):
                with contextlib.suppress(CreationDeferred):  # a device without its files is recorded as such
                    await plugin.configure(None, alloc)
        await plugin.cdi_spec()
        context = StatContext(at=unix_time)
        await plugin.gather_node_metrics(context)
        await plugin.gather_process_metrics(context, {})
        node_info = await plugin.get_node_info()
    finally:
        await plugin.cleanup()
    _remove_sample_times(recording)
    model_names = sorted(
        {compute_device.model_name or "" for compute_device in devices if not compute_device.hw_location.count("/")}
    )
    recording.origin = {
        "kind": "recorded",
        "hardware": f"{sum(not gpu.hw_location.count('/') for gpu in devices)} x {', '.join(model_names) or 'nothing'}",
        "driver": f"{node_info.driver_version} (CUDA {node_info.runtime_version})",
        "system": f"{platform.system()} {platform.release()} {os.uname().machine}",
        "command": RECORD_COMMAND,
        "date": date,
    }
    return recording


def _whole_allocations(device: ComputeDevice) -> list[DeviceAllocation]:
    return [
        DeviceAllocation(slots={slot.slot_name: {device.device_id: Decimal(1)}})
        for slot in device.slots
        if slot.amount and not device.health_reason
    ]


def _remove_sample_times(recording: Recording) -> None:
    """Removes the time from queries of samples, since a replay queries at another."""
    function = "nvmlDeviceGetProcessUtilization"
    for key in [key for key in recording.answers if key.startswith(function)]:
        answer = recording.answers.pop(key)
        recording.answers[" ".join([*key.split(" ")[:2], "*"])] = answer


def main() -> int:
    now = datetime.datetime.now(datetime.UTC)
    try:
        recording = asyncio.run(record(NvmlLibrary(), Host(), unix_time=now.timestamp(), date=now.date().isoformat()))
    except BackendError as e:
        print(e.message, file=sys.stderr)
        return 1
    print(recording.dump(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
