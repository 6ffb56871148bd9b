"""A shard makes an agent of a real node, on which the published command line runs sessions that outlive the shard."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import pytest
from tools.kube.cluster import NODE_NAME

from tests.kubernetes.runtime.sites import PYTHON_IMAGE, Site
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


@pytest.fixture
def session(installation: Installation, site: Site) -> Iterator[dict[str, str]]:
    """The pods of a session with a variable, which is ended by its user; nothing of it is left."""
    create = ("session", "create", "--name", "stays", "-r", "cpu=1", "-r", "mem=256m", PYTHON_IMAGE)
    installation.run(*create, who="user")
    installation.run("run", "-c", "x = 'kept'", "--name", "stays", PYTHON_IMAGE, who="user")
    yield session_pods(site)
    installation.run("rm", "stays", who="user")
    installation.until(lambda: not session_pods(site), "the end of the pod")


def test_a_session_outlives_its_shard(installation: Installation, site: Site, session: dict[str, str]) -> None:
    installation.kill(leader(installation))
    killed_at = time.monotonic()
    printed = ""
    while "kept" not in printed:
        assert time.monotonic() - killed_at < FAILOVER_S, installation.log()
        try:
            printed = installation.run("run", "-c", "print(x)", "--name", "stays", PYTHON_IMAGE, who="user")
        except AssertionError:
            time.sleep(0.5)
    assert session_pods(site) == session
    assert installation.rows(f"SELECT lost_at FROM agents WHERE id = '{AGENT}'") == [(None,)]


@pytest.mark.timeout(AWAY_S + 200)
@pytest.mark.parametrize("daemon", ["kube-apiserver", "etcd"])
def test_a_session_goes_on_while_the_cluster_cannot_be_asked(
    installation: Installation, site: Site, session: dict[str, str], daemon: str
) -> None:
    process = site.cluster.daemons[daemon]
    process.kill()
    try:
        gone_at = time.monotonic()
        while time.monotonic() - gone_at < AWAY_S:
            assert "kept" in installation.run("run", "-c", "print(x)", "--name", "stays", PYTHON_IMAGE, who="user")
            time.sleep(AWAY_S / 40)
        assert installation.rows(f"SELECT status, lost_at FROM agents WHERE id = '{AGENT}'") == [("ALIVE", None)]
    finally:
        process.start()
        site.cluster.reconnect()
    assert session_pods(site) == session
    new = ("run", "--rm", "-r", "cpu=1", "-r", "mem=128m", "-c", "print('new', 1)", PYTHON_IMAGE)
    assert "new 1" in installation.run(*new, who="user", timeout_s=150)
