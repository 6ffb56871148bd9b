"""Nodes that KWOK plays: they run nothing, and say what nodes and pods say. Figures made with them prove no kubelet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tools.kube.cluster import Cluster

NODE_ANNOTATION = "kwok.x-k8s.io/node"
_STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
_CONNECTIONS = 16


def write_configuration(target: Path, folder: Path, *, parallelism: int = 32) -> Path:
    """Write KWOK's configuration, with the stages by which nodes get ready at once, and pods run, complete and go."""
    names = ("podPlayStageParallelism", "nodePlayStageParallelism", "nodeLeaseParallelism")
    head = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration"}
    parts = [json.dumps({**head, "options": dict.fromkeys(names, parallelism)})]
    for name in _STAGES:
        paths = sorted((folder / name).glob("*.yaml"))
        parts += [path.read_text() for path in paths if path.name != "kustomization.yaml"]
    target.write_text("\n---\n".join(parts))
    return target


def options(kubeconfig: Path, configuration: Path, *, lease_seconds: int = 200) -> list[str]:
    """Return the options of KWOK: it plays only the annotated nodes, and renews their leases rarely."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--config={configuration}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={NODE_ANNOTATION}=fake",
        f"--node-lease-duration-seconds={lease_seconds}",
    ]


def node(
    name: str, *, labels: Mapping[str, str] | None = None, capacity: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a node for KWOK, tainted so that only pods that tolerate it run there."""
    amounts = {"cpu": "32", "memory": "256Gi", "pods": "110", **(capacity or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {NODE_ANNOTATION: "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok", **(labels or {})},
        },
        "spec": {"taints": [{"key": NODE_ANNOTATION, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": amounts, "capacity": amounts, "phase": "Running"},
    }


TOLERATION = {"key": NODE_ANNOTATION, "operator": "Exists", "effect": "NoSchedule"}
"""Lets a pod run on a node of KWOK."""


def add_nodes(
    cluster: Cluster, count: int, *, prefix: str = "kwok-", capacity: Mapping[str, str] | None = None
) -> list[str]:
    """Make so many nodes, and return their names; wait until the last is ready.

    Raises:
        ApiError, OSError: a node cannot be made.
        DaemonFailed: they do not get ready.
    """
    names = [f"{prefix}{number}" for number in range(count)]

    def add(name: str) -> None:
        cluster.request("POST", "/api/v1/nodes", node(name, capacity=capacity))

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(add, names))
    cluster.wait_for(lambda: sum(_ready_names(cluster)) >= count, f"{count} nodes to be ready", 30 + count / 20)
    return names


def _ready_names(cluster: Cluster) -> Iterator[bool]:
    answer = cluster.request("GET", "/api/v1/nodes?labelSelector=type%3Dkwok&resourceVersion=0")
    for item in answer["items"]:
        yield any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", []))
