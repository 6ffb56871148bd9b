"""Describes what pods can and cannot do, and who enforces it (docs/reference/kubernetes-runtime)."""

from __future__ import annotations

from collections.abc import Mapping

from ai.backend.common.states import Enforcement
from ai.backend.plugin.runtime import RuntimeInfo

RUNTIME_VERSION = "1"
NO_MULTI_NODE_NETWORKS = (
    "pods have the cluster's own network, whose addresses the manager cannot choose: kernels of a cluster session on"
    " several nodes are not connected yet"
)
NO_COMMIT = "an agent cannot read the file system of a pod: build images in a registry instead"
NO_LOAD = "the nodes of a cluster have their images from registries: push the image to one"
NO_REMOVE = "the nodes of a cluster remove images themselves"
NO_PULL = "the nodes of a cluster pull images themselves, when a session starts"


def describe(
    *,
    runtime_classes: tuple[str, ...],
    is_isolated: bool,
    has_policies: bool,
    create_timeout_s: float,
    keeps_home: bool = False,
    class_overheads: Mapping[str, int] | None = None,
    class_handlers: Mapping[str, str] | None = None,
) -> RuntimeInfo:
    """Describes the limits, isolation and runtime classes of the Kubernetes runtime.

    Args:
        class_overheads: memory in bytes that the cluster adds to a pod of each class.
        class_handlers: the handler of each class, as the nodes' container runtime names it.
        is_isolated: a probe has shown that the cluster enforces network policies.
        has_policies: the runtime keeps such policies.
        create_timeout_s: the sum of the deadlines within a creation.
        keeps_home: homes are claims, whose size is the business of their storage class.
    """
    enforced, watched, not_enforced = Enforcement.ENFORCED, Enforcement.WATCHED, Enforcement.NONE
    return RuntimeInfo(
        name="kubernetes",
        version=RUNTIME_VERSION,
        workload_type="container",
        runtime_classes=runtime_classes,
        class_overheads=class_overheads or {},
        class_handlers=class_handlers or {},
        tier="isolated-pod" if is_isolated and has_policies else "pod",
        enforcement={
            "cpu": enforced,
            "memory": enforced,
            "cpuset": not_enforced,
            "pids": watched,
            "devices": enforced,
            "filesystem": enforced,
            "pid-namespace": enforced,
            "seccomp": enforced,
            "network": enforced if is_isolated and has_policies else not_enforced,
            "session-networks": enforced if is_isolated else not_enforced,
            "multi-node-networks": not_enforced,
            "home-size": not_enforced if keeps_home else watched,
        },
        capabilities=frozenset(
            {
                *(("keep-home",) if keeps_home else ()),
                "exec",
                "files",
                "pty",
                "logs",
                "survives-agent",
                "mounts",
                "isolated-filesystem",
                "extra-gids",
                "session-networks",
                "ports",
            }
        ),
        no_multi_node_networks=NO_MULTI_NODE_NETWORKS,
        pulls_in_create=True,
        create_timeout_s=create_timeout_s,
        mounts_sub_paths=True,
    )
