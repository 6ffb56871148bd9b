"""`backend.ai admin explain`: one command for all that daemons know of a session, also of one that failed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until

pytestmark = [pytest.mark.needs("isolation"), pytest.mark.timeout(120)]
RESOURCES = ("-r", "cpu=1", "-r", "mem=256m")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("explained") / "data", "--separate") as cluster:
        yield cluster


def test_the_report_of_a_session_that_has_ended(cluster: Cluster) -> None:
    cluster.run("start", "-t", "told", *RESOURCES, "python", check=True)
    session_id = cluster.json("info", "told")["id"]
    refused = cluster.run("admin", "explain", "told")
    assert refused.returncode == 1
    assert "Only" in refused.stderr
    cluster.run("rm", "told", check=True)
    wait_until(
        lambda: cluster.json("admin", "explain", session_id, admin=True)["status"] == "TERMINATED", what="the end"
    )
    report = cluster.json("admin", "explain", session_id, admin=True)
    names = [step["name"] for step in report["life"]]
    assert names.index("PENDING") < names.index("SCHEDULED") < names.index("RUNNING") < names.index("TERMINATED")
    assert report["kernels"][0]["agent"] == "i-local"
    assert report["unreachable"] == []
    told = {(line["daemon"], line["message"].partition(":")[0]) for line in report["logs"]}
    kernel_id = report["kernels"][0]["id"]
    assert {("agent-i-local", f"kernel {kernel_id} {word}") for word in ("runs", "has ended")} <= told
    text = cluster.run("admin", "explain", session_id, admin=True, check=True).stdout
    assert "Life" in text
    assert "user-requested" in text


def test_an_agent_that_does_not_answer_is_named(cluster: Cluster) -> None:
    cluster.run("start", "-t", "silent", *RESOURCES, "python", check=True)
    pid = int((cluster.data_dir / "agent-i-local.lock").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        report = cluster.json("admin", "explain", "silent", admin=True)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert report["unreachable"] == ["i-local"]
    assert report["status"] == "RUNNING"
    cluster.run("rm", "silent", check=True)
