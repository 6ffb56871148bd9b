"""Daemons of a cluster are killed and come back; what runs goes on, and clusters leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kube import place
from tools.kube.cluster import Cluster, ClusterOptions, running_cluster

from tests.support.kubernetes import busybox_pod

pytestmark = pytest.mark.needs("kubernetes")
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["kubelet", "containerd"])
def test_a_daemon_of_the_node_is_killed_and_comes_back(kubernetes_cluster: Cluster, name: str) -> None:
    _kill(kubernetes_cluster, name)


@pytest.mark.parametrize("name", ["etcd", "kube-apiserver"])
def test_a_daemon_of_the_control_plane_is_killed_and_comes_back(cluster_to_break: Cluster, name: str) -> None:
    _kill(cluster_to_break, name)


def _kill(cluster: Cluster, name: str) -> None:
    """Kills a daemon and starts it again: a pod goes on meanwhile, and a new one starts afterwards."""
    before, after = f"before-{name}", f"after-{name}"
    cluster.apply(busybox_pod(before, "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"))
    cluster.wait_for_phase(before)
    daemon = cluster.daemons[name]
    daemon.kill()
    try:
        assert not daemon.is_alive()
    finally:
        daemon.start()
    cluster.wait_for(cluster.is_node_ready, "the node")
    cluster.apply(busybox_pod(after))
    cluster.wait_for_phase(after)
    (status,) = cluster.wait_for_phase(before)["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    counted = len(cluster.kubectl("logs", before).splitlines())
    cluster.wait_for(lambda: len(cluster.kubectl("logs", before).splitlines()) > counted, "the pod to go on")


def test_two_clusters_at_once(kubernetes_cluster: Cluster) -> None:
    with running_cluster(ClusterOptions()) as other:
        assert other.address != kubernetes_cluster.address
        other.apply(busybox_pod("of-the-other"))
        pod = other.wait_for_phase("of-the-other")
        assert "of-the-other" not in kubernetes_cluster.kubectl("get", "pods", "--all-namespaces")
        assert pod["status"]["podIP"].rpartition(".")[0] == other.place.addresses.pods.rpartition(".")[0]
    assert kubernetes_cluster.is_node_ready()


def test_the_end_leaves_nothing() -> None:
    with running_cluster(ClusterOptions()) as cluster:
        cluster.apply(busybox_pod("remains"))
        cluster.wait_for_phase("remains")
        traces = _Traces(cluster.folder, cluster.place.addresses, cluster.place.pid)
        assert list(traces.present())
    assert list(traces.present()) == []


def test_the_death_of_the_owner_leaves_nothing() -> None:
    script = (
        "import json, time\n"
        "from tests.support.kubernetes import busybox_pod\n"
        "from tools.kube.cluster import Cluster\n"
        "cluster = Cluster()\n"
        "cluster.start()\n"
        "cluster.apply(busybox_pod('remains'))\n"
        "cluster.wait_for_phase('remains')\n"
        "print(json.dumps([str(cluster.folder), cluster.place.addresses.number, cluster.place.pid]), flush=True)\n"
        "time.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment)
    try:
        assert owner.stdout is not None
        folder, number, pid = json.loads(owner.stdout.readline())
        traces = _Traces(Path(folder), place.Addresses(number), pid)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    deadline = time.monotonic() + 15
    while traces.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert traces.processes() == [], "they end with their owner, before anybody looks for them"
    place.sweep()
    assert list(traces.present()) == []


class _Traces:
    """What a cluster may leave on this machine."""

    def __init__(self, folder: Path, addresses: place.Addresses, pid: int) -> None:
        self.folder = folder
        self.addresses = addresses
        self._namespace = os.readlink(f"/proc/{pid}/ns/pid")

    def processes(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns" / "pid") == self._namespace:
                    found.append((path / "cmdline").read_text())
            except OSError:
                continue
        return found

    def present(self) -> Iterator[str]:
        yield from self.processes()
        yield from (str(path) for path in Path("/sys/fs/cgroup").glob(f"*{self.addresses.cgroup}"))
        if self.folder.exists():
            yield str(self.folder)
        text = subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout
        yield from (line for line in text.splitlines() if f"{self.addresses.device}@" in line)
        routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
        yield from (line for line in routes.splitlines() if self.addresses.pods in line)
        mounts = Path("/proc/self/mountinfo").read_text()
        yield from (line for line in mounts.splitlines() if str(self.folder) in line)
        registered = Path(f"/run/backendai-kube/{self.addresses.number}.json")
        if registered.exists() and str(self.folder) in registered.read_text():
            yield str(registered)
