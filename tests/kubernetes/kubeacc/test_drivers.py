"""A driver of an IaaS inside of the controllers, and pods that wait for a device to be attached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tools.kube.cluster import Cluster

from ai.backend.common.device_operations import OperationPhase as P
from ai.backend.common.device_operations import OperationVerb as V
from ai.backend.common.errors import NotFound
from ai.backend.kubeacc.controllers.manager import ControllerManager
from ai.backend.kubeacc.controllers.operations import ATTACH_GATE
from ai.backend.kubeacc.crd.objects import ACCELERATORS, Accelerator
from ai.backend.kubeacc.crd.vocabulary import AcceleratorType, Attachment, AttachState
from ai.backend.kubeacc.drivers.spi import AbstractAcceleratorDriver, DriverDevice
from ai.backend.node.kube_api.client import KubeApi
from tests.kubernetes.kubeacc.conftest import NODE, Bench, ScriptedNode, running

pytestmark = pytest.mark.needs("kubernetes")


class Fabric(AbstractAcceleratorDriver):
    """An IaaS in memory: devices in boxes, attached to nodes."""

    name = "fabric"
    operations = frozenset({V.ATTACH, V.DETACH, V.DIAGNOSE})

    def __init__(self, *device_ids: str) -> None:
        self.nodes: dict[str, str | None] = dict.fromkeys(device_ids)

    async def discover(self) -> Sequence[DriverDevice]:
        return [
            DriverDevice(
                device_id=device_id,
                type=AcceleratorType.FPGA,
                attachment=Attachment.REMOTE,
                node_name=node,
                attach_state=AttachState.ATTACHED if node else AttachState.DETACHED,
            )
            for device_id, node in self.nodes.items()
        ]

    async def attach(self, device_id: str, node_name: str) -> None:
        if device_id not in self.nodes:
            raise NotFound(device_id)
        self.nodes[device_id] = node_name

    async def detach(self, device_id: str) -> None:
        self.nodes[device_id] = None


@pytest.fixture
def fabric(namespace: str) -> Fabric:
    return Fabric(f"box-{namespace}")


@pytest.fixture
async def manager(controllers_api: KubeApi, fabric: Fabric) -> ControllerManager:
    return ControllerManager(controllers_api, drivers=[fabric])


@pytest.fixture
async def iaas(api: KubeApi, acc_cluster: Cluster, namespace: str, manager: ControllerManager) -> AsyncIterator[Bench]:
    async with running(manager.run):
        bench = Bench(api, acc_cluster, namespace, ScriptedNode(api))
        await bench.wait_until_admitted()
        yield bench


async def discovered(bench: Bench) -> Accelerator:
    async with asyncio.timeout(10):
        while (device := await bench.api.find(ACCELERATORS, f"fabric-box-{bench.namespace}")) is None:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
    return device


async def test_a_remote_device_is_discovered_attached_and_detached(iaas: Bench, fabric: Fabric) -> None:
    device = await discovered(iaas)
    name = device.metadata.name
    assert (device.spec.attachment, device.spec.node_name) == (Attachment.REMOTE, None)
    await iaas.ask("attach", name, "Attach", attach={"nodeName": NODE})
    ended = await iaas.wait_for_end("attach")
    assert (ended.status.phase, ended.status.executor) == (P.SUCCEEDED, "driver/fabric")
    attached = await iaas.device(name)
    assert (attached.spec.node_name, attached.status.attach_state) == (NODE, AttachState.ATTACHED)
    assert attached.status.attached_by is not None
    assert attached.status.attached_by.name == "attach"
    await iaas.ask("detach", name, "Detach")
    assert (await iaas.wait_for_end("detach")).status.phase is P.SUCCEEDED
    detached = await iaas.device(name)
    assert (detached.spec.node_name, detached.status.attached_by) == (None, None)


async def test_a_pod_behind_the_gate_is_scheduled_where_its_device_is_attached(iaas: Bench) -> None:
    device = await discovered(iaas)
    metadata = {"name": "job", "namespace": iaas.namespace}
    spec = {
        "containers": [{"name": "m", "image": "registry.test/busybox:1"}],
        "schedulingGates": [{"name": ATTACH_GATE}, {"name": "example.com/other"}],
    }
    iaas.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    uid = iaas.cluster.pod("job", iaas.namespace)["metadata"]["uid"]
    gated_pod = {"name": "job", "uid": uid}
    await iaas.ask("attach", device.metadata.name, "Attach", attach={"nodeName": NODE, "gatedPod": gated_pod})
    assert (await iaas.wait_for_end("attach")).status.phase is P.SUCCEEDED
    pod = iaas.cluster.pod("job", iaas.namespace)
    assert pod["spec"]["schedulingGates"] == [{"name": "example.com/other"}]
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/hostname": NODE}


async def test_a_device_that_left_the_iaas_is_forgotten(
    iaas: Bench, fabric: Fabric, manager: ControllerManager
) -> None:
    device = await discovered(iaas)
    fabric.nodes.clear()
    manager.runners[0].discovery.wake()
    async with asyncio.timeout(10):
        while await iaas.api.find(ACCELERATORS, device.metadata.name) is not None:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
    await iaas.ask("late", device.metadata.name, "Diagnose")
    assert (await iaas.wait_for_end("late")).status.reason == "NoSuchAccelerator"


async def test_a_remote_device_that_two_offer_is_operated_by_nobody(iaas: Bench, fabric: Fabric) -> None:
    name = (await discovered(iaas)).metadata.name
    await iaas.show(name, devicePluginResource="vendor.example/fpga")
    async with asyncio.timeout(10):
        while ("Managed", "False", "TwoOwners") not in {  # noqa: ASYNC110  # no event
            (c.type, c.status, c.reason) for c in (await iaas.device(name)).status.conditions
        }:
            await asyncio.sleep(0.05)
    await iaas.ask("attach", name, "Attach", attach={"nodeName": NODE})
    refused = await iaas.wait_for_end("attach")
    assert (refused.status.phase, refused.status.reason) == (P.REFUSED, "TwoOwners")
    assert "remove one of the two" in refused.status.message
    assert set(fabric.nodes.values()) == {None}
