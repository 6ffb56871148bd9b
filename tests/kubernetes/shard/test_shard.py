"""A shard makes an agent of a real node, on which the published command line runs sessions that outlive the shard."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from tools.kube.cluster import NODE_NAME, Cluster

from tests.kubernetes.runtime.sites import PYTHON_IMAGE, Site
from tests.kubernetes.shard.installation import CLUSTER, Installation

pytestmark = pytest.mark.needs("kubernetes")
AGENT = f"{CLUSTER}.{NODE_NAME}"
FAILOVER_S = 40.0


@pytest.fixture(scope="module")
def site(kubernetes_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(kubernetes_cluster)
    site.prepare(tmp_path_factory.mktemp("images"))
    return site


@pytest.fixture(scope="module")
def installation(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("installation"), site)
    try:
        installation.start()
        installation.start_shard("first")
        installation.start_shard("second")
        is_there = "SELECT count(*) FROM agents WHERE status = 'ALIVE' AND images LIKE '%base/python%'"
        installation.until(lambda: installation.rows(is_there) == [(1,)], "the agent of the node, with its images")
        yield installation
    finally:
        installation.stop()


def leader(installation: Installation) -> str:
    """Which process holds the Lease: the other one waits, and says nothing."""
    logs = {name: (installation.root / f"{name}.log").read_text() for name in ("first", "second")}
    leading = [name for name in installation.daemons if " leads by the lease" in logs.get(name, "")]
    assert len(leading) == 1, installation.log()
    return leading[0]


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


def test_a_session_outlives_its_shard(installation: Installation, site: Site) -> None:
    create = ("session", "create", "--name", "stays", "-r", "cpu=1", "-r", "mem=256m", PYTHON_IMAGE)
    installation.run(*create, who="user")
    installation.run("run", "-c", "x = 'kept'", "--name", "stays", PYTHON_IMAGE, who="user")
    pods = [pod["metadata"]["uid"] for pod in site.pods()]
    installation.kill(leader(installation))
    killed_at = time.monotonic()
    printed = ""
    while "kept" not in printed:
        assert time.monotonic() - killed_at < FAILOVER_S, installation.log()
        try:
            printed = installation.run("run", "-c", "print(x)", "--name", "stays", PYTHON_IMAGE, who="user")
        except AssertionError:
            time.sleep(0.5)
    assert [pod["metadata"]["uid"] for pod in site.pods()] == pods
    assert installation.rows("SELECT count(*) FROM agents WHERE lost_at IS NOT NULL") == [(0,)]
    installation.run("rm", "stays", who="user")
    site.require_nothing_left()
