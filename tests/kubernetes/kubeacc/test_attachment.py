"""A pod that claims a device of another box: the scheduler chooses it, kube-acc attaches it, then the pod is bound."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kube.cluster import NODE_NAME, Cluster

from ai.backend.kubeacc.crd.vocabulary import GROUP
from ai.backend.kubeacc.node_plugin.accelerators import accelerator_name
from ai.backend.kubeacc.policies.roles import CONTROLLERS_ACCOUNT, NAMESPACE
from tests.kubernetes.kubeacc.node_plugin import (
    IS_OLD,
    NodePlugin,
    claiming_pod,
    device_class,
    exact_claim,
    running_controllers,
    running_node_plugin,
)

pytestmark = [
    pytest.mark.needs("kubernetes"),
    pytest.mark.skipif(IS_OLD, reason="its feature gate is off before 1.36"),
]
DEVICE = "far"
_DEVICES = """
slot_name = "mock"

[[devices]]
mother_uuid = "far"
model_name = "Mock of another box"
memory_size = "4g"
is_attached = false
"""


@pytest.fixture
def plugin(kubernetes_cluster: Cluster, tmp_path: Path) -> Iterator[NodePlugin]:
    cluster = kubernetes_cluster
    cluster.apply(device_class())
    offer = "attach = true"
    with (
        running_controllers(cluster, tmp_path),
        running_node_plugin(cluster, tmp_path, devices=_DEVICES, offer=offer) as running,
    ):
        selector = {"drivers": ["mock"], "attachments": ["Remote"]}
        _add(cluster, "AcceleratorClass", "remote", {"selector": selector, "priority": 5})
        yield running
    cluster.kubectl("delete", "acceleratorpolicy", "attach", "--ignore-not-found")


def _add(cluster: Cluster, kind: str, name: str, spec: dict[str, Any]) -> None:
    cluster.apply({"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})


def _conditions(cluster: Cluster, claim: str) -> dict[str, str]:
    status = json.loads(cluster.kubectl("get", "resourceclaim", claim, "-o", "json")).get("status", {})
    conditions = [condition for device in status.get("devices", ()) for condition in device["conditions"]]
    return {condition["type"]: condition["reason"] for condition in conditions}


def _attach_state(cluster: Cluster) -> str:
    name = accelerator_name(NODE_NAME, "mock", DEVICE)
    return cluster.kubectl("get", "accelerator", name, "-o", "jsonpath={.status.attachState}")


def test_a_claimed_device_is_attached_before_its_pod_is_bound(plugin: NodePlugin) -> None:
    cluster = plugin.cluster
    plugin.wait(lambda: "bindingConditions" in plugin.devices_in_slices().get(DEVICE, {}), "offer of the device", 60)
    assert _attach_state(cluster) == "Detached"
    # Without a policy the attachment is refused, and the reason is at the claim.
    cluster.apply(exact_claim("far", DEVICE), claiming_pod("far", "far"))
    plugin.wait(lambda: f"{GROUP}/AttachFailed" in _conditions(cluster, "far"), "refusal of the attachment", 60)
    assert "nodeName" not in cluster.pod("far")["spec"]
    subject = {"kind": "ServiceAccount", "name": CONTROLLERS_ACCOUNT, "namespace": NAMESPACE}
    rule = {"classNames": ["remote"], "subjects": [subject], "operations": ["Attach", "Detach"]}
    _add(cluster, "AcceleratorPolicy", "attach", rule)
    # The scheduler takes the device back and tries again.
    cluster.wait_for_phase("far", timeout_s=150)
    assert "MOCK_VISIBLE_DEVICES=far" in cluster.kubectl("logs", "far").splitlines()
    assert _conditions(cluster, "far") == {f"{GROUP}/Attached": "Attached"}
    assert _attach_state(cluster) == "Attached"
    plugin.wait(lambda: "bindingConditions" not in plugin.devices_in_slices()[DEVICE], "offer as a device of the node")
    cluster.kubectl("delete", "pod", "far", "--grace-period=1")
    cluster.kubectl("delete", "resourceclaim", "far")
    plugin.wait(lambda: not plugin.records(), "release of the device", 60)
