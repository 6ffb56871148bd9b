"""The manager sees what happens to nodes: they join, close, are lost, come back, and bring devices. These nodes are
objects without a kubelet, whose status the test writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tools.kube.cluster import Cluster

from tests.kubernetes.shard.installation import CLUSTER, DRIVER, Installation

pytestmark = pytest.mark.needs("kubernetes")
NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture
def node(kubernetes_cluster: Cluster) -> Iterator[str]:
    name = "bare-1"
    labels = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/rack": "r7"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    kubernetes_cluster.request("POST", NODES, body)
    yield name
    kubernetes_cluster.kubectl("delete", "node", name, "--ignore-not-found")


def set_ready(cluster: Cluster, name: str, status: str) -> None:
    patch = {
        "capacity": {"cpu": "16", "memory": "64Gi", "pods": "50"},
        "allocatable": {"cpu": "15500m", "memory": "63Gi", "pods": "50"},
        "conditions": [{"type": "Ready", "status": status, "reason": "Test", "message": ""}],
        "nodeInfo": {**dict.fromkeys(_NODE_INFO, ""), "architecture": "amd64", "operatingSystem": "linux"},
    }
    body = json.dumps({"status": patch})
    cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", body)


_NODE_INFO = (
    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion"),
    "kubeProxyVersion",
)


def agent(installation: Installation, name: str) -> dict[str, Any]:
    columns = ("status", "kernel_limit", "location", "available_slots", "devices")
    rows = installation.rows(f"SELECT {', '.join(columns)} FROM agents WHERE id = '{CLUSTER}.{name}'")
    return dict(zip(columns, rows[0], strict=True)) if rows else {}


def slots(installation: Installation, name: str) -> dict[str, str]:
    offered: dict[str, str] = json.loads(agent(installation, name).get("available_slots", "{}"))
    return offered


def test_a_node_joins_closes_is_lost_and_comes_back(
    installation: Installation, kubernetes_cluster: Cluster, node: str
) -> None:
    cluster = kubernetes_cluster
    set_ready(cluster, node, "True")
    installation.until(lambda: agent(installation, node).get("kernel_limit") == 50, "the node, open")
    joined = agent(installation, node)
    assert joined["status"] == "ALIVE"
    assert all(place in joined["location"] for place in (CLUSTER, "z1", "r7"))
    assert slots(installation, node)["cpu"] == "15"

    def has_limit(kernels: int) -> bool:
        set_ready(cluster, node, "True")  # without a kubelet, it counts as lost 40 seconds after each report
        return bool(agent(installation, node)["kernel_limit"] == kernels)

    cluster.kubectl("cordon", node)
    installation.until(lambda: has_limit(0), "the node, closed")
    cluster.kubectl("uncordon", node)
    installation.until(lambda: has_limit(50), "the node, open again")
    set_ready(cluster, node, "False")
    installation.until(lambda: agent(installation, node)["status"] == "LOST", "the node, lost")
    assert installation.rows(f"SELECT count(*) FROM agents WHERE status = 'LOST' AND id <> '{CLUSTER}.{node}'") == [
        (0,)
    ]
    set_ready(cluster, node, "True")
    installation.until(lambda: agent(installation, node)["status"] == "ALIVE", "the node, back")


def test_devices_of_a_driver_come_with_their_slices(
    installation: Installation, kubernetes_cluster: Cluster, node: str
) -> None:
    cluster = kubernetes_cluster
    set_ready(cluster, node, "True")
    devices = [
        {"name": f"gpu-{i}", "attributes": {"uuid": {"string": f"G{i}"}, "productName": {"string": "H100"}}}
        for i in range(2)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-gpus"}}
    cluster.request("POST", SLICES, {**body, "spec": spec})
    try:
        installation.until(lambda: slots(installation, node).get("cuda.device") == "2", "the devices")
        shown = agent(installation, node)["devices"]
        assert '"G0"' in shown
        assert '"H100"' in shown
    finally:
        cluster.kubectl("delete", "resourceslice", f"{node}-gpus")
    installation.until(lambda: "cuda.device" not in slots(installation, node), "the end of the devices")
