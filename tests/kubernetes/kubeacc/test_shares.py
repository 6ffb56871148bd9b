"""Pods that share a device by the consumable capacity of DRA, as the real scheduler divides it, and their metrics."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tools.kube.cluster import Cluster

from tests.kubernetes.kubeacc.node_plugin import (
    IS_OLD,
    NodePlugin,
    claiming_pod,
    device_class,
    exact_claim,
    running_node_plugin,
)

pytestmark = [
    pytest.mark.needs("kubernetes"),
    pytest.mark.skipif(IS_OLD, reason="its feature gate is off before 1.36"),
]
PORT = 9410
DEVICE = "GPU-shared"
_SHARED_DEVICES = """
slot_name = "mock"

[[devices]]
mother_uuid = "GPU-shared"
model_name = "Mock L4"
memory_size = "4g"
subproc_count = 16
offers = ["shares"]
metrics.util = 40
"""


@pytest.fixture
def plugin(kubernetes_cluster: Cluster, tmp_path: Path) -> Iterator[NodePlugin]:
    kubernetes_cluster.apply(device_class())
    address = {"metrics_address": f"0.0.0.0:{PORT}"}
    with running_node_plugin(
        kubernetes_cluster, tmp_path, devices=_SHARED_DEVICES, offer="shares = true", **address
    ) as running:
        running.wait_for_devices(1)
        yield running


def _share(name: str, amount: str) -> dict[str, Any]:
    return exact_claim(name, DEVICE, capacity={"requests": {"mock_shares": amount}})


def _samples(cluster: Cluster) -> dict[str, list[Any]]:
    with urllib.request.urlopen(f"http://{cluster.address}:{PORT}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def test_pods_share_a_device_and_no_more_than_it_has(plugin: NodePlugin) -> None:
    cluster = plugin.cluster
    capacity = plugin.devices_in_slices()[DEVICE]["capacity"]["mock_shares"]
    assert capacity["value"] == "2"
    for name, amount in (("one", "1"), ("half", "500m")):
        cluster.apply(_share(name, amount), claiming_pod(name, name))
    for name in ("one", "half"):
        cluster.wait_for_phase(name)
    assert len(plugin.records()) == 2
    cluster.apply(_share("too-much", "700m"), claiming_pod("too-much", "too-much"))
    cluster.wait_for(
        lambda: "Unschedulable" in str(cluster.pod("too-much")["status"].get("conditions")), "refusal by the scheduler"
    )
    plugin.wait(lambda: len(_samples(cluster).get("backendai_pod_device", ())) == 2, "both holders as metrics", 60)
    samples = _samples(cluster)
    assert {(s.labels["pod"], s.labels["claim"], s.labels["device_id"]) for s in samples["backendai_pod_device"]} == {
        ("one", "one", DEVICE),
        ("half", "half", DEVICE),
    }
    (util,) = samples["backendai_device_mock_util_ratio"]
    assert (util.labels["device_id"], util.value) == (DEVICE, 0.4)
    # What one gives back the waiting one gets.
    cluster.kubectl("delete", "pod", "one", "--grace-period=1")
    cluster.kubectl("delete", "resourceclaim", "one")
    cluster.wait_for_phase("too-much", timeout_s=90)
    cluster.kubectl("delete", "pod", "half", "too-much", "--grace-period=1")
    cluster.kubectl("delete", "resourceclaim", "half", "too-much")
    plugin.wait(lambda: not plugin.records() and not plugin.cdi_files(), "release of all shares", 60)
