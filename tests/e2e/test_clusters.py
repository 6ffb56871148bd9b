"""Sessions of several kernels on one node: who they are, how they reach each other, and that they end as one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support import audit
from tests.support.cluster import Cluster, wait_until

pytestmark = [pytest.mark.needs("isolation", "root")]
RESOURCES = ("-r", "cpu=1", "-r", "mem=128m")
LOGIN = (
    "import os, socket, subprocess\n"
    "print(socket.gethostbyname('sub1'))\n"
    "for host in os.environ['BACKENDAI_CLUSTER_HOSTS'].split(','):\n"
    "    there = ['ssh', '-o', 'BatchMode=yes', host, 'hostname; echo $BACKENDAI_CLUSTER_LOCAL_RANK']\n"
    "    done = subprocess.run(there, capture_output=True, text=True, timeout=60)\n"
    "    print(done.stdout.split(), done.stderr)\n"
)


def start(cluster: Cluster, size: int, *options: str) -> tuple[str, dict[str, Any]]:
    """A running session, with what is known of it."""
    name = f"cluster-{uuid4().hex[:8]}"
    done = cluster.run("start", "-t", name, "--cluster-size", str(size), *RESOURCES, *options, "python")
    assert done.returncode == 0, done.stderr + cluster.log()
    return name, cluster.json("info", name)


def leaders(session: dict[str, Any]) -> dict[str, int]:
    """Host name -> the process that the kernel is."""
    return {k["cluster_hostname"]: int(k["container_id"]) for k in session["containers"]}


def devices_of(cluster: Cluster) -> list[str]:
    return [path.name for path in (cluster.data_dir / "agents").glob("*/process/networks/*")]


def is_over(cluster: Cluster, name: str) -> Callable[[], bool]:
    def look() -> bool:
        found = [item["status"] for item in cluster.json("ps", "--dead")["items"] if item["name"] == name]
        return found == ["TERMINATED"]

    return look


def test_kernels_know_each_other_and_log_in_without_a_question(cluster: Cluster) -> None:
    name, session = start(cluster, 2)
    hosts = ["main1", "sub1"]
    assert [(k["cluster_role"], k["cluster_idx"], k["local_rank"]) for k in session["containers"]] == [
        ("main", 1, 0),
        ("sub", 1, 1),
    ]
    code = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if '_CLUSTER_' in k}))"
    done = cluster.run("run", "-t", name, "-q", "-c", code, "python")
    assert json.loads(done.stdout) == {
        "BACKENDAI_CLUSTER_MODE": "single-node",
        "BACKENDAI_CLUSTER_SIZE": "2",
        "BACKENDAI_CLUSTER_HOSTS": "main1,sub1",
        "BACKENDAI_CLUSTER_REPLICAS": "main:1,sub:1",
        "BACKENDAI_CLUSTER_HOST": "main1",
        "BACKENDAI_CLUSTER_IDX": "1",
        "BACKENDAI_CLUSTER_ROLE": "main",
        "BACKENDAI_CLUSTER_LOCAL_RANK": "0",
    }
    before = leaders(session)
    for _ in range(2):  # also after a restart, which restarts them all
        done = cluster.run("run", "-t", name, "-q", "-c", LOGIN, "python")
        told = [f"['{host}', '{rank}'] " for rank, host in enumerate(hosts)]
        assert done.stdout.splitlines() == ["10.213.0.3", *told], done.stdout + done.stderr
        cluster.run("restart", name, check=True)
        after = leaders(cluster.json("info", name))
        assert after.keys() == before.keys()
        assert not set(after.values()) & set(before.values())
    cluster.run("logs", name, "--kernel", "sub1", check=True)
    refused = cluster.run("logs", name, "--kernel", "sub9")
    assert "The session has no kernel 'sub9'; it has main1, sub1." in refused.stderr
    assert devices_of(cluster)
    cluster.run("rm", name, check=True)
    assert wait_until(lambda: not devices_of(cluster))


def test_the_end_of_one_kernel_is_the_end_of_all(cluster: Cluster) -> None:
    name, session = start(cluster, 2)
    os.kill(leaders(session)["sub1"], signal.SIGKILL)
    wait_until(is_over(cluster, name), what="the end of the session")
    kernels = {k["cluster_hostname"]: k for k in cluster.json("info", session["id"])["containers"]}
    assert {k["status"] for k in kernels.values()} == {"TERMINATED"}
    wait_until(lambda: not any(audit.paths(cluster.data_dir / "agents", k["id"]) for k in kernels.values()))
    assert wait_until(lambda: not devices_of(cluster))


def test_an_agent_that_was_killed_keeps_its_cluster(tmp_path: Path) -> None:
    own = Cluster(tmp_path / "data", "--mock")
    own.start()
    try:
        name, session = start(own, 2)
        own.kill()
        own.start()
        done = own.run("run", "-t", name, "-q", "-c", "import socket; print(socket.gethostbyname('sub1'))", "python")
        assert done.stdout.strip() == "10.213.0.3", done.stderr
        assert leaders(own.json("info", name)) == leaders(session)
        own.run("rm", name, check=True)
        assert wait_until(lambda: not devices_of(own))
    finally:
        own.stop()


def test_runtime_classes_are_of_engines(cluster: Cluster) -> None:
    done = cluster.run("start", "--runtime-class", "crun", *RESOURCES, "python")
    assert done.returncode != 0
    assert "has the runtime class 'crun'; there is none" in done.stderr
