"""Pods in gVisor, by RuntimeClass: several containers, sockets between them, logs and commands.

Where this machine has no CAP_SYS_RESOURCE, gVisor's shim goes on although its OOM score is refused (tools/kube).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.kube.cluster import Cluster
from tools.kube.images import pack_image

from tests.support.docker_engine import PYTHON_IMAGE, archive
from tests.support.kubernetes import busybox_pod

pytestmark = pytest.mark.needs("kubernetes", "gvisor")
IMAGE = "registry.test/python:1"
LISTENS = """
import socket
server = socket.socket(socket.AF_UNIX)
server.bind("/shared/socket")
server.listen()
connection, _ = server.accept()
print(connection.recv(100).decode())
"""
CONNECTS = """
import socket, time
client = socket.socket(socket.AF_UNIX)
while True:
    try:
        client.connect("/shared/socket")
        break
    except OSError:
        time.sleep(0.1)
client.sendall(b"by a socket in a shared volume")
"""


def test_a_pod_runs_in_gvisor(kubernetes_cluster: Cluster) -> None:
    kubernetes_cluster.apply(busybox_pod("guarded", "dmesg; exec sleep 1000", runtimeClassName="gvisor"))
    kubernetes_cluster.wait_for_phase("guarded")
    kubernetes_cluster.wait_for(lambda: "gVisor" in kubernetes_cluster.kubectl("logs", "guarded"), "gVisor's log")
    assert kubernetes_cluster.kubectl("exec", "guarded", "--", "hostname") == "guarded\n"


@pytest.mark.needs("docker")
@pytest.mark.parametrize("runtime_class", [None, "gvisor"])
def test_a_socket_in_a_memory_volume_joins_two_containers(
    kubernetes_cluster: Cluster, tmp_path: Path, runtime_class: str | None
) -> None:
    image = tmp_path / "image.tar"
    pack_image(image, IMAGE, archive(PYTHON_IMAGE))
    kubernetes_cluster.import_image(image)
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    containers = [
        {"name": name, "image": IMAGE, "command": ["/usr/bin/python3", "-uc", code], "volumeMounts": mounts}
        for name, code in (("listens", LISTENS), ("connects", CONNECTS))
    ]
    name = f"joined-{runtime_class or 'runc'}"
    volumes = [{"name": "shared", "emptyDir": {"medium": "Memory"}}]
    further = {"runtimeClassName": runtime_class} if runtime_class else {}
    pod = busybox_pod(name, containers=containers, volumes=volumes, **further)
    # Without these, each container has a view of the volume of its own under gVisor, and sockets are not found.
    pod["metadata"]["annotations"] = {
        "dev.gvisor.spec.mount.shared.share": "pod",
        "dev.gvisor.spec.mount.shared.type": "tmpfs",
        "dev.gvisor.spec.mount.shared.options": "rw",
    }
    kubernetes_cluster.apply(pod)
    kubernetes_cluster.wait_for_phase(name, "Succeeded")
    assert kubernetes_cluster.kubectl("logs", name, "-c", "listens") == "by a socket in a shared volume\n"
