"""Devices by resource claims on a real kubelet, with faults at each step (DRA v1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kube.cluster import NODE_NAME, Cluster

from tests.kubernetes.kubeacc.node_plugin import (
    IS_OLD,
    NodePlugin,
    claiming_pod,
    device_class,
    exact_claim,
    running_node_plugin,
)

pytestmark = pytest.mark.needs("kubernetes")


@pytest.fixture
def plugin(kubernetes_cluster: Cluster, tmp_path: Path) -> Iterator[NodePlugin]:
    kubernetes_cluster.apply(device_class())
    with running_node_plugin(kubernetes_cluster, tmp_path) as running:
        running.wait_for_devices(5)
        yield running


def _is_gone(cluster: Cluster, kind: str, name: str) -> bool:
    return not cluster.kubectl("get", kind, name, "--ignore-not-found", "-o", "name").strip()


def _delete(plugin: NodePlugin, pod: str, claim: str) -> None:
    plugin.cluster.kubectl("delete", "pod", pod, "--wait=false", "--ignore-not-found")
    plugin.wait(lambda: _is_gone(plugin.cluster, "pod", pod), "end of the pod", 120)
    plugin.cluster.kubectl("delete", "resourceclaim", claim, "--wait=false")
    plugin.wait(lambda: _is_gone(plugin.cluster, "resourceclaim", claim), "end of the claim", 60)


def test_a_pod_gets_exactly_the_device_of_its_claim(plugin: NodePlugin) -> None:
    cluster = plugin.cluster
    attributes = plugin.devices_in_slices()["GPU-big-2"]["attributes"]
    assert (attributes["numaNode"]["int"], attributes["model"]["string"]) == (1, "Mock H100")
    cluster.apply(exact_claim("exact", "GPU-big-2"))
    cluster.apply(claiming_pod("exact", "exact"))
    cluster.wait_for_phase("exact")
    assert "MOCK_VISIBLE_DEVICES=GPU-big-2" in cluster.kubectl("logs", "exact").splitlines()
    (record,) = plugin.records()
    assert json.loads(record.read_bytes())["phase"] == "prepared"
    assert list(json.loads(plugin.mock_state.read_bytes())["in_use"]) == ["GPU-big-2"]
    _delete(plugin, "exact", "exact")
    _wait_until_nothing_is_held(plugin)


def _wait_until_nothing_is_held(plugin: NodePlugin) -> None:
    plugin.wait(lambda: not plugin.records() and not plugin.cdi_files(), "release of the devices", 60)
    assert json.loads(plugin.mock_state.read_bytes())["in_use"] == {}


@pytest.mark.timeout(500)  # a kubelet repeats a failed preparation after more than a minute
def test_a_restart_at_each_step_loses_and_leaks_nothing(plugin: NodePlugin) -> None:
    cluster = plugin.cluster
    kubelet = cluster.daemons["kubelet"]
    cluster.apply(exact_claim("restart", "GPU-big-1"))
    # The kubelet removes the slices of the node when it starts; the driver is registered and publishes again.
    kubelet.restart()
    plugin.wait_for_devices(5)
    # The node plugin dies between its record of the devices and its answer; the kubelet asks the next one again.
    plugin.daemon.kill()
    plugin.launch(crash_at="kube-acc.prepare.recorded")
    cluster.apply(claiming_pod("restart", "restart"))
    plugin.wait(lambda: not plugin.daemon.is_alive(), "crash of the node plugin", 120)
    assert len(plugin.records()) == 1
    kubelet.restart()  # between the record of the devices and the start of the container
    plugin.launch()
    cluster.wait_for_phase("restart", timeout_s=180)
    assert "MOCK_VISIBLE_DEVICES=GPU-big-1" in cluster.kubectl("logs", "restart").splitlines()
    # A restart of both while the pod runs: it goes on, and its device stays its own.
    plugin.daemon.kill()
    kubelet.restart()
    plugin.launch()
    plugin.wait_for_devices(5)
    assert len(plugin.records()) == 1
    # The node plugin is away when the pod ends, and so is the kubelet.
    plugin.daemon.kill()
    cluster.kubectl("delete", "pod", "restart", "--wait=false")
    kubelet.restart()
    plugin.launch()
    _delete(plugin, "restart", "restart")
    _wait_until_nothing_is_held(plugin)


@pytest.mark.skipif(IS_OLD, reason="its feature gate is off before 1.36")
def test_a_failed_device_is_tainted_within_a_second_and_its_pod_ends(plugin: NodePlugin) -> None:
    cluster = plugin.cluster
    cluster.apply(exact_claim("failing", "GPU-big-3"))
    cluster.apply(claiming_pod("failing", "failing"))
    cluster.wait_for_phase("failing")
    plugin.fail("GPU-big-3", "Xid 79")
    seconds = plugin.wait(lambda: bool(plugin.devices_in_slices()["GPU-big-3"].get("taints")), "taint")
    assert seconds <= 1.0
    (taint,) = plugin.devices_in_slices()["GPU-big-3"]["taints"]
    assert (taint["effect"], taint["value"]) == ("NoExecute", "Xid-79")
    plugin.wait(lambda: _is_gone(cluster, "pod", "failing"), "eviction of the pod", 60)
    plugin.heal()
    plugin.wait(lambda: not plugin.devices_in_slices()["GPU-big-3"].get("taints"), "end of the taint")
    cluster.kubectl("delete", "resourceclaim", "failing")
    _wait_until_nothing_is_held(plugin)


@pytest.mark.skipif(IS_OLD, reason="its feature gate is off before 1.36")
def test_a_device_that_vanishes_in_use_ends_its_pod_and_is_given_back(plugin: NodePlugin) -> None:
    cluster = plugin.cluster
    cluster.apply(exact_claim("vanishing", "GPU-big-1"))
    cluster.apply(claiming_pod("vanishing", "vanishing"))
    cluster.wait_for_phase("vanishing")
    plugin.control.write_text('[[faults]]\ncall = "list_devices"\nbehaviour = "empty"\n')
    plugin.wait(lambda: list(plugin.devices_in_slices()) == ["GPU-big-1"], "end of the devices that nobody holds")
    plugin.wait(lambda: _is_gone(cluster, "pod", "vanishing"), "eviction of the pod", 60)
    cluster.kubectl("delete", "resourceclaim", "vanishing")
    plugin.wait(lambda: not plugin.devices_in_slices(), "end of the device", 60)
    plugin.heal()
    plugin.wait_for_devices(5)
    _wait_until_nothing_is_held(plugin)


def test_a_failed_device_is_offered_to_nobody(plugin: NodePlugin) -> None:
    """By a taint, or where the cluster drops taints, not at all."""
    plugin.fail("GPU-big-3", "Xid 79")
    plugin.wait(
        lambda: bool(plugin.devices_in_slices().get("GPU-big-3", {"taints": "left out"}).get("taints")),
        "end of the offer",
    )
    plugin.heal()
    plugin.wait(lambda: plugin.devices_in_slices().get("GPU-big-3", {"taints": 1}).get("taints") is None, "new offer")


def test_a_namespace_that_is_deleted_in_use_gives_its_devices_back(plugin: NodePlugin) -> None:
    cluster = plugin.cluster
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leaving"}})
    for body in (exact_claim("leaving", "GPU-big-0"), claiming_pod("leaving", "leaving")):
        body["metadata"]["namespace"] = "leaving"
        cluster.apply(body)
    cluster.wait_for_phase("leaving", namespace="leaving")
    assert len(plugin.records()) == 1
    cluster.kubectl("delete", "namespace", "leaving", "--wait=false")
    plugin.wait(lambda: _is_gone(cluster, "namespace", "leaving"), "end of the namespace", 120)
    _wait_until_nothing_is_held(plugin)


def test_a_device_that_another_driver_offers_is_left_to_it(plugin: NodePlugin) -> None:
    """It is offered again when the other driver has removed it."""
    cluster = plugin.cluster
    pool = {"name": "theirs", "generation": 1, "resourceSliceCount": 1}
    device = {"name": "a", "attributes": {"uuid": {"string": "GPU-big-2"}}}
    spec = {"driver": "gpu.vendor.example", "nodeName": NODE_NAME, "pool": pool, "devices": [device]}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "theirs"}}
    cluster.apply({**kind, "spec": spec})
    plugin.wait(lambda: "GPU-big-2" not in plugin.devices_in_slices(), "withdrawal of the device")
    cluster.kubectl("delete", "resourceslice", "theirs")
    plugin.wait(lambda: "GPU-big-2" in plugin.devices_in_slices(), "new offer of the device")


def test_a_device_that_is_unplugged_leaves_the_pool(plugin: NodePlugin) -> None:
    plugin.devices.write_text(plugin.devices.read_text().replace("count = 4", "count = 3"))
    plugin.daemon.kill()
    plugin.launch()
    plugin.wait(lambda: "GPU-big-3" not in plugin.devices_in_slices(), "removal of the device")
    cluster = plugin.cluster
    cluster.apply(exact_claim("unplugged", "GPU-big-3"))
    cluster.apply(claiming_pod("unplugged", "unplugged"))
    plugin.wait(
        lambda: "Unschedulable" in str(cluster.pod("unplugged")["status"].get("conditions")), "refusal by the scheduler"
    )
    assert not plugin.records()
    _delete(plugin, "unplugged", "unplugged")
