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


def _hidden_folders(settings: NodePluginSettings) -> tuple[str, ...]:
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
        cdi, hidden_paths = CdiFiles(settings.cdi_directory, settings.driver_name), _hidden_folders(settings)
        workloads = Workloads(tracker, checkpoint, cdi, hidden_folders=hidden_paths, deadline_s=settings.plugin_timeout)
        holders = Holders(settings, tracker, workloads)
        fact_store = FactStore(settings.state_directory / "facts.json")
        measurements = DeviceMeasurements(tracker)
        meter = UsageMeter(tracker, measurements)
        reporter = AcceleratorReports(
            api, tracker, workloads, holders, fact_store, settings, node, usage_of=meter.usage
        )
        meter.changed = reporter.wake
        publication = SlicePublication(
            api,
            tracker,
            settings,
            node,
            withheld_reason=reporter.withheld_reason,
            foreign_offer=holders.foreign_offer,
            detached_devices=reporter.detached_devices,
        )

        def foreign_offer(key: DeviceKey) -> str:
            """Returns the extended resource or the DRA driver by which somebody else offers a device."""
            return holders.foreign_offer(key) or publication.other_driver(key)

        def withheld_reason(key: DeviceKey) -> str:
            if reason := reporter.withheld_reason(key):
                return reason
            return f"somebody else offers it: {offer}" if (offer := foreign_offer(key)) else ""

        reporter.foreign_offer, workloads.withheld_reason = foreign_offer, withheld_reason
        image_folder = settings.state_directory / "images"
        remote_images = RemoteImages(settings.artifacts, image_folder)
        stack.push_async_callback(remote_images.close)
        image_sources = {**remote_images.sources, "file": file_source(settings.image_directory)}
        artifact_store = ArtifactStore(image_folder, settings.artifacts, image_sources)
        artifact_store.in_use = fact_store.images
        executor = OperationExecutor(api, tracker, reporter, fact_store, node, store=artifact_store)
        stack.push_async_callback(executor.close)
        device_plugins: list[DevicePlugin] = []

        def make_device_plugin(key: str) -> DevicePlugin | None:
            if settings.offer_of(key).by != "device-plugin":
                return None

            def may_offer(device: ComputeDevice) -> bool:
                device_key = (key, device.device_id)
                is_held = workloads.holder_of(device_key) is not None
                return not foreign_offer(device_key) and (is_held or not reporter.withheld_reason(device_key))

            plugin = DevicePlugin(tracker, workloads, key, settings.resource_of(key), may_offer)
            device_plugins.append(plugin)
            return plugin

        def on_availability_change() -> None:
            publication.wake()
            reporter.wake()
            for plugin in device_plugins:
                plugin.notify()

        holders.changed = reporter.changed = publication.changed = on_availability_change
        workloads.changed = holders.wake
        driver = DraDriver(api, tracker, workloads, settings.driver_name, node)
        coroutines = [
            tracker.run(),
            publication.watch(),
            publication.run(),
            holders.run(),
            reporter.watch(),
            reporter.run(),
            meter.run(),
            executor.watch(),
            executor.run(),
            OrphanSweep(api, workloads).run(),
            serve_dra(settings, driver, ready=ready),
            run_device_plugins(settings.kubelet_directory, tracker, make_device_plugin),
        ]
        if settings.metrics_address is not None:
            # Not among the imports of the module: the server needs memory that a node without it saves.
            from ai.backend.kubeacc.node_plugin.metrics import serve_metrics

            coroutines.append(serve_metrics(settings.metrics_address, tracker, holders, measurements))
        await _run_until(stop, coroutines)


async def _run_until(stop: asyncio.Event, coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines until ``stop`` is set. A coroutine that fails ends all, with its error."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    stop_task = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({*tasks, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stop_task}:
            task.result()
    finally:
        await cancel_all(*tasks, stop_task)
