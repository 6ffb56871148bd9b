"""Devices by an extended resource on a real kubelet (device plugin v1beta1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tools.kube.cluster import NODE_NAME, Cluster

from tests.kubernetes.kubeacc.node_plugin import NodePlugin, running_node_plugin
from tests.support.kubernetes import busybox_pod

pytestmark = pytest.mark.needs("kubernetes")
RESOURCE = "backend.ai/mock"
METRICS_PORT = 9410


@pytest.fixture
def plugin(kubernetes_cluster: Cluster, tmp_path: Path) -> Iterator[NodePlugin]:
    settings = {"metrics_address": f"0.0.0.0:{METRICS_PORT}"}
    with running_node_plugin(kubernetes_cluster, tmp_path, by="device-plugin", **settings) as running:
        running.wait(lambda: _allocatable(kubernetes_cluster) == "5", "5 allocatable devices", 60)
        yield running


def _allocatable(cluster: Cluster) -> str:
    node = cluster.request("GET", f"/api/v1/nodes/{NODE_NAME}")
    return str(node["status"]["allocatable"].get(RESOURCE, "none"))


def _devices_of_pods(cluster: Cluster) -> dict[str, set[str]]:
    """The devices of each pod by the metrics of the node, each of which has a measurement too."""
    text = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE_NAME}:{METRICS_PORT}/proxy/metrics")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    measured = {sample.labels["device_id"] for sample in samples if sample.name.startswith("backendai_device_")}
    pods: dict[str, set[str]] = {}
    for sample in samples:
        if sample.name == "backendai_pod_device":
            assert (sample.labels["namespace"], sample.labels["container"]) == ("default", "main")
            assert sample.labels["device_id"] in measured
            pods.setdefault(sample.labels["pod"], set()).add(sample.labels["device_id"])
    return pods


def _pod(name: str, count: int) -> dict[str, Any]:
    pod = busybox_pod(name, "env; exec sleep 1000")
    pod["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: str(count)}}
    return pod


def _start_after_a_restart(cluster: Cluster, pod: dict[str, Any]) -> None:
    """Makes a pod again while the kubelet refuses it, as the controller of a workload does.

    After its restart the node shows the resources of before, and the kubelet refuses every pod that asks for one until
    the plugin has registered again and listed its devices."""
    name = pod["metadata"]["name"]

    def is_running() -> bool:
        status = cluster.pod(name)["status"]
        if status.get("reason") == "UnexpectedAdmissionError":
            cluster.kubectl("delete", "pod", name, "--wait=true")
            cluster.apply(pod)
        return bool(status.get("phase") == "Running")

    cluster.apply(pod)
    cluster.wait_for(is_running, f"pod {name} to run after the restart", 60)


def test_a_pod_gets_linked_devices_also_after_a_restart_of_the_kubelet(plugin: NodePlugin) -> None:
    cluster = plugin.cluster
    assert plugin.devices_in_slices() == {}  # no device has two ways to a pod
    cluster.apply(_pod("pair", 2))
    cluster.wait_for_phase("pair")
    (line,) = [line for line in cluster.kubectl("logs", "pair").splitlines() if line.startswith("MOCK_VISIBLE_DEVICES")]
    # Links join the devices in pairs.
    assert line.partition("=")[2] in ("GPU-big-0,GPU-big-1", "GPU-big-2,GPU-big-3")
    (record,) = plugin.records()
    plugin.wait(lambda: _devices_of_pods(cluster) == {"pair": set(line.partition("=")[2].split(","))}, "holders", 60)
    cluster.daemons["kubelet"].restart()
    _start_after_a_restart(cluster, _pod("rest", 3))
    assert len(plugin.records()) == 2
    assert record.exists()
    # Another process of the node plugin goes on where the killed one was.
    plugin.daemon.kill()
    plugin.launch()
    assert len(plugin.records()) == 2
    # A device that fails is allocatable no more.
    plugin.fail("cut", "Xid 79")
    plugin.wait(lambda: _allocatable(cluster) == "4", "failure at the node", 60)
    plugin.heal()
    plugin.wait(lambda: _allocatable(cluster) == "5", "recovery at the node", 60)
    # The kubelet gives the devices of a pod that has ended to the next one.
    cluster.kubectl("delete", "pod", "pair", "rest", "--wait=true")
    cluster.apply(_pod("all", 5))
    cluster.wait_for_phase("all", timeout_s=60)
    (record,) = plugin.records()
    cluster.kubectl("delete", "pod", "all", "--wait=true")
