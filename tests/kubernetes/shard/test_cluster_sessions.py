"""A cluster session of several pods, where the cluster enforces network policies: its kernels reach each other by name,
and nobody else reaches them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kube.cluster import Cluster

from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL
from tests.conformance.published import Published, ensure_published
from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, Site
from tests.kubernetes.shard.installation import Installation
from tests.support.kube_policies import enforced
from tests.support.kube_volumes import provisioned
from tests.support.kubernetes import busybox_pod

pytestmark = pytest.mark.needs("kubernetes")
CLUSTER = "guarded"
RESTRICTED = {"runAsNonRoot": True, "runAsUser": 59500, "seccompProfile": {"type": "RuntimeDefault"}}
HOSTS = ("main1", "sub1", "sub2")
CORES = "1" if (os.cpu_count() or 1) > len(HOSTS) else "0"
"""Of each kernel: no limit where this machine has not a core for each, as the scheduler would bind two pods only."""
SSHD_PORT = 2200
GREET = f"""
import os, socket
hosts = os.environ["BACKENDAI_CLUSTER_HOSTS"].split(",")
print(*hosts)
for host in hosts[1:]:
    with socket.create_connection((host, {SSHD_PORT}), 20) as connection:
        print(host, connection.recv(7).decode())
"""


@pytest.fixture(scope="module")
def published_python() -> Path:
    return ensure_published()


@pytest.fixture
def guarded(site: Site, tmp_path: Path) -> Iterator[Installation]:
    """An installation of its own: what the cluster enforces is found out at the start of a shard."""
    installation = Installation(tmp_path, site, CLUSTER)
    with provisioned(site.cluster, NAMESPACE), enforced(site.cluster, NAMESPACE):
        try:
            installation.start()
            installation.start_shard("shard")
            yield installation
        finally:
            installation.stop()


@pytest.mark.timeout(600)
def test_three_pods_of_a_session_of_the_published_client_reach_each_other_alone(
    guarded: Installation, site: Site, published_python: Path, tmp_path: Path
) -> None:
    guarded.until(lambda: tier(guarded) == "isolated-pod", "the probe of policies", 150)
    labels = {"ai.backend.runtime-path": "/usr/bin/python3", "ai.backend.resource.min.cpu": "0"}
    guarded.register_images(PYTHON_IMAGE, labels=labels)
    keys = guarded.users["user"]
    client = Published(published_python, keys["BACKEND_ENDPOINT"], keys, tmp_path / "client", timeout_s=90.0)
    client.folder.mkdir()
    create = ("session", "create", "-t", "wide", "--cluster-size", str(len(HOSTS)))
    said = client(*create, "-r", f"cpu={CORES}", "-r", "mem=128m", PYTHON_IMAGE)
    running = "SELECT count(*) FROM kernels WHERE status = 'RUNNING'"
    what_happened = guarded.rows("SELECT status, status_info, status_data FROM kernels")
    assert guarded.rows(running) == [(len(HOSTS),)], f"{said}\n{what_happened}\n{guarded.log()}"
    said = client("run", "-t", "wide", "-c", GREET, PYTHON_IMAGE)
    assert " ".join(HOSTS) in said.all, said
    for host in HOSTS[1:]:
        assert f"{host} SSH-2.0" in said.all, said
    pods = {pod["spec"]["hostname"]: pod["status"]["podIP"] for pod in session_pods(site)}
    assert set(pods) == set(HOSTS)
    for labels in ({INSTANCE_LABEL: CLUSTER}, {"app": "somebody"}):
        answer = stranger(site.cluster, labels, pods["sub1"])
        # What nc itself says of a time-out may come before or after.
        assert "no" in answer.splitlines(), f"neither a session of another user nor other pods: {answer}"
    client("rm", "wide")
    policies = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
    guarded.until(lambda: not session_pods(site), "the end of the pods")
    guarded.until(
        lambda: not [p for p in site.cluster.request("GET", policies)["items"] if p["metadata"]["name"][:2] == "s-"],
        "the end of the session's network",
    )


def stranger(cluster: Cluster, labels: dict[str, str], address: str) -> str:
    """Returns what a pod of others in the same namespace says of a connection to a kernel."""
    script = f"sleep 2; nc -w 3 {address} {SSHD_PORT} </dev/null >/dev/null && echo yes || echo no"
    pod = busybox_pod("stranger", script, securityContext=RESTRICTED)
    pod["metadata"] |= {"labels": labels, "namespace": NAMESPACE}
    pod["spec"]["containers"][0]["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    cluster.apply(pod)
    cluster.wait_for_phase("stranger", "Succeeded", NAMESPACE)
    said = cluster.kubectl("logs", "-n", NAMESPACE, "stranger")
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, "stranger", "--wait=true")
    return said


def tier(installation: Installation) -> str:
    rows = installation.rows("SELECT status, tier FROM agents")
    return str(rows[0][1]) if rows and rows[0][0] == "ALIVE" else ""


def session_pods(site: Site) -> list[dict[str, Any]]:
    """Pods of this installation's sessions: others run on the same cluster."""
    instance = {INSTANCE_LABEL: CLUSTER}
    return [
        pod
        for pod in site.pods()
        if instance.items() <= pod["metadata"]["labels"].items() and pod["metadata"]["name"].startswith("k-")
    ]
