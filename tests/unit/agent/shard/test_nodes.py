"""What an agent reports of a node follows from the objects of the cluster."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from ai.backend.agent.config.kubernetes import CountedSettings, DriverSettings, KubernetesSettings
from ai.backend.agent.shard.devices import MAX_COUNTED
from ai.backend.agent.shard.nodes import Requests, agent_id_of, facts_of, is_served, requests_of
from ai.backend.common.devices import DeviceHealth, LinkKind
from ai.backend.common.names import check_slug
from ai.backend.node.kube_api.objects import Node, PodSpec, ResourceSlice

SETTINGS = KubernetesSettings(cluster="prod")
GIB = 1 << 30
DEDICATED = {"key": "backend.ai/dedicated", "value": "true", "effect": "NoSchedule"}


def node(*, taints: list[dict[str, str]] | None = None, ready: str = "True", **changes: Any) -> Node:
    labels = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/rack": "r7"}
    body = {
        "metadata": {"name": "n1", "uid": "u1", "labels": {**labels, **changes.pop("labels", {})}},
        "spec": {"taints": [DEDICATED] if taints is None else taints, **changes},
        "status": {
            "allocatable": {"cpu": "31750m", "memory": "131891756Ki", "pods": "110", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": ready, "reason": "NodeStatusUnknown"}],
            "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.7"}],
            "nodeInfo": {"architecture": "arm64"},
        },
    }
    return msgspec.convert(body, Node)


def test_capacity_is_what_others_leave_in_whole_cores_and_mebibytes() -> None:
    others = Requests(cpu=Decimal("1.1"), memory=Decimal(5 * GIB + 17), pods=6)
    facts = facts_of(node(), (), others, SETTINGS, "default")
    assert (facts.cores, facts.pods, facts.architecture, facts.address) == (30, 104, "aarch64", "10.0.0.7")
    assert facts.memory_bytes == (131891756 * 1024 - 5 * GIB - 17) // (1 << 20) * (1 << 20)
    assert facts.location == ("prod", "z1", "r7")
    assert (facts.agent_id, facts.uid, facts.resource_group) == ("prod.n1", "u1", "default")
    assert (facts.closed, facts.lost) == ("", "")


def test_an_overcommitted_node_has_nothing_and_not_less() -> None:
    facts = facts_of(node(), (), Requests(cpu=Decimal(99), memory=Decimal(10**15), pods=200), SETTINGS, "default")
    assert (facts.cores, facts.memory_bytes, facts.pods) == (0, 0, 0)


@pytest.mark.parametrize(
    ("changed", "closed", "lost"),
    [
        ({"unschedulable": True}, "cordoned", ""),
        ({"taints": [DEDICATED, {"key": "maintenance", "value": "", "effect": "NoExecute"}]}, "maintenance", ""),
        ({"taints": [DEDICATED, {"key": "soft", "value": "", "effect": "PreferNoSchedule"}]}, "", ""),
        ({"ready": "Unknown"}, "", "not ready: NodeStatusUnknown"),
        (
            {"ready": "False", "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]},
            "",
            "not ready",
        ),
    ],
)
def test_a_node_is_closed_or_lost_for_a_reason(changed: dict[str, Any], closed: str, lost: str) -> None:
    facts = facts_of(node(**changed), (), Requests(), SETTINGS, "default")
    assert bool(facts.closed) == bool(closed)
    assert closed in facts.closed
    assert bool(facts.lost) == bool(lost)
    assert lost in facts.lost


def test_a_node_that_never_reported_is_lost() -> None:
    assert facts_of(Node(), (), Requests(), SETTINGS, "default").lost


def test_a_pool_has_its_own_nodes() -> None:
    shared = KubernetesSettings(pool="shared")
    assert (is_served(node(), SETTINGS), is_served(node(), shared)) == (True, False)
    assert (is_served(node(taints=[]), SETTINGS), is_served(node(taints=[]), shared)) == (False, True)


def test_the_label_of_a_node_names_its_resource_group() -> None:
    labelled = node(labels={"backend.ai/resource-group": "gpus"})
    assert facts_of(labelled, (), Requests(), SETTINGS, "default").resource_group == "gpus"


@pytest.mark.parametrize("name", ["n1", "ip-10-0-0-1.eu-west-1.compute.internal", "n" * 253, "a..b", "n_1"])
def test_ids_of_agents_are_names_that_the_manager_takes(name: str) -> None:
    agent_id = agent_id_of("prod", name)
    assert check_slug(agent_id, what="agent_id", allow_dots=True).startswith("prod.")
    assert agent_id != agent_id_of("prod", name + "x")


def container(cpu: str, **fields: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **fields}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container("1"), container("500m")]}, "1.5"),
        ({"containers": [container("1")], "initContainers": [container("4")]}, "4"),
        ({"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always")]}, "3"),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("5")],
                "overhead": {"cpu": "250m"},
            },
            "7.25",
        ),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "3"}}}, "3"),
        ({"containers": [container("nonsense")]}, "0"),
        ({"containers": [container("-4")]}, "0"),
    ],
)
def test_the_requests_of_a_pod_are_those_that_the_scheduler_counts(spec: dict[str, Any], cpu: str) -> None:
    requests = requests_of(msgspec.convert(spec, PodSpec))
    assert requests.cpu == Decimal(cpu)
    assert requests.pods == 1


# ---- devices

DRIVER = "gpu.example.com"


def device(name: str, **attributes: Any) -> dict[str, Any]:
    kinds = {str: "string", int: "int", bool: "bool"}
    typed = {key.replace("__", "/"): {kinds[type(value)]: value} for key, value in attributes.items()}
    return {"name": name, "attributes": typed, "capacity": {"memory": {"value": "80Gi"}}}


def gpus(generation: int = 3, number: int = 0, count: int = 1, *devices: dict[str, Any]) -> ResourceSlice:
    pool = {"name": "n1", "generation": generation, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": list(devices)}
    return msgspec.convert({"metadata": {"name": f"s{generation}-{number}"}, "spec": spec}, ResourceSlice)


def devices_of_slices(*slices: ResourceSlice) -> dict[str, Any]:
    settings = KubernetesSettings(cluster="prod", drivers={DRIVER: DriverSettings(device_name="cuda")})
    facts = facts_of(node(), slices, Requests(), settings, "default")
    return {str(found.device_id): found for found in facts.devices.get(DRIVER, ())}


def test_devices_have_their_attributes_and_links() -> None:
    root = "resource.kubernetes.io/pcieRoot"
    rows = [
        device("gpu-0", uuid="G0", productName="H100", numaNode=1, linkGroup="a", **{root: "pci0000:01"}),
        device("gpu-1", **{f"{DRIVER}/uuid": "G1"}, linkGroup="a"),
        device("gpu-2", uuid="G2", **{root: "pci0000:01"}),
    ]
    devices = devices_of_slices(gpus(3, 0, 1, *rows))
    first = devices["G0"]
    assert (first.device_name, first.model_name, first.numa_node) == ("cuda", "H100", 1)
    assert (first.memory_size, first.hw_location) == (80 * GIB, "pci0000:01")
    assert [(slot.slot_name, slot.amount) for slot in first.slots] == [("cuda.device", 1)]
    assert {link.peer: link.kind for link in first.links} == {"G1": LinkKind.DIRECT, "G2": LinkKind.PCIE_ROOT}
    assert devices["G2"].numa_node is None


def test_a_device_that_cannot_be_asked_for_is_left_out() -> None:
    rows = [device("gpu-0"), device("gpu-1", uuid=7), device("gpu-2", uuid="x" * 65), device("gpu-3", uuid="G3")]
    assert set(devices_of_slices(gpus(3, 0, 1, *rows))) == {"G3"}


def test_only_complete_pools_of_the_newest_generation_count() -> None:
    old = gpus(2, 0, 1, device("gpu-0", uuid="OLD"))
    half = gpus(3, 0, 2, device("gpu-0", uuid="G0"))
    assert devices_of_slices(old, half) == {}
    other_half = gpus(3, 1, 2, device("gpu-1", uuid="G1"))
    assert set(devices_of_slices(old, half, other_half)) == {"G0", "G1"}


def test_a_tainted_device_is_unhealthy_and_says_why() -> None:
    tainted = {**device("gpu-0", uuid="G0"), "taints": [{"key": "ecc", "value": "x", "effect": "NoExecute"}]}
    found = devices_of_slices(gpus(3, 0, 1, tainted))["G0"]
    assert found.health is DeviceHealth.UNHEALTHY
    assert found.health_reason == "taint ecc=x:NoExecute"


# ---- device plugins


COUNTED = KubernetesSettings(cluster="prod", counted={"nvidia.com/gpu": CountedSettings(device_name="cuda")})


def test_what_a_device_plugin_counts_are_devices_without_links() -> None:
    others = requests_of(
        msgspec.convert({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "3"}}}]}, PodSpec)
    )
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100"}
    facts = facts_of(node(labels=labels), (), others, COUNTED, "default")
    devices = facts.devices["nvidia.com/gpu"]
    assert [device.device_id for device in devices] == [f"any-{number}" for number in range(5)]
    assert {(d.device_name, d.model_name, d.numa_node, d.links) for d in devices} == {("cuda", "NVIDIA-H100", None, ())}
    assert devices[0].slots[0].slot_name == "cuda.device"
    assert others.plus(others, -1).counted == {}


@pytest.mark.parametrize("amount", ["nonsense", "-2", "0"])
def test_a_count_that_is_none_offers_nothing(amount: str) -> None:
    strange = node()
    strange.status.allocatable["nvidia.com/gpu"] = amount
    assert facts_of(strange, (), Requests(), COUNTED, "default").devices == {}


def test_a_node_never_has_more_counted_devices_than_the_limit() -> None:
    many = node()
    many.status.allocatable["nvidia.com/gpu"] = "1000000000"
    assert len(facts_of(many, (), Requests(), COUNTED, "default").devices["nvidia.com/gpu"]) == MAX_COUNTED


@pytest.mark.parametrize("name", ["gpu", "nvidia.com/", "Nvidia.com/gpu", "nvidia.com/gpu/x", "nvidia.com/g pu"])
def test_names_of_counted_resources_are_qualified(name: str) -> None:
    with pytest.raises(ValueError, match="counted"):
        KubernetesSettings(counted={name: CountedSettings()})
