"""Accelerators that the node plugin reports, and operations that controllers order and it executes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kube.cluster import NODE_NAME, Cluster

from ai.backend.kubeacc.crd.vocabulary import GROUP
from ai.backend.kubeacc.node_plugin.accelerators import accelerator_name
from tests.kubernetes.kubeacc.node_plugin import (
    IS_OLD,
    NodePlugin,
    claiming_pod,
    device_class,
    exact_claim,
    running_controllers,
    running_node_plugin,
)

pytestmark = pytest.mark.needs("kubernetes")
API = f"{GROUP}/v1alpha1"
OPERATIONS = ["Partition", "Diagnose", "Power", "Program", "Reset"]


@pytest.fixture
def plugin(kubernetes_cluster: Cluster, tmp_path: Path) -> Iterator[NodePlugin]:
    """A node plugin and the controllers, in a cluster with the resources of kube-acc."""
    cluster = kubernetes_cluster
    cluster.apply(device_class())
    images = {"image_directory": str(tmp_path / "images")}
    with running_controllers(cluster, tmp_path), running_node_plugin(cluster, tmp_path, **images) as running:
        _add(cluster, "AcceleratorClass", "mock", {"selector": {"drivers": ["mock"]}})
        _add(cluster, "AcceleratorPolicy", "all", {"namespaces": ["default"], "operations": OPERATIONS})
        running.wait_for_devices(5)
        yield running


def _add(cluster: Cluster, kind: str, name: str, spec: dict[str, Any]) -> None:
    cluster.apply({"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec})


def _accelerator(plugin: NodePlugin, device_id: str) -> dict[str, Any]:
    name = accelerator_name(NODE_NAME, "mock", device_id)
    text = plugin.cluster.kubectl("get", "accelerator", name, "-o", "json", "--ignore-not-found")
    answer: dict[str, Any] = json.loads(text or "{}")
    return answer


def test_devices_are_reported_and_a_cordoned_one_is_given_to_nobody(plugin: NodePlugin) -> None:
    plugin.wait(lambda: "className" in _accelerator(plugin, "GPU-big-0").get("status", {}), "class of the device")
    status = _accelerator(plugin, "GPU-big-0")["status"]
    assert (status["device"]["model"], status["health"]["state"]) == ("Mock H100", "healthy")
    assert (status["className"], status["managedBy"], status["attachState"]) == ("mock", "KubeAcc", "Attached")
    # What `kubectl accelerators top` shows.
    plugin.wait(lambda: "usage" in _accelerator(plugin, "GPU-big-0")["status"], "use of the device", 90)
    assert {"measuredAt", "powerWatts", "temperatureCelsius"} <= _accelerator(plugin, "GPU-big-0")["status"][
        "usage"
    ].keys()
    name = accelerator_name(NODE_NAME, "mock", "GPU-big-0")
    cordon = '{"spec": {"unschedulable": true, "unschedulableReason": "fan is loud"}}'
    plugin.cluster.kubectl("patch", "accelerator", name, "--type=merge", "-p", cordon)
    plugin.wait(lambda: bool(plugin.devices_in_slices()["GPU-big-0"].get("taints")), "taint of the cordoned device")
    (taint,) = plugin.devices_in_slices()["GPU-big-0"]["taints"]
    assert (taint["key"], taint["value"], taint["effect"]) == (f"{GROUP}/withheld", "fan-is-loud", "NoSchedule")
    plugin.cluster.kubectl("patch", "accelerator", name, "--type=merge", "-p", '{"spec": {"unschedulable": false}}')
    plugin.wait(lambda: not plugin.devices_in_slices()["GPU-big-0"].get("taints"), "end of the taint")


def _wait_for_success(plugin: NodePlugin, operation: str) -> None:
    def phase() -> str:
        text = plugin.cluster.kubectl("get", "acceleratoroperation", operation, "-o", "jsonpath={.status.phase}")
        assert text not in ("Failed", "Refused"), plugin.cluster.kubectl("get", "accop", operation, "-o", "yaml")
        return text

    plugin.wait(lambda: phase() == "Succeeded", f"success of the operation {operation}", 60)


def test_each_operation_is_executed_by_the_plugin_of_its_node(plugin: NodePlugin) -> None:
    plugin.wait(lambda: "managedBy" in _accelerator(plugin, "GPU-big-1").get("status", {}), "class of the device")
    (plugin.folder / "images").mkdir()
    (plugin.folder / "images/a.bit").write_bytes(b"bits")
    digest = hashlib.sha256(b"bits").hexdigest()
    image = {"artifact": {"uri": f"file://{plugin.folder}/images/a.bit", "sha256": digest}}
    steps: list[tuple[str, dict[str, Any], str, Any]] = [
        ("Power", {"power": {"state": "Off"}}, "powerState", "Off"),
        ("Power", {"power": {"state": "On"}}, "powerState", "On"),
        ("Program", {"program": image}, "program", digest),
        ("Diagnose", {}, "program", digest),
        ("Reset", {}, "program", None),
    ]
    for number, (verb, parameters, field, value) in enumerate(steps):
        accelerator = accelerator_name(NODE_NAME, "mock", "GPU-big-1")
        spec = {"accelerator": accelerator, "operation": verb, "requestedBy": "admin", **parameters}
        _add(plugin.cluster, "AcceleratorOperation", f"step-{number}", spec)
        _wait_for_success(plugin, f"step-{number}")
        shown = _accelerator(plugin, "GPU-big-1")["status"].get(field)
        assert (shown["sha256"] if isinstance(shown, dict) else shown) == value, verb


def test_a_partition_that_an_operation_makes_can_be_claimed(plugin: NodePlugin) -> None:
    plugin.wait(lambda: "managedBy" in _accelerator(plugin, "cut").get("status", {}), "class of the device")
    spec = {
        "accelerator": accelerator_name(NODE_NAME, "mock", "cut"),
        "operation": "Partition",
        "requestedBy": "admin",
        "partition": {"action": "Create", "profile": "1g.10gb"},
    }
    _add(plugin.cluster, "AcceleratorOperation", "cut-it", spec)
    _wait_for_success(plugin, "cut-it")
    plugin.wait(lambda: any(uuid.startswith("cut/") for uuid in plugin.devices_in_slices()), "the partition")
    assert "cut" not in plugin.devices_in_slices()  # its partition is offered instead
    ((uuid, partition),) = [one for one in plugin.devices_in_slices().items() if one[0].startswith("cut/")]
    if not IS_OLD:
        assert partition["consumesCounters"][0]["counters"]["memory"]["value"] == str(10 << 30)
    plugin.cluster.apply(exact_claim("part", uuid), claiming_pod("part", "part"))
    plugin.cluster.wait_for_phase("part")
    assert f"MOCK_VISIBLE_DEVICES={uuid}" in plugin.cluster.kubectl("logs", "part").splitlines()
    plugin.cluster.kubectl("delete", "pod", "part", "--grace-period=1")
    plugin.cluster.kubectl("delete", "resourceclaim", "part")
    plugin.wait(lambda: not plugin.records() and not plugin.cdi_files(), "release of the partition", 60)
