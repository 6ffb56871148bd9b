"""Measures how soon a device that fails is tainted in a real API server."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.kube.cluster import ClusterOptions, running_cluster

from ai.backend.infra.loop import cancel_all
from ai.backend.kubeacc.composition import connect
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker
from ai.backend.kubeacc.node_plugin.publication import UNHEALTHY_TAINT, SlicePublication
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.node.kube_api.objects import ResourceSlice
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import RESOURCE_SLICES
from bench.figures import Figure, benchmark, spread

MAX_S = 1.0
_NODE, _DEVICES, _LIMIT_S = "node1", 11, 30.0
_PAUSE_S = 0.23
"""Between two failures; not in step with the poll of the mock devices."""


class _Taints:
    """Knows which devices have the taint of a failed one, as another client of the API server sees them."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self.changed, self.offered = asyncio.Event(), asyncio.Event()

    def on_change(self, _before: ResourceSlice | None, after: ResourceSlice | None) -> None:
        devices = after.spec.devices if after is not None else ()
        self.names = frozenset(
            device.name for device in devices if any(taint.key == UNHEALTHY_TAINT for taint in device.taints)
        )
        self.changed.set()
        if devices:
            self.offered.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(_LIMIT_S):
            while len(self.names) != count:
                self.changed.clear()
                await self.changed.wait()


async def _measure(kubeconfig: Path, folder: Path) -> list[float]:
    """Returns the seconds from each failure to its taint in a watch of the slices."""
    declaration, control = folder / "mock-accelerator.toml", folder / "mock-control.toml"
    declaration.write_text(f'[[devices]]\nmother_uuid = "GPU"\ncount = {_DEVICES}\nmodel_name = "Mock"\n')
    plugin = {"config-path": str(declaration), "control-path": str(control), "state-path": str(folder / "state.json")}
    settings = NodePluginSettings(compute_plugins=("ai.backend.accelerator.mock",), plugins={"mock": plugin})
    api, observer, taints = connect(kubeconfig), connect(kubeconfig), _Taints()
    tracker = DeviceTracker(settings)
    publication = SlicePublication(api, tracker, settings, _NODE)
    watch: Reflector[ResourceSlice] = Reflector(observer, RESOURCE_SLICES, on_change=taints.on_change)
    work = (tracker.run(), publication.watch(), publication.run(), watch.run())
    tasks = [asyncio.ensure_future(one) for one in work]
    times = []
    try:
        async with asyncio.timeout(_LIMIT_S):
            await taints.offered.wait()
        for count in range(1, _DEVICES):  # one after the other, and none recovers
            failing = "\n".join(f'"GPU-{number}" = "Xid 79"' for number in range(count))
            await asyncio.sleep(_PAUSE_S)
            started_at = time.monotonic()
            control.write_text(f"[unhealthy]\n{failing}\n")
            await taints.wait_for(count)
            times.append(time.monotonic() - started_at)
    finally:
        await cancel_all(*tasks)
        await tracker.close()
        await api.close()
        await observer.close()
    return times


@benchmark("kube-acc-taint", "a device fails, until its taint is visible in a watch of a real API server")
def kube_acc_taint() -> Sequence[Figure]:
    node: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}}
    with running_cluster(ClusterOptions(has_node=False)) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.apply(node)
        times = asyncio.run(_measure(cluster.kubeconfig, Path(folder)))
    return [
        Figure(
            name="kube-acc-taint",
            value=statistics.median(times),
            unit="s",
            target=f"<= {MAX_S:g} s, the slowest too",
            holds=max(times) <= MAX_S,
            detail={**spread(times), "slowest": max(times), "devices": _DEVICES},
        )
    ]
