"""SIGKILL to a daemon at each step of creation, restart and destruction; then the machine and the rows are audited.

Whatever is killed where: once it runs again, every session comes to a final or a running state, and when it has ended
no process, control group, directory, slot or row of it is left.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from uuid import uuid4

import pytest

from ai.backend.agent.services.crash_points import CRASH_POINTS as AGENT_POINTS
from ai.backend.manager.services.crash_points import CRASH_POINTS as MANAGER_POINTS
from tests.support import audit
from tests.support.cluster import wait_until
from tests.support.daemons import AGENT, MANAGER, SeparateCluster

SETTLED = ("RUNNING", "TERMINATED", "ERROR", "CANCELLED")
FINAL = ("TERMINATED", "ERROR", "CANCELLED")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeparateCluster]:
    cluster = SeparateCluster(tmp_path_factory.mktemp("kills") / "data")
    cluster.start_all()
    yield cluster
    cluster.stop_all()


@pytest.fixture(autouse=True)
def _leave_nothing_to_the_next_test(cluster: SeparateCluster) -> Iterator[None]:
    """A failed test must not fail the next one."""
    yield
    for daemon in (MANAGER, AGENT):
        if daemon not in cluster.daemons or cluster.daemons[daemon].poll() is not None:
            cluster.start_daemon(daemon)
    cluster.wait_ready()
    live = audit.rows(cluster.layout.database, "SELECT id, status FROM sessions")
    for row in live:
        if row["status"] not in FINAL:
            cluster.run("rm", "--forced", str(row["id"]))


def sessions(cluster: SeparateCluster, name: str) -> list[dict[str, object]]:
    try:
        return audit.rows(
            cluster.layout.database,
            "SELECT s.id AS id, s.status AS status, k.id AS kernel FROM sessions s"
            " LEFT JOIN kernels k ON k.session_id = s.id WHERE s.name = ?",
            name,
        )
    except sqlite3.OperationalError:
        return []


def settled(cluster: SeparateCluster, name: str, states: tuple[str, ...]) -> list[dict[str, object]] | None:
    found = sessions(cluster, name)
    return found if all(row["status"] in states for row in found) else None


def start_in_background(cluster: SeparateCluster, name: str) -> None:
    """Enqueue; the manager may die under the request, so its answer does not count."""
    cluster.run("start", "-t", name, "--enqueue-only", "-r", "cpu=1", "-r", "mem=128m", "-r", "mock.device=1", "python")


def agent_points() -> list[str]:
    return [p for p in AGENT_POINTS if not p.startswith("restart.")]


def end_and_audit(cluster: SeparateCluster, name: str) -> None:
    """Bring the session to its end, if it is not there, and look for what is left of it."""
    rows = wait_until(lambda: settled(cluster, name, SETTLED) or not sessions(cluster, name), what="a settled state")
    if rows is True:
        return
    if any(row["status"] == "RUNNING" for row in rows):
        done = cluster.run("run", "-q", "-t", name, "-c", "print(6 * 7)", "python")
        assert done.stdout.strip() == "42", f"a session that says RUNNING runs: {done.stderr}\n{cluster.logs()}"
    wait_until(
        lambda: cluster.run("rm", name).returncode == 0 or settled(cluster, name, FINAL), what="acceptance of the end"
    )
    rows = wait_until(lambda: settled(cluster, name, FINAL), what=f"a final state\n{cluster.logs()}")
    kernels = [str(row["kernel"]) for row in rows if row["kernel"]]
    wait_until(
        lambda: not list(audit.leftovers(cluster.data_dir, *kernels)),
        what=f"nothing left of {kernels}: {list(audit.leftovers(cluster.data_dir, *kernels))}",
    )
    assert occupied(cluster) == {}, "every slot is returned"


def occupied(cluster: SeparateCluster) -> dict[str, str]:
    """What the manager's books say is in use, without zeros."""
    (row,) = audit.rows(cluster.layout.database, "SELECT occupied_slots FROM agents")
    slots = json.loads(str(row["occupied_slots"] or "{}"))
    return {k: v for k, v in slots.items() if float(v)}


@pytest.mark.parametrize("point", agent_points())
def test_agent_killed_at(cluster: SeparateCluster, point: str) -> None:
    name = f"kill-{uuid4().hex[:10]}"
    cluster.restart_armed(AGENT, point)
    start_in_background(cluster, name)
    if point.startswith("destroy."):
        wait_until(lambda: settled(cluster, name, ("RUNNING",)), what=f"RUNNING\n{cluster.logs()}")
        cluster.run("rm", name)
    assert cluster.wait_killed(AGENT), f"the agent never came to {point}\n{cluster.logs()}"
    cluster.start_daemon(AGENT)
    end_and_audit(cluster, name)


@pytest.mark.parametrize("point", [p for p in MANAGER_POINTS if not p.endswith("restart")])
def test_manager_killed_at(cluster: SeparateCluster, point: str) -> None:
    name = f"kill-{uuid4().hex[:10]}"
    cluster.restart_armed(MANAGER, point)
    start_in_background(cluster, name)
    if "destroy" in point or "terminate" in point:
        wait_until(lambda: settled(cluster, name, ("RUNNING",)), what=f"RUNNING\n{cluster.logs()}")
        cluster.run("rm", name)
    assert cluster.wait_killed(MANAGER), f"the manager never came to {point}\n{cluster.logs()}"
    cluster.start_daemon(MANAGER)
    cluster.wait_ready()
    end_and_audit(cluster, name)


@pytest.mark.parametrize("victim", [MANAGER, AGENT])
def test_killed_during_a_restart(cluster: SeparateCluster, victim: str) -> None:
    points = [p for p in (MANAGER_POINTS if victim == MANAGER else AGENT_POINTS) if "restart" in p]
    assert points
    for point in points:
        name = f"kill-{uuid4().hex[:10]}"
        cluster.restart_armed(victim, point)
        cluster.run("start", "-t", name, "-r", "cpu=1", "-r", "mem=128m", "python", check=True)
        cluster.run("restart", name)
        assert cluster.wait_killed(victim), f"{victim} never came to {point}\n{cluster.logs()}"
        cluster.start_daemon(victim)
        cluster.wait_ready()
        end_and_audit(cluster, name)


def test_everything_killed_at_once(cluster: SeparateCluster) -> None:
    name = f"kill-{uuid4().hex[:10]}"
    cluster.run("start", "-t", name, "-r", "cpu=1", "-r", "mem=128m", "python", check=True)
    cluster.run("run", "-q", "-t", name, "-c", "x = 'kept'", "python", check=True)
    for daemon in (MANAGER, AGENT):
        cluster.kill_daemon(daemon)
    cluster.start_all()
    assert cluster.run("run", "-q", "-t", name, "-c", "print(x)", "python").stdout.strip() == "kept"
    end_and_audit(cluster, name)
