"""A pytest plugin: a Kubernetes cluster of our own, with a real API server, kubelet and containerd."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from tools.kube.cluster import Cluster, ClusterOptions, running_cluster
from tools.kube.control_plane import ControlPlane
from tools.kube.families import UnknownRelease, families, needed_families
from tools.kube.images import BUSYBOX_IMAGE

if TYPE_CHECKING:
    from tools.kube.cluster import Cluster


def why_not() -> str | None:
    """Say why no cluster can run here; None if one can be started."""
    if os.geteuid() != 0:
        return "machine: a cluster of our own needs root"
    if shutil.which("busybox") is None:
        return "binary: busybox is not installed (package busybox-static)"
    try:
        lacking = [family.name for family in needed_families(kwok=True, gvisor=True) if not family.is_built()]
    except UnknownRelease as e:
        return f"binary: {e}"
    if lacking:
        return f"binary: not built: {', '.join(lacking)} (python -m tools.kube build)"
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "true"]
    done = subprocess.run(namespaces, capture_output=True, text=True, timeout=20, check=False)
    return None if done.returncode == 0 else f"machine: no namespaces can be made here: {done.stderr.strip()[:200]}"


def why_no_gvisor() -> str | None:
    """Say why `runsc` is not here; None if it is."""
    return None if families()["gvisor"].is_built() else "binary: not built: gvisor (python -m tools.kube build gvisor)"


@pytest.fixture(scope="session")
def kubernetes_cluster() -> Iterator[Cluster]:
    """A cluster with one real node, which the tests of a worker share. None of them ends its API server or its etcd:
    they take ``cluster_to_break``."""
    options = ClusterOptions(
        control_plane=ControlPlane.from_environment(),
        has_kwok=True,
        has_services=True,
        has_gvisor=True,
        is_audited=True,
    )
    with running_cluster(options) as cluster:
        yield cluster


@pytest.fixture
def cluster_to_break() -> Iterator[Cluster]:
    """A cluster with one real node for a single test, which may end its API server and its etcd.

    Kubernetes' own programs connect again after delays that have grown up to two minutes meanwhile (client-go, gRPC):
    until then no pod is bound and no service leads to a new pod, which other tests would take for faults of theirs."""
    with running_cluster(ClusterOptions()) as cluster:
        yield cluster


def busybox_pod(name: str, script: str = "exec sleep 1000", **spec: Any) -> dict[str, Any]:
    """Return a pod whose only container runs a shell script, and which ends at once when it is deleted."""
    container = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", script]}
    spec = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
