"""Pods are what the golden file says, restricted whatever is asked for, and hold nothing of their users."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ai.backend.agent.shard.nodes import requests_of
from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.node.kube_api.objects import PodSpec
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.runtime import NetworkView, WorkloadKey, WorkloadSpec
from ai.backend.runtime.kubernetes.manifest import ClusterFacts, compose_pod
from ai.backend.runtime.kubernetes.settings import FolderClaim, KubernetesRuntimeSettings
from tests.support.pod_security import violations

GOLDEN = Path(__file__).with_name("pod.json")
SESSION = SessionId(UUID("5e551011-0000-4000-8000-000000000001"))
KEY = WorkloadKey(kernel_id=KernelId(UUID("6e8bcbb3-db9d-458c-847d-a24e425db855")), attempt=2)
SETTINGS = KubernetesRuntimeSettings(
    runner_image="registry.example/runner:1",
    relay_target="shard.backendai.svc:6020",
    image_pull_secrets=("registry",),
    priority_class="backendai-sessions",
    folders={"/vfroot/local": FolderClaim(claim="vfolders", sub_path="data")},
)
FACTS = ClusterFacts(authority="-----PEM-----", has_image_volumes=True, device_classes={})
SPEC = WorkloadSpec(
    key=KEY,
    session_id=SESSION,
    image="registry.example/python:3.11",
    environ={"PASSWORD": "tell-nobody"},
    config=WorkloadConfig(
        cpu_limit=1.5,
        memory_limit_bytes=1 << 30,
        mounts=(
            Mount(source="/vfroot/local/q/ab/cd/1", target="/home/work/data", read_only=False),
            Mount(source="/vfroot/local/q/ab/cd/2", target="/home/work/models"),
        ),
        devices=(DeviceMapping(source="", cdi_name="gpu.example.com/uuid=GPU-1"),),
        extra_gids=(44,),
    ),
    files={"/home/config/resource.txt": b"secret-content", "/home/work/.ssh/authorized_keys": b"ssh-ed25519 AAAA"},
    private_files=frozenset({"/home/work/.ssh/authorized_keys"}),
    shmem_bytes=1 << 26,
    home_bytes=1 << 31,
    labels={"ai.backend.owner": "AKIA"},
)
NETWORK = NetworkView(session_id=SESSION, network_id="s-1", addresses={"main1": "", "sub1": ""})


def compose(spec: WorkloadSpec = SPEC, *, has_image_volumes: bool = True) -> dict[str, Any]:
    return compose_pod(spec, SETTINGS, replace(FACTS, has_image_volumes=has_image_volumes), "node-7")


def test_the_pod_is_that_of_the_golden_file() -> None:
    pod = compose()
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(pod, indent=2) + "\n")
    assert pod == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("has_image_volumes", [True, False])
@pytest.mark.parametrize("network", [None, NETWORK])
@pytest.mark.parametrize("runtime_class", ["", "gvisor"])
def test_every_pod_is_restricted(has_image_volumes: bool, network: NetworkView | None, runtime_class: str) -> None:
    spec = replace(SPEC, network=network, runtime_class=runtime_class)
    assert violations(compose(spec, has_image_volumes=has_image_volumes)) == []


def test_the_checker_sees_what_is_forbidden() -> None:
    pod = compose()
    pod["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    pod["spec"]["hostNetwork"] = True
    pod["spec"]["containers"][0]["securityContext"] = {}
    assert len(violations(pod)) == 4


def test_nothing_of_the_user_is_in_the_pod() -> None:
    text = json.dumps(compose())
    assert not [secret for secret in ("tell-nobody", "PASSWORD", "secret-content", "AAAA") if secret in text]


def test_it_is_pinned_to_its_node_by_affinity() -> None:
    spec = compose()["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-7"]}]}]
    assert "nodeName" not in spec


def test_shared_memory_is_added_to_the_limit() -> None:
    main = next(c for c in compose()["spec"]["containers"] if c["name"] == "main")
    assert main["resources"]["limits"]["memory"] == str((1 << 30) + (1 << 26))


def test_mounts_of_one_claim_share_a_volume() -> None:
    pod = compose()["spec"]
    main = next(c for c in pod["containers"] if c["name"] == "main")
    folders = [mount for mount in main["volumeMounts"] if mount["name"].startswith("folder-")]
    assert [(mount["mountPath"], mount["subPath"], mount.get("readOnly", False)) for mount in folders] == [
        ("/home/work/data", "data/q/ab/cd/1", False),
        ("/home/work/models", "data/q/ab/cd/2", True),
    ]
    assert {mount["name"] for mount in folders} == {"folder-0"}


def test_the_token_is_in_the_relay_alone() -> None:
    pod = compose()["spec"]
    holders = [c["name"] for c in pod["containers"] if any(m["name"] == "token" for m in c["volumeMounts"])]
    assert holders == ["relay"]
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (WorkloadConfig(mounts=(Mount(source="/elsewhere/a", target="/home/work/a"),)), "mounts"),
        (WorkloadConfig(mounts=(Mount(source="/vfroot/local/../../etc", target="/home/work/a"),)), "mounts"),
        (WorkloadConfig(mounts=(Mount(source="/vfroot/localx/a", target="/home/work/a"),)), "mounts"),
        (WorkloadConfig(mounts=(Mount(source="/vfroot/local/a", target="/etc"),)), "mounts"),
        (WorkloadConfig(networks=("bridge",)), "networks"),
        (WorkloadConfig(extra_syscalls=("bpf",)), "extra_syscalls"),
    ],
)
def test_what_a_pod_cannot_have_is_denied_with_its_field(config: WorkloadConfig, field: str) -> None:
    with pytest.raises(CreationDenied) as denied:
        compose(replace(SPEC, config=config))
    assert denied.value.data["field"] == field


REACHING = {
    "extra_gids": (WorkloadConfig(extra_gids=(4711,)), ("spec", "securityContext", "supplementalGroups"), [4711]),
    "cpu_limit": (WorkloadConfig(cpu_limit=2.0), ("spec", "containers", -1, "resources", "limits", "cpu"), "2000m"),
    "memory_limit_bytes": (
        WorkloadConfig(memory_limit_bytes=1 << 30),
        ("spec", "containers", -1, "resources", "limits", "memory"),
        str((1 << 30) + (1 << 26)),
    ),
    "devices": (
        WorkloadConfig(devices=SPEC.config.devices),
        ("spec", "resourceClaims", 0, "name"),
        "devices",
    ),
    "mounts": (WorkloadConfig(mounts=SPEC.config.mounts[:1]), (), None),
}
"""Fields that reach a pod: an example, and where it is in the pod."""
DENIED = {
    "networks": WorkloadConfig(networks=("bridge",)),
    "extra_syscalls": WorkloadConfig(extra_syscalls=("kcmp",)),
    "ipc": WorkloadConfig(ipc="/run/acme/shm"),
}
OF_AGENT = {"env_vars", "resource_data"}
"""Written by the agent for every runtime, into the environment and ``resource.txt``."""
OF_KUBELET = {"cpuset", "memory_nodes"}
"""The kubelet's own managers choose cores and memory nodes."""


@pytest.mark.parametrize("name", [field.name for field in fields(WorkloadConfig)])
def test_what_a_plugin_says_reaches_a_pod_or_is_denied_by_its_name(name: str) -> None:
    if name in DENIED:
        with pytest.raises(CreationDenied) as denied:
            compose(replace(SPEC, config=DENIED[name]))
        assert denied.value.data["field"] == name
    elif name in REACHING:
        config, place, expected = REACHING[name]
        pod: Any = compose(replace(SPEC, config=config))
        if not place:
            mounted = [mount["mountPath"] for box in pod["spec"]["containers"] for mount in box["volumeMounts"]]
            assert "/home/work/data" in mounted
            return
        for key in place:
            pod = pod[key]
        assert pod == expected
    else:
        assert name in OF_AGENT | OF_KUBELET, "a new field of WorkloadConfig: say what becomes of it in a pod"


@pytest.mark.parametrize("target", ["etc/x", "/etc/passwd", "/usr/lib/x", "/home/x", "/home/config/../../etc/x", "/x"])
def test_files_that_would_hide_the_image_are_denied(target: str) -> None:
    with pytest.raises(CreationDenied):
        compose(replace(SPEC, files={target: b""}))


@pytest.mark.parametrize("hostname", ["", "A", "a_b", "a.b", "x" * 64])
def test_host_names_are_labels(hostname: str) -> None:
    with pytest.raises(CreationDenied):
        compose(replace(SPEC, hostname=hostname))


@pytest.mark.parametrize(("cores", "memory"), [(1.0, 1 << 30), (0.5, 256 << 20), (64.0, 1 << 38)])
def test_a_pod_asks_for_what_the_plan_gives_it_and_no_more(cores: float, memory: int) -> None:
    """Sessions that fill the slots of a node must fit what the scheduler counts there, their relays included."""
    config = WorkloadConfig(cpu_limit=cores, memory_limit_bytes=memory)
    pod = compose_pod(replace(SPEC, config=config), SETTINGS, FACTS, "node-1")
    decoded = msgspec.convert(pod["spec"], PodSpec)
    asked = requests_of(decoded)
    assert asked.cpu == Decimal(str(cores))
    assert asked.memory == memory


def test_an_overhead_of_the_runtime_class_is_in_what_the_pod_asks_for() -> None:
    """Admission adds the class's overhead, which the scheduler counts: the plan has it already."""
    facts = replace(FACTS, overhead_cores={"kata": 0.25})
    spec = replace(SPEC, runtime_class="kata", config=WorkloadConfig(cpu_limit=2.0, memory_limit_bytes=1 << 30))
    pod = compose_pod(spec, SETTINGS, facts, "node-1")
    with_overhead = msgspec.convert({**pod["spec"], "overhead": {"cpu": "250m", "memory": "160Mi"}}, PodSpec)
    asked = requests_of(with_overhead)
    assert asked.cpu == 2
    assert asked.memory == (1 << 30) + (160 << 20), "memory of the class is a part of the kernel's slots beside this"
    main = next(container for container in pod["spec"]["containers"] if container["name"] == "main")
    assert main["resources"]["limits"]["cpu"] == "2000m"


def test_devices_that_the_kubelet_chooses_are_a_number() -> None:
    devices = tuple(DeviceMapping(source="", cdi_name=f"COUNTED.nvidia.com/gpu=any-{number}") for number in range(2))
    pod = compose(replace(SPEC, config=WorkloadConfig(devices=devices)))
    main = next(container for container in pod["spec"]["containers"] if container["name"] == "main")
    assert main["resources"]["limits"]["nvidia.com/gpu"] == main["resources"]["requests"]["nvidia.com/gpu"] == "2"
    assert "resourceClaims" not in pod["spec"]
    assert "claims" not in main["resources"]


def test_counted_devices_go_beside_claimed_ones() -> None:
    names = ("COUNTED.example.com/nic=any-0", "gpu.example.com/uuid=GPU-1")
    devices = tuple(DeviceMapping(source="", cdi_name=name) for name in names)
    pod = compose(replace(SPEC, config=WorkloadConfig(devices=devices)))
    main = next(container for container in pod["spec"]["containers"] if container["name"] == "main")
    assert main["resources"]["limits"]["example.com/nic"] == "1"
    assert main["resources"]["claims"] == [{"name": "devices"}]


def test_a_kept_home_is_a_claim_of_kernel_and_node() -> None:
    settings = SETTINGS.model_copy(update={"home_volume": "claim"})
    pods = {node: compose_pod(SPEC, settings, FACTS, node) for node in ("node-1", "node-2")}
    names = {
        node: next(v for v in pod["spec"]["volumes"] if v["name"] == "home")["persistentVolumeClaim"]["claimName"]
        for node, pod in pods.items()
    }
    assert names["node-1"] != names["node-2"], "the volume of one node may not be mountable on the other"
    again = compose_pod(replace(SPEC, key=replace(KEY, attempt=3)), settings, FACTS, "node-1")
    assert {"claimName": names["node-1"]} in [v.get("persistentVolumeClaim") for v in again["spec"]["volumes"]]
    assert pods["node-1"]["spec"]["securityContext"]["fsGroup"] == settings.kernel_gid
    assert violations(pods["node-1"]) == []


def test_the_configuration_of_ssh_is_mounted_for_itself() -> None:
    """Kernels of a cluster session have it, beside what the image has in /etc/ssh."""
    files = {"/etc/ssh/ssh_config": b"Host sub1", "/home/config/ssh/id_cluster": b"key"}
    pod = compose(replace(SPEC, network=NETWORK, files=files))["spec"]
    main = next(container for container in pod["containers"] if container["name"] == "main")
    singles = {m["mountPath"]: m["subPath"] for m in main["volumeMounts"] if m["name"] == "hosts"}
    assert singles == {"/etc/hosts": "hosts", "/etc/ssh/ssh_config": "s0"}
    (prepare,) = pod["initContainers"]
    touched = {path for word, path in pairwise(prepare["command"]) if word == "--touch"}
    assert {path.rpartition("/")[2] for path in touched} == set(singles.values()), "they are there before the mount"
