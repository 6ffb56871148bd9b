"""Measures the node plugin of kube-acc over its sockets, as a kubelet calls it."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.node_plugin import wire
from ai.backend.kubeacc.node_plugin.checkpoint import Checkpoint
from ai.backend.kubeacc.node_plugin.device_plugin import DevicePlugin
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker, name_in_cluster
from ai.backend.kubeacc.node_plugin.dra import DraDriver
from ai.backend.kubeacc.node_plugin.edits import CdiFiles
from ai.backend.kubeacc.node_plugin.rpc import grpc_client, grpc_server
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.workloads import Workloads
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import ClusterAddress
from bench.figures import Figure, benchmark, spread

ALLOCATE_MS = 5.0
PREPARE_MS = 100.0
_DEVICES, _WANTED, _ROUNDS = 64, 8, 40
IDLE_PERCENT, IDLE_MB = 1.0, 80.0
_IDLE_DEVICES, _SETTLE_S, _IDLE_S = 8, 12.0, 30.0
_NODE = "node"
_DECLARATION = f"""
topology = "nvlink-pairs"
[[devices]]
mother_uuid = "GPU"
count = {_DEVICES}
model_name = "Mock H100"
numa_node = [0, 1]
memory_size = "80g"
"""


@asynccontextmanager
async def _node(folder: Path) -> AsyncIterator[tuple[DeviceTracker, Workloads, NodePluginSettings]]:
    """Gives the devices and workloads of a node plugin with mock devices."""
    declaration = folder / "mock-accelerator.toml"
    declaration.write_text(_DECLARATION)
    settings = NodePluginSettings(
        compute_plugins=("ai.backend.accelerator.mock",),
        cdi_directory=folder / "cdi",
        plugins={"mock": {"config-path": str(declaration)}},
    )
    tracker = DeviceTracker(settings)
    cdi = CdiFiles(settings.cdi_directory, settings.driver_name)
    workloads = Workloads(tracker, Checkpoint(folder / "workloads"), cdi)
    await tracker.once()
    try:
        yield tracker, workloads, settings
    finally:
        await tracker.close()


async def _measure_allocate(folder: Path) -> list[float]:
    """Returns the milliseconds of a preferred allocation and the allocation of the devices that it names."""
    api, times = wire.device_plugin, []
    async with _node(folder) as (tracker, workloads, _):
        plugin = DevicePlugin(tracker, workloads, "mock", "backend.ai/mock")
        socket = folder / "plugin.sock"
        async with grpc_server(socket, {wire.DEVICE_PLUGIN: plugin}), grpc_client(socket, wire.DEVICE_PLUGIN) as call:
            stream = call("ListAndWatch", api.Empty(), None)
            names = [device.ID for device in (await stream.read()).devices]
            stream.cancel()
            for round_number in range(_ROUNDS):
                available = names[round_number % 7 :]
                started_at = time.perf_counter()
                request = api.PreferredAllocationRequest()
                request.container_requests.add(available_deviceIDs=available, allocation_size=_WANTED)
                (preferred,) = (await call("GetPreferredAllocation", request)).container_responses
                request = api.AllocateRequest()
                request.container_requests.add(devices_ids=preferred.deviceIDs)
                (allocated,) = (await call("Allocate", request)).container_responses
                times.append((time.perf_counter() - started_at) * 1000)
                if len(allocated.envs["MOCK_VISIBLE_DEVICES"].split(",")) != _WANTED:
                    raise AssertionError(f"the container would see {allocated.envs}")
                for uid in list(workloads.records):
                    await workloads.release(uid)
    return times


async def _measure_prepare(folder: Path) -> list[float]:
    """Returns the milliseconds from the kubelet's call to a prepared claim, with the claim read over HTTP."""
    uids: dict[str, str] = {}

    async def claim(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        result = {"request": "gpu", "driver": "accelerators.backend.ai", "pool": _NODE}
        result["device"] = name_in_cluster("mock", f"GPU-{int(name) % _DEVICES}")
        status = {"allocation": {"devices": {"results": [result]}}}
        return web.json_response({"metadata": {"name": name, "uid": uids[name]}, "status": status})

    application = web.Application()
    application.router.add_get("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}", claim)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    api = KubeApi(ClusterAddress(server=f"http://127.0.0.1:{port}"), lambda: Backoff(0.2, 30.0))
    times = []
    try:
        async with _node(folder) as (tracker, workloads, settings):
            driver = DraDriver(api, tracker, workloads, settings.driver_name, _NODE)
            socket = folder / "dra.sock"
            async with grpc_server(socket, {wire.DRA_PLUGIN: driver}), grpc_client(socket, wire.DRA_PLUGIN) as call:
                for number in range(_ROUNDS):
                    uid = uids[str(number)] = str(uuid.UUID(int=number + 1))
                    times.append(await _prepare_and_unprepare(call, uid, str(number)))
    finally:
        await api.close()
        await runner.cleanup()
    return times


async def _prepare_and_unprepare(call: Any, uid: str, name: str) -> float:
    started_at = time.perf_counter()
    request = wire.dra.NodePrepareResourcesRequest()
    request.claims.add(namespace="default", uid=uid, name=name)
    prepared = (await call("NodePrepareResources", request)).claims[uid]
    elapsed_ms = (time.perf_counter() - started_at) * 1000
    if prepared.error or not prepared.devices[0].cdi_device_ids:
        raise AssertionError(f"the claim is not prepared: {prepared}")
    request = wire.dra.NodeUnprepareResourcesRequest()
    request.claims.add(namespace="default", uid=uid, name=name)
    if error := (await call("NodeUnprepareResources", request)).claims[uid].error:
        raise AssertionError(error)
    return elapsed_ms


def _figure(name: str, times: Sequence[float], limit_ms: float, target: str) -> Figure:
    value = statistics.median(times)
    return Figure(
        name=name,
        value=value,
        unit="ms",
        target=target,
        holds=value <= limit_ms,
        detail={**spread(times), "devices": _DEVICES, "slowest": max(times)},
    )


class _EmptyNode:
    """A kubelet's PodResources without any pod."""

    async def list(self, _request: Any, _context: Any) -> Any:
        return wire.pod_resources.ListPodResourcesResponse()

    async def get_allocatable_resources(self, _request: Any, _context: Any) -> Any:
        return wire.pod_resources.AllocatableResourcesResponse()


@asynccontextmanager
async def _api_server() -> AsyncIterator[str]:
    """Serves what the node plugin asks an API server without the resources of kube-acc; gives its address."""

    async def slices(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        metadata = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
        bookmark = {"type": "BOOKMARK", "object": {"kind": "ResourceSlice", "metadata": metadata}}
        await response.write(json.dumps(bookmark).encode() + b"\n")
        await asyncio.sleep(3600)
        return response

    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"metadata": {"name": request.path.rpartition("/")[2], "uid": "1"}})

    application = web.Application()
    application.router.add_get("/apis/resource.k8s.io/v1/resourceslices", slices)
    application.router.add_patch("/apis/resource.k8s.io/v1/resourceslices/{name}", echo)
    application.router.add_get("/api/v1/nodes/{name}", echo)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _measure_idle(folder: Path) -> tuple[float, float]:
    """Returns the share of a processor in percent, and the memory in MB, of a node plugin without work."""
    (folder / "mock-accelerator.toml").write_text(_DECLARATION.replace(str(_DEVICES), str(_IDLE_DEVICES)))
    (folder / "kube-acc-node.toml").write_text(
        f"""
node-name = "{_NODE}"
kubelet-directory = "{folder}"
cdi-directory = "{folder}/cdi"
state-directory = "{folder}/state"
compute-plugins = ["ai.backend.accelerator.mock"]
plugins.mock.config-path = "{folder}/mock-accelerator.toml"
"""
    )
    async with (
        _api_server() as server,
        grpc_server(folder / "pod-resources/kubelet.sock", {wire.POD_RESOURCES: _EmptyNode()}),
    ):
        cluster = {"name": "c", "cluster": {"server": server}}
        context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
        config = {"clusters": [cluster], "contexts": [context], "users": [{"name": "c", "user": {}}]}
        (folder / "kubeconfig").write_text(json.dumps({**config, "current-context": "c"}))
        command = ["-m", "ai.backend.cli.main", "kube-acc", "node-plugin", "start-server"]
        options = ["-f", str(folder / "kube-acc-node.toml"), "--kubeconfig", str(folder / "kubeconfig")]
        process = await asyncio.create_subprocess_exec(sys.executable, *command, *options)
        try:
            await asyncio.sleep(_SETTLE_S)
            before_s = _processor_s(process.pid)
            await asyncio.sleep(_IDLE_S)
            used_s = _processor_s(process.pid) - before_s
            memory_mb = _memory_mb(process.pid)
        finally:
            process.terminate()
            await process.wait()
    return used_s / _IDLE_S * 100, memory_mb


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@benchmark("kube-acc-node-idle", "processor time and memory of the node plugin of kube-acc without work")
def kube_acc_node_idle() -> Sequence[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        percent, memory_mb = asyncio.run(_measure_idle(Path(folder)))
    detail = {"devices": float(_IDLE_DEVICES), "seconds": _IDLE_S}
    return [
        Figure(
            name="kube-acc-node-processor",
            value=percent,
            unit="%",
            target=f"<= {IDLE_PERCENT:g} % of a processor with {_IDLE_DEVICES} devices",
            holds=percent <= IDLE_PERCENT,
            detail=detail,
        ),
        Figure(
            name="kube-acc-node-memory",
            value=memory_mb,
            unit="MB",
            target=f"<= {IDLE_MB:g} MB with {_IDLE_DEVICES} devices",
            holds=memory_mb <= IDLE_MB,
            detail=detail,
        ),
    ]


@benchmark("kube-acc-allocate", "allocate linked devices by the device plugin interface of kube-acc, durably")
def kube_acc_allocate() -> Sequence[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        times = asyncio.run(_measure_allocate(Path(folder)))
    target = f"<= {ALLOCATE_MS:g} ms for the preferred {_WANTED} of {_DEVICES} devices, both calls"
    return [_figure("kube-acc-allocate", times, ALLOCATE_MS, target)]


@benchmark("kube-acc-prepare", "prepare a claim of an exact device by kube-acc, durably, with the plugin's hooks")
def kube_acc_prepare() -> Sequence[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        times = asyncio.run(_measure_prepare(Path(folder)))
    return [
        _figure("kube-acc-prepare", times, PREPARE_MS, f"<= {PREPARE_MS:g} ms from the kubelet's call to the answer")
    ]
