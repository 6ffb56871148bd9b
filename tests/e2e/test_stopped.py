"""SIGSTOP to a daemon for longer than heartbeats may be missing, then SIGCONT: nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from ai.backend.client.exceptions import BackendError
from tests.e2e.test_kills import FINAL, act, end_and_audit, output, settled, start
from tests.support import audit
from tests.support.cluster import wait_until
from tests.support.daemons import AGENT, MANAGER, SeparateCluster

TIMEOUT_S = 3.0
SETTINGS = f"""
[agents]
heartbeat-interval-s = 0.3
heartbeat-timeout-s = {TIMEOUT_S}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeparateCluster]:
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "manager.toml").write_text(SETTINGS)
    cluster = SeparateCluster(folder / "data", manager_config=folder / "manager.toml")
    cluster.start_all()
    yield cluster
    for name, daemon in cluster.daemons.items():
        os.kill(daemon.pid, signal.SIGCONT)
        assert daemon.poll() is None, f"{name} has died"
    cluster.stop_all()


def events(cluster: SeparateCluster, name: str) -> list[str]:
    query = "SELECT e.name AS name FROM session_events e JOIN sessions s ON e.session_id = s.id WHERE s.name = ?"
    return [str(row["name"]) for row in audit.rows(cluster.layout.database, query, name)]


def begin(cluster: SeparateCluster, name: str) -> None:
    start(cluster, name)
    wait_until(lambda: settled(cluster, name, ("RUNNING",)), what=f"RUNNING\n{cluster.logs()}")
    assert output(cluster, name, "x = 6; print(x)") == "6"


def answer(cluster: SeparateCluster, name: str) -> str | None:
    """What only its program can know; None while the agent is not connected again."""
    try:
        return output(cluster, name, "print(x * 7)")
    except BackendError:
        return None


def test_an_agent_that_was_stopped_is_missed_and_comes_back(cluster: SeparateCluster) -> None:
    begin(cluster, "before")
    agent = cluster.daemons[AGENT].pid
    os.kill(agent, signal.SIGSTOP)
    wait_until(lambda: settled(cluster, "before", ("RUNNING_DEGRADED",)), what="the agent being missed")
    start(cluster, "meanwhile")
    os.kill(agent, signal.SIGCONT)
    wait_until(lambda: settled(cluster, "before", ("RUNNING",)), what="the agent being heard")
    assert wait_until(lambda: answer(cluster, "before"), what="the program") == "42", "it has noticed nothing"
    wait_until(lambda: settled(cluster, "meanwhile", ("RUNNING",)), what="what was asked for meanwhile")
    assert act(cluster, "meanwhile", "destroy")
    wait_until(lambda: settled(cluster, "meanwhile", FINAL), what="the end of the other one")
    end_and_audit(cluster, "before")


def test_a_manager_that_was_stopped_blames_nobody(cluster: SeparateCluster) -> None:
    begin(cluster, "silent")
    manager = cluster.daemons[MANAGER].pid
    os.kill(manager, signal.SIGSTOP)
    time.sleep(TIMEOUT_S + 4)  # longer than heartbeats may be missing and than the manager's looks are apart
    os.kill(manager, signal.SIGCONT)
    assert wait_until(lambda: answer(cluster, "silent"), what="the program") == "42", "it has noticed nothing"
    time.sleep(3.5)  # it has looked again
    assert settled(cluster, "silent", ("RUNNING",))
    assert not any("degraded" in name for name in events(cluster, "silent")), events(cluster, "silent")
    end_and_audit(cluster, "silent")
