"""Connects the parts of the node plugin in one process."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.infra.loop import cancel_all
from ai.backend.kubeacc.drivers.artifact_sources import RemoteImages, file_source
from ai.backend.kubeacc.drivers.artifact_store import ArtifactStore
from ai.backend.kubeacc.node_plugin.accelerators import AcceleratorReports
from ai.backend.kubeacc.node_plugin.checkpoint import Checkpoint
from ai.backend.kubeacc.node_plugin.device_plugin import DevicePlugin, run_device_plugins
from ai.backend.kubeacc.node_plugin.devices import DeviceKey, DeviceTracker
from ai.backend.kubeacc.node_plugin.dra import DraDriver, OrphanSweep, serve_dra
from ai.backend.kubeacc.node_plugin.edits import CdiFiles
from ai.backend.kubeacc.node_plugin.facts import FactStore
from ai.backend.kubeacc.node_plugin.holders import Holders
from ai.backend.kubeacc.node_plugin.measurements import DeviceMeasurements, UsageMeter
from ai.backend.kubeacc.node_plugin.operations import OperationExecutor
from ai.backend.kubeacc.node_plugin.publication import SlicePublication
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.workloads import Workloads
from ai.backend.node.kube_api.client import KubeApi


def node_name_of(settings: NodePluginSettings) -> str:
    """Returns the name of this node. Raises InvalidInput if neither settings nor environment have it."""
    name = settings.node_name or os.environ.get("NODE_NAME", "")
    if not name:
        raise InvalidInput("no node name: set node-name in kube-acc-node.toml, or the variable NODE_NAME")
    return name


def _hidden(settings: NodePluginSettings) -> tuple[str, ...]:
    """Returns the folders that no plugin may mount into a pod."""
    return tuple(os.path.realpath(path) for path in (settings.state_directory, settings.kubelet_directory))


def lock_state(directory: Path) -> int:
    """Locks the state directory until the process ends, and returns the descriptor of the lock.

    Raises Conflict: another process has it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Conflict(f"another node plugin runs with the state directory {directory}") from None
    return descriptor


async def run_node_plugin(
    settings: NodePluginSettings,
    connect: Callable[[], KubeApi],
    stop: asyncio.Event,
    *,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Offers and reports the devices of this node until ``stop`` is set. Raises InvalidInput and Conflict at the start.

    What workloads hold stays theirs when the process ends; the next one goes on with it."""
    node = node_name_of(settings)
    async with AsyncExitStack() as stack:
        stack.callback(os.close, lock_state(settings.state_directory))
        checkpoint = Checkpoint(settings.state_directory / "workloads")
        api = connect()
        stack.push_async_callback(api.close)
        tracker = DeviceTracker(settings)
        stack.push_async_callback(tracker.close)
        workloads = Workloads(
            tracker,
            checkpoint,
            CdiFiles(settings.cdi_directory, settings.driver_name),
            hidden=_hidden(settings),
            deadline_s=settings.plugin_timeout,
        )
        holders = Holders(settings, tracker, workloads)
        facts = FactStore(settings.state_directory / "facts.json")
        measurements = DeviceMeasurements(tracker)
        meter = UsageMeter(tracker, measurements)
        reports = AcceleratorReports(api, tracker, workloads, holders, facts, settings, node, usage_of=meter.usage)
        meter.changed = reports.wake
        slices = SlicePublication(
            api, tracker, settings, node, withheld=reports.withheld, foreign=holders.foreign, detached=reports.detached
        )

        def foreign(key: DeviceKey) -> str:
            """Returns the extended resource or the DRA driver by which somebody else offers a device."""
            return holders.foreign(key) or slices.other_driver(key)

        def withheld(key: DeviceKey) -> str:
            return reports.withheld(key) or (f"somebody else offers it: {other}" if (other := foreign(key)) else "")

        reports.foreign, workloads.withheld = foreign, withheld
        images = settings.state_directory / "images"
        remote = RemoteImages(settings.artifacts, images)
        stack.push_async_callback(remote.close)
        sources = {**remote.sources, "file": file_source(settings.image_directory)}
        store = ArtifactStore(images, settings.artifacts, sources)
        store.in_use = facts.images
        executor = OperationExecutor(api, tracker, reports, facts, node, store=store)
        stack.push_async_callback(executor.close)
        device_plugins: list[DevicePlugin] = []

        def make_device_plugin(key: str) -> DevicePlugin | None:
            if settings.offer_of(key).by != "device-plugin":
                return None

            def offers(device: ComputeDevice) -> bool:
                device_key = (key, device.device_id)
                is_held = workloads.holder_of(device_key) is not None
                return not foreign(device_key) and (is_held or not reports.withheld(device_key))

            plugin = DevicePlugin(tracker, workloads, key, settings.resource_of(key), offers)
            device_plugins.append(plugin)
            return plugin

        def on_availability_change() -> None:
            slices.wake()
            reports.wake()
            for plugin in device_plugins:
                plugin.notify()

        holders.changed = reports.changed = slices.changed = on_availability_change
        workloads.changed = holders.wake
        driver = DraDriver(api, tracker, workloads, settings.driver_name, node)
        work = [
            tracker.run(),
            slices.follow(),
            slices.run(),
            holders.run(),
            reports.follow(),
            reports.run(),
            meter.run(),
            executor.follow(),
            executor.run(),
            OrphanSweep(api, workloads).run(),
            serve_dra(settings, driver, ready=ready),
            run_device_plugins(settings.kubelet_directory, tracker, make_device_plugin),
        ]
        if settings.metrics_address is not None:
            # Not among the imports of the module: the server needs memory that a node without it saves.
            from ai.backend.kubeacc.node_plugin.metrics import serve_metrics

            work.append(serve_metrics(settings.metrics_address, tracker, holders, measurements))
        await _run_until(stop, work)


async def _run_until(stop: asyncio.Event, work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines until ``stop`` is set. A coroutine that fails ends all, with its error."""
    tasks = [asyncio.ensure_future(one) for one in work]
    stopping = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()
    finally:
        await cancel_all(*tasks, stopping)
