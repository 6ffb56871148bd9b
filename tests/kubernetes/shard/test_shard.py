"""A shard makes an agent of a real node, on which the published command line runs sessions that outlive the shard."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools.kube.cluster import NODE_NAME, Cluster

from tests.kubernetes.runtime.sites import PYTHON_IMAGE, Site
from tests.kubernetes.shard.conftest import prepared_site, running_installation
from tests.kubernetes.shard.installation import CLUSTER, Installation

pytestmark = pytest.mark.needs("kubernetes")
AGENT = f"{CLUSTER}.{NODE_NAME}"
FAILOVER_S = 40.0
AWAY_S = float(os.environ.get("KUBE_AWAY_S", "20"))
"""Longer than the holder of a Lease may go without renewing it; KUBE_AWAY_S=600 tries ten minutes."""


def leader(installation: Installation) -> str:
    """Which process holds the Lease: the other one waits, and says nothing."""
    logs = {name: (installation.root / f"{name}.log").read_text() for name in ("first", "second")}
    leading = [name for name in installation.daemons if " leads by the lease" in logs.get(name, "")]
    assert len(leading) == 1, installation.log()
    return leading[0]


def session_pods(site: Site) -> dict[str, str]:
    """Pods of sessions and their ids, without those that try out what the cluster enforces."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in site.pods()
        if pod["metadata"]["name"].startswith("k-")
    }


def test_the_node_is_an_agent_with_its_slots(installation: Installation) -> None:
    listed = installation.run("admin", "agent", "list", who="admin")
    assert AGENT in listed
    assert "ALIVE" in listed
    slots, runtime = installation.rows("SELECT available_slots, runtime FROM agents")[0]
    assert runtime == "kubernetes"
    assert re.search(r'"cpu": ?"[1-9]', slots)
    assert re.search(r'"mem": ?"[1-9]\d{8,}', slots)


def test_code_runs_in_a_pod(installation: Installation) -> None:
    printed = installation.run(
        "run",
        "--rm",
        "-r",
        "cpu=1",
        "-r",
        "mem=256m",
        "-c",
        "import os; print(6 * 7, os.getuid())",
        PYTHON_IMAGE,
        who="user",
    )
    assert "42 59500" in printed


@contextmanager
def running_session(installation: Installation) -> Iterator[dict[str, str]]:
    """Returns the pods of a session with a variable, which its user ends with the block; nothing of it is left."""
    installation.until(lambda: not session_pods(installation.site), "the end of pods of earlier tests")
    create = ("session", "create", "--name", "stays", "-r", "cpu=1", "-r", "mem=256m", PYTHON_IMAGE)
    installation.run(*create, who="user")
    installation.run("run", "-c", "x = 'kept'", "--name", "stays", PYTHON_IMAGE, who="user")
    yield session_pods(installation.site)
    installation.run("rm", "stays", who="user")
    installation.until(lambda: not session_pods(installation.site), "the end of the pod")


def test_a_session_outlives_its_shard(installation: Installation, site: Site) -> None:
    with running_session(installation) as pods:
        installation.kill(leader(installation))
        killed_at = time.monotonic()
        printed = ""
        while "kept" not in printed:
            assert time.monotonic() - killed_at < FAILOVER_S, installation.log()
            try:
                printed = installation.run("run", "-c", "print(x)", "--name", "stays", PYTHON_IMAGE, who="user")
            except AssertionError:
                time.sleep(0.5)  # the command fails until the other process leads
        assert session_pods(site) == pods
        assert installation.rows(f"SELECT lost_at FROM agents WHERE id = '{AGENT}'") == [(None,)]


@pytest.mark.timeout(2 * AWAY_S + 400)
def test_a_session_goes_on_while_the_cluster_cannot_be_asked(cluster_to_break: Cluster, tmp_path: Path) -> None:
    site = prepared_site(cluster_to_break, tmp_path)
    with running_installation(site, tmp_path) as installation, running_session(installation) as pods:
        for daemon in ("kube-apiserver", "etcd"):
            process = cluster_to_break.daemons[daemon]
            process.kill()
            try:
                gone_at = time.monotonic()
                while time.monotonic() - gone_at < AWAY_S:
                    look = ("run", "-c", "print(x)", "--name", "stays", PYTHON_IMAGE)
                    assert "kept" in installation.run(*look, who="user")
                    time.sleep(AWAY_S / 40)  # the cluster is away for this long
                rows = installation.rows(f"SELECT status, lost_at FROM agents WHERE id = '{AGENT}'")
                assert rows == [("ALIVE", None)], daemon
            finally:
                process.start()
                cluster_to_break.reconnect()
            assert session_pods(site) == pods, daemon
            new = ("run", "--rm", "-r", "cpu=1", "-r", "mem=128m", "-c", "print('new', 1)", PYTHON_IMAGE)
            assert "new 1" in installation.run(*new, who="user", timeout_s=150), daemon
            installation.until(lambda: session_pods(site) == pods, "the end of the new session's pod")
