"""The node plugin as a kubelet sees it: over its sockets, with mock devices, restarts and bad requests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from ai.backend.common.errors import Conflict
from ai.backend.kubeacc.node_plugin import wire
from ai.backend.kubeacc.node_plugin.checkpoint import Checkpoint
from ai.backend.kubeacc.node_plugin.daemon import lock_state
from ai.backend.kubeacc.node_plugin.device_plugin import DevicePlugin
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker, device_name, name_in_cluster
from ai.backend.kubeacc.node_plugin.dra import DraDriver
from ai.backend.kubeacc.node_plugin.edits import CdiFiles
from ai.backend.kubeacc.node_plugin.rpc import grpc_client, grpc_server
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.workloads import Workloads
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import (
    AllocatedDevice,
    ClaimAllocation,
    ClaimDevices,
    ClaimStatus,
    ObjectMeta,
    ResourceClaim,
)
from ai.backend.plugin.accelerator import LifecycleCause

DRIVER = "accelerators.backend.ai"
ISOLATED = ("ai.backend.accelerator.mock.isolated",)
"""The mock plugin in a host process, which may die."""


@dataclass
class Claims:
    """The claims of the API server."""

    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)

    def allocate(self, name: str, *device_ids: str) -> str:
        """Allocates devices to a claim and returns its uid."""
        self.devices[name] = device_ids
        return self.uids.setdefault(name, str(uuid.uuid4()))

    async def get(self, _resource: object, name: str, _namespace: str) -> ResourceClaim:
        results = [
            AllocatedDevice(request="gpu/first", driver=DRIVER, pool="node", device=name_in_cluster("mock", one))
            for one in self.devices[name]
        ]
        status = ClaimStatus(allocation=ClaimAllocation(devices=ClaimDevices(results=results)))
        return ResourceClaim(metadata=ObjectMeta(name=name, namespace="default", uid=self.uids[name]), status=status)


class Node:
    """A node plugin whose state survives :meth:`restart`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.claims = folder, Claims()
        self.control = folder / "mock-control.toml"
        declaration = folder / "mock-accelerator.toml"
        declaration.write_text('[[devices]]\nmother_uuid = "GPU"\ncount = 4\nmodel_name = "Mock"\n')
        values = {"config-path": str(declaration), "state-path": str(folder / "mock.json")}
        self.settings = NodePluginSettings(
            compute_plugins=("ai.backend.accelerator.mock",), cdi_directory=folder / "cdi", plugins={"mock": values}
        )
        self._stack = AsyncExitStack()
        self.call: Any = None
        self.workloads: Workloads
        self.tracker: DeviceTracker

    async def start(self) -> None:
        self._stack = AsyncExitStack()
        self.tracker = DeviceTracker(self.settings)
        self._stack.push_async_callback(self.tracker.close)
        cdi = CdiFiles(self.settings.cdi_directory, DRIVER)
        self.workloads = Workloads(self.tracker, Checkpoint(self.folder / "workloads"), cdi)
        await self.tracker.once()
        driver = DraDriver(cast("KubeApi", self.claims), self.tracker, self.workloads, DRIVER, "node")
        plugin = DevicePlugin(self.tracker, self.workloads, "mock", "backend.ai/mock")
        socket = self.folder / "node.sock"
        services = {wire.DRA_PLUGIN: driver, wire.DEVICE_PLUGIN: plugin}
        await self._stack.enter_async_context(grpc_server(socket, services))
        self.call = await self._stack.enter_async_context(grpc_client(socket, wire.DRA_PLUGIN))
        self.call_plugin = await self._stack.enter_async_context(grpc_client(socket, wire.DEVICE_PLUGIN))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def prepare(self, *names: str) -> dict[str, Any]:
        """Returns the answer for each claim by its name."""
        request = wire.dra.NodePrepareResourcesRequest()
        for name in names:
            request.claims.add(namespace="default", name=name, uid=self.claims.uids[name])
        answer = await self.call("NodePrepareResources", request)
        return {name: answer.claims[self.claims.uids[name]] for name in names}

    async def unprepare(self, name: str) -> str:
        request = wire.dra.NodeUnprepareResourcesRequest()
        request.claims.add(namespace="default", name=name, uid=self.claims.uids[name])
        answer = await self.call("NodeUnprepareResources", request)
        return str(answer.claims[self.claims.uids[name]].error)

    async def allocate(self, *device_ids: str) -> Any:
        request = wire.device_plugin.AllocateRequest()
        request.container_requests.add(devices_ids=device_ids)
        return await self.call_plugin("Allocate", request)

    def files(self) -> list[Path]:
        """Returns what is left of workloads."""
        folders = (self.folder / "workloads", self.folder / "cdi")
        return [path for folder in folders if folder.exists() for path in folder.iterdir()]

    def held(self) -> dict[str, Any]:
        """Returns what the simulated hardware holds to be in use."""
        path = self.folder / "mock.json"
        return dict(json.loads(path.read_bytes())["in_use"]) if path.exists() else {}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="bai-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def node(short_folder: Path) -> AsyncIterator[Node]:
    one = Node(short_folder)
    await one.start()
    yield one
    await one.stop()


async def test_a_prepared_claim_is_the_same_after_a_restart(node: Node) -> None:
    node.claims.allocate("a", "GPU-1", "GPU-2")
    first = (await node.prepare("a"))["a"]
    assert first.error == ""
    assert [list(device.request_names) for device in first.devices] == [["gpu"], ["gpu"]]
    (path,) = (node.folder / "cdi").iterdir()
    (described,) = json.loads(path.read_bytes())["devices"]
    assert f"{DRIVER}/claim={described['name']}" in first.devices[0].cdi_device_ids
    assert "MOCK_VISIBLE_DEVICES=GPU-1,GPU-2" in described["containerEdits"]["env"]
    path.unlink()  # as a start of the machine does, whose /run is empty
    await node.restart()
    assert (await node.prepare("a"))["a"] == first
    assert path.exists()
    assert await node.unprepare("a") == ""
    assert await node.unprepare("a") == ""  # a repeat is no error
    assert (node.files(), node.held()) == ([], {})


async def test_a_device_has_one_holder_and_a_refused_claim_costs_no_other_its_answer(node: Node) -> None:
    node.claims.allocate("holder", "GPU-0")
    node.claims.allocate("second", "GPU-0")
    node.claims.allocate("other", "GPU-3")
    node.claims.allocate("vanished", "GPU-9")
    await node.prepare("holder")
    answers = await node.prepare("second", "other", "vanished")
    assert "is held by default/holder (dra)" in answers["second"].error
    assert "is not there" in answers["vanished"].error
    assert answers["other"].error == ""
    assert answers["other"].devices
    with pytest.raises(grpc.aio.AioRpcError, match="is held by default/holder"):
        await node.allocate("gpu-0-" + name_of("GPU-0"))
    assert len(node.workloads.records) == 2


def name_of(device_id: str) -> str:
    """Returns the digest in the name of a device."""
    return device_name(device_id).rpartition("-")[2]


async def test_a_claim_that_a_plugin_refuses_leaves_nothing(node: Node) -> None:
    node.claims.allocate("refused", "GPU-0")
    node.control.write_text('[[faults]]\ncall = "pre_create"\nbehaviour = "deny"\n')
    await node.tracker.once()
    answer = (await node.prepare("refused"))["refused"]
    assert answer.error
    assert not answer.devices
    assert (node.files(), node.held(), node.workloads.records) == ([], {}, {})
    node.control.write_text("")
    await node.tracker.once()
    assert (await node.prepare("refused"))["refused"].error == ""


async def test_a_call_that_the_kubelet_gave_up_is_repeated_as_a_recovery(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.claims.allocate("slow", "GPU-0")
    handle = node.tracker.plugin_handle("mock")
    assert handle is not None
    plugin, make = handle.plugin, handle.plugin.create_lifecycle_hook
    causes: list[LifecycleCause] = []

    class Stuck:
        async def pre_create(self) -> None:
            await asyncio.Event().wait()

    def create(workload: Any, allocation: Any, context: Any) -> Any:
        causes.append(context.cause)
        return Stuck() if len(causes) == 1 else make(workload, allocation, context)

    monkeypatch.setattr(plugin, "create_lifecycle_hook", create)
    request = wire.dra.NodePrepareResourcesRequest()
    request.claims.add(namespace="default", name="slow", uid=node.claims.uids["slow"])
    with pytest.raises(grpc.aio.AioRpcError):
        await node.call("NodePrepareResources", request, 0.3)
    assert (await node.prepare("slow"))["slow"].error == ""
    assert causes == [LifecycleCause.CREATE, LifecycleCause.RECOVER]


async def test_a_claim_with_another_uid_is_not_prepared(node: Node) -> None:
    node.claims.allocate("new", "GPU-0")
    request = wire.dra.NodePrepareResourcesRequest()
    request.claims.add(namespace="default", name="new", uid="old")
    request.claims.add(namespace="default", name="new", uid="../../etc/passwd")
    answer = await node.call("NodePrepareResources", request)
    assert "another one by now" in answer.claims["old"].error
    assert answer.claims["../../etc/passwd"].error
    assert node.files() == []


async def test_devices_that_are_allocated_anew_were_given_back(node: Node) -> None:
    names = [f"gpu-{number}-{name_of(f'GPU-{number}')}" for number in range(3)]
    await node.allocate(*names[:2])
    answer = await node.allocate(*names[1:])
    assert answer.container_responses[0].envs["MOCK_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    (record,) = node.workloads.records.values()
    assert {device.device_id for device in record.devices} == {"GPU-1", "GPU-2"}
    assert sorted(node.held()) == ["GPU-1", "GPU-2"]
    for unknown in ((), ("gpu-9",), (names[0], "x" * 5000)):
        with pytest.raises(grpc.aio.AioRpcError, match="has no device"):
            await node.allocate(*unknown)


async def test_a_failed_device_is_told_and_starts_no_container(node: Node) -> None:
    stream = node.call_plugin("ListAndWatch", wire.device_plugin.Empty(), None)
    assert {device.health for device in (await stream.read()).devices} == {"Healthy"}
    node.control.write_text('[unhealthy]\nGPU-2 = "Xid 79"\n')
    await node.tracker.once()
    assert [device.health for device in (await stream.read()).devices].count("Unhealthy") == 1
    stream.cancel()
    request = wire.device_plugin.PreStartContainerRequest(devices_ids=[f"gpu-2-{name_of('GPU-2')}"])
    with pytest.raises(grpc.aio.AioRpcError, match="Xid 79"):
        await node.call_plugin("PreStartContainer", request)


def test_two_node_plugins_share_no_state(short_folder: Path) -> None:
    descriptor = lock_state(short_folder)
    with pytest.raises(Conflict, match="another node plugin"):
        lock_state(short_folder)
    os.close(descriptor)
