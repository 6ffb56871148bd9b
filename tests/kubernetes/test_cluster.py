"""The cluster that the tests of the Kubernetes runtime run on: a real node, pods and this machine reach each other."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest
from tools.kube import kwok
from tools.kube.cluster import Cluster, CommandFailed
from tools.kube.images import write_image

from tests.support.kube_policies import enforced
from tests.support.kubernetes import busybox_pod

pytestmark = pytest.mark.needs("kubernetes")


def test_a_pod_runs_and_answers(kubernetes_cluster: Cluster) -> None:
    kubernetes_cluster.apply(busybox_pod("speaks", "echo hello; exec sleep 1000"))
    pod = kubernetes_cluster.wait_for_phase("speaks")
    assert pod["status"]["hostIP"] == kubernetes_cluster.address
    kubernetes_cluster.wait_for(lambda: kubernetes_cluster.kubectl("logs", "speaks") == "hello\n", "the log")
    assert kubernetes_cluster.kubectl("exec", "speaks", "--", "hostname") == "speaks\n"


def test_pods_and_this_machine_reach_each_other(kubernetes_cluster: Cluster) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        script = f"echo from the pod | nc {kubernetes_cluster.host_address} {port}; exec nc -ll -p 7000 -e echo back"
        kubernetes_cluster.apply(busybox_pod("dials", script))
        server.settimeout(30)
        connection, (peer, _) = server.accept()
        with connection:
            assert connection.makefile().readline() == "from the pod\n"
    pod = kubernetes_cluster.wait_for_phase("dials")
    assert pod["status"]["podIP"] == peer

    def is_answered() -> bool:
        with socket.create_connection((peer, 7000), 2) as connection:
            return connection.makefile().readline() == "back\n"

    kubernetes_cluster.wait_for(is_answered, "an answer from the pod")


def test_services_lead_to_pods(kubernetes_cluster: Cluster) -> None:
    behind = busybox_pod("behind", "exec nc -ll -p 7000 -e hostname")
    behind["metadata"]["labels"] = {"app": "behind"}
    ports = [{"port": 70, "targetPort": 7000}]
    service = {"selector": {"app": "behind"}, "ports": ports, "clusterIP": kubernetes_cluster.service_address(77)}
    kubernetes_cluster.apply(
        behind, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "behind"}, "spec": service}
    )
    kubernetes_cluster.wait_for_phase("behind")
    kubernetes_cluster.wait_for(lambda: _is_endpoint_ready(kubernetes_cluster, "behind"), "a ready endpoint of behind")
    # By its address: a kubelet that has not seen the service yet gives the pod no variables of it. Without `timeout` a
    # connection that is made and then lost, as while kube-proxy writes its rules, would be waited for for good.
    address = kubernetes_cluster.service_address(77)
    script = f"exec 2>/dev/null; until timeout 5 nc -w 2 {address} 70; do sleep 0.2; done"
    kubernetes_cluster.apply(busybox_pod("asks", script))
    kubernetes_cluster.wait_for_phase("asks", "Succeeded")
    assert kubernetes_cluster.kubectl("logs", "asks") == "behind\n"
    with socket.create_connection((kubernetes_cluster.service_address(77), 70), 5) as connection:
        assert connection.makefile().readline() == "behind\n"


def test_policies_leave_the_node_as_it_was(kubernetes_cluster: Cluster) -> None:
    """Services of later tests would lead nowhere."""

    def read() -> str:
        bridge = ("sysctl", "net.bridge.bridge-nf-call-iptables")
        commands = (bridge, ("iptables", "-S", "FORWARD"))
        return "".join(
            subprocess.run(kubernetes_cluster.place.inside(command), capture_output=True, text=True, check=True).stdout
            for command in commands
        )

    before = read()
    assert "bridge-nf-call-iptables = 1" in before
    with enforced(kubernetes_cluster, "default"):
        assert read() != before
    assert read() == before


def _is_endpoint_ready(cluster: Cluster, service: str) -> bool:
    selector = f"?labelSelector=kubernetes.io/service-name={service}"
    slices = cluster.request("GET", f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices{selector}")["items"]
    return any(one["conditions"].get("ready") for item in slices for one in item["endpoints"] or ())


def test_an_image_of_an_archive(kubernetes_cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/busybox sh\necho from another image\n")
    busybox = Path("/bin/busybox").resolve()
    archive = tmp_path / "image.tar"
    write_image(archive, "registry.test/other:1", {"bin/busybox": busybox, "script": script}, command=["/script"])
    kubernetes_cluster.import_image(archive)
    pod = busybox_pod("other", containers=[{"name": "main", "image": "registry.test/other:1"}])
    kubernetes_cluster.apply(pod)
    kubernetes_cluster.wait_for_phase("other", "Succeeded")
    assert kubernetes_cluster.kubectl("logs", "other") == "from another image\n"


def test_users_may_do_what_roles_allow_and_the_log_tells(kubernetes_cluster: Cluster) -> None:
    kubeconfig = kubernetes_cluster.user("visitor", ("guests",))
    with pytest.raises(CommandFailed, match='User "visitor" cannot list'):
        kubernetes_cluster.kubectl("get", "pods", f"--kubeconfig={kubeconfig}")
    kubernetes_cluster.kubectl("create", "clusterrolebinding", "guests", "--clusterrole=view", "--group=guests")
    kubernetes_cluster.kubectl("get", "pods", f"--kubeconfig={kubeconfig}")
    records = [json.loads(line) for line in kubernetes_cluster.audit_log.read_text().splitlines()]
    codes = {
        r["responseStatus"]["code"] for r in records if r["user"]["username"] == "visitor" and "pods" in r["requestURI"]
    }
    assert codes == {200, 403}


def test_fifty_nodes_of_kwok(kubernetes_cluster: Cluster) -> None:
    names = kwok.add_nodes(kubernetes_cluster, 50)
    pods = [
        busybox_pod(f"played-{number}", nodeName=name, tolerations=[kwok.TOLERATION])
        for number, name in enumerate(names)
    ]
    kubernetes_cluster.apply(*pods)
    for number, name in enumerate(names):
        assert kubernetes_cluster.wait_for_phase(f"played-{number}")["spec"]["nodeName"] == name


def test_the_network_is_the_cluster_s_own(kubernetes_cluster: Cluster) -> None:
    inside = ["nsenter", f"--net={kubernetes_cluster.network}", "ip", "-o", "-4", "address"]
    addresses = subprocess.run(inside, capture_output=True, text=True, check=True).stdout
    assert f"{kubernetes_cluster.address}/30" in addresses
    here = subprocess.run(["ip", "-o", "-4", "address"], capture_output=True, text=True, check=True).stdout
    assert f"{kubernetes_cluster.host_address}/30" in here
    assert f"{kubernetes_cluster.address}/30" not in here
