"""SIGKILL to a daemon at each step of creation, restart and destruction; then the machine and the rows are audited.

Whatever is killed where: once it runs again, every session comes to a final or a running state, and when it has ended
no process, control group, directory, slot or row of it is left.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendError
from ai.backend.client.session import Session
from ai.backend.manager.crash_points import SESSION_CRASH_POINTS as MANAGER_POINTS
from tests.support import audit
from tests.support.cluster import wait_until
from tests.support.daemons import AGENT, MANAGER, SeparateCluster
from tests.support.signed_http import RawClient, RawReply

AGENT_POINTS = (
    "create.accept.after",
    "create.workload.before",
    "create.workload.after",
    "create.channel.after",
    "create.running.before",
    "destroy.accept.after",
    "destroy.workload.before",
    "destroy.workload.after",
    "destroy.terminated.before",
)
"""Where agent and manager must agree afterwards; component/agent/test_killed.py kills the agent at every point."""
AGENT_RESTART_POINTS = ("restart.accept.after", "restart.released")
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


def connect(cluster: SeparateCluster) -> Session:
    env = cluster.environment()
    return Session(
        config=APIConfig(
            endpoint=env["BACKEND_ENDPOINT"],
            access_key=env["BACKEND_ACCESS_KEY"],
            secret_key=env["BACKEND_SECRET_KEY"],
        )
    )


def start(cluster: SeparateCluster, name: str, *, wait: bool = False) -> None:
    """Enqueue a session. The manager may die under the request, so its answer does not count."""
    with connect(cluster) as api, suppress(BackendError):
        slots: dict[str, str | int | float] = {"cpu": 1, "mem": "128m", "mock.device": 1}
        api.ComputeSession.get_or_create("python", name=name, resources=slots, enqueue_only=not wait)


def act(cluster: SeparateCluster, name: str, action: str) -> bool:
    """Destroy or restart; whether the manager accepted."""
    with connect(cluster) as api:
        try:
            getattr(api.ComputeSession(name), action)()
        except BackendError:
            return False
        return True


def ask(cluster: SeparateCluster, name: str, action: str) -> threading.Thread:
    """As :func:`act`, without waiting for an answer that a dead daemon delays."""
    thread = threading.Thread(target=act, args=(cluster, name, action), daemon=True)
    thread.start()
    return thread


def output(cluster: SeparateCluster, name: str, code: str) -> str:
    with connect(cluster) as api:
        result = api.ComputeSession(name).execute(None, code, mode="query")
        return "".join(text for kind, text in result["console"] if kind == "stdout").strip()


def end_and_audit(cluster: SeparateCluster, name: str) -> None:
    """Bring the session to its end, if it is not there, and look for what is left of it."""
    rows = wait_until(lambda: settled(cluster, name, SETTLED) or not sessions(cluster, name), what="a settled state")
    if rows is True:
        return
    if any(row["status"] == "RUNNING" for row in rows):
        assert output(cluster, name, "print(6 * 7)") == "42", "a session that says RUNNING runs"
    wait_until(lambda: act(cluster, name, "destroy") or settled(cluster, name, FINAL), what="acceptance of the end")
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


@pytest.mark.parametrize("point", AGENT_POINTS)
def test_agent_killed_at(cluster: SeparateCluster, point: str) -> None:
    name = f"kill-{uuid4().hex[:10]}"
    cluster.restart_armed(AGENT, point)
    start(cluster, name)
    if point.startswith("destroy."):
        wait_until(lambda: settled(cluster, name, ("RUNNING",)), what="RUNNING")
        ask(cluster, name, "destroy")
    assert cluster.wait_killed(AGENT), f"the agent never came to {point}\n{cluster.logs()}"
    cluster.start_daemon(AGENT)
    end_and_audit(cluster, name)


@pytest.mark.parametrize("point", [p for p in MANAGER_POINTS if not p.endswith("restart")])
def test_manager_killed_at(cluster: SeparateCluster, point: str) -> None:
    name = f"kill-{uuid4().hex[:10]}"
    cluster.restart_armed(MANAGER, point)
    start(cluster, name)
    if "destroy" in point or "terminate" in point:
        wait_until(lambda: settled(cluster, name, ("RUNNING",)), what="RUNNING")
        ask(cluster, name, "destroy")
    assert cluster.wait_killed(MANAGER), f"the manager never came to {point}\n{cluster.logs()}"
    cluster.start_daemon(MANAGER)
    cluster.wait_ready()
    end_and_audit(cluster, name)


@pytest.mark.parametrize("victim", [MANAGER, AGENT])
def test_killed_during_a_restart(cluster: SeparateCluster, victim: str) -> None:
    points = [p for p in MANAGER_POINTS if "restart" in p] if victim == MANAGER else list(AGENT_RESTART_POINTS)
    assert points
    for point in points:
        name = f"kill-{uuid4().hex[:10]}"
        cluster.restart_armed(victim, point)
        start(cluster, name, wait=True)
        asked = ask(cluster, name, "restart")
        assert cluster.wait_killed(victim), f"{victim} never came to {point}\n{cluster.logs()}"
        cluster.start_daemon(victim)
        cluster.wait_ready()
        asked.join(60)
        end_and_audit(cluster, name)


def send(cluster: SeparateCluster, token: str, path: str, body: dict[str, object]) -> RawReply | None:
    """Post with a client token; None if the manager died under it."""
    env = cluster.environment()
    client = RawClient(port=cluster.port, access_key=env["BACKEND_ACCESS_KEY"], secret_key=env["BACKEND_SECRET_KEY"])
    headers = {"X-BackendAI-Client-Token": token}
    try:
        return asyncio.run(client.request("POST", path, json=body, headers=headers))
    except (OSError, EOFError):
        return None


@pytest.mark.parametrize(
    ("point", "status", "problem"), [("before-keep-answer", 409, "outcome-unknown"), ("after-keep-answer", 200, "")]
)
def test_code_runs_once_though_the_manager_is_killed(
    cluster: SeparateCluster, point: str, status: int, problem: str
) -> None:
    """The step has run and its client has no answer: a repetition of its token must not run it again."""
    name = f"kill-{uuid4().hex[:10]}"
    start(cluster, name, wait=True)
    output(cluster, name, "n = 0")
    cluster.restart_armed(MANAGER, point)
    step: dict[str, object] = {"mode": "query", "code": "n += 1; print('n', n)", "runId": "once"}
    assert send(cluster, name, f"/session/{name}", step) is None
    assert cluster.wait_killed(MANAGER), f"the manager never came to {point}\n{cluster.logs()}"
    cluster.start_daemon(MANAGER)
    cluster.wait_ready()
    for _ in range(2):
        again = send(cluster, name, f"/session/{name}", step)
        assert again is not None
        assert (again.status, again.problem if problem else "") == (status, problem), again.body
        if not problem:
            assert again.json()["result"]["console"] == [["stdout", "n 1\n"]]
    assert output(cluster, name, "print(n)") == "1"
    end_and_audit(cluster, name)


def test_a_creation_whose_answer_was_lost_gives_the_same_session(cluster: SeparateCluster) -> None:
    """Also without a name: the token is kept in the transaction that makes the session."""
    token = uuid4().hex
    body: dict[str, object] = {"image": "python", "tag": token, "config": {"resources": {"cpu": 1, "mem": "128m"}}}
    cluster.restart_armed(MANAGER, "after-commit-create")
    assert send(cluster, token, "/session", body) is None
    assert cluster.wait_killed(MANAGER)
    cluster.start_daemon(MANAGER)
    cluster.wait_ready()
    replies = [send(cluster, token, "/session", body) for _ in range(2)]
    rows = audit.rows(cluster.layout.database, "SELECT id, name FROM sessions WHERE tag = ?", token)
    assert len(rows) == 1
    assert [r and r.json()["sessionId"] for r in replies] == [rows[0]["id"]] * 2
    end_and_audit(cluster, str(rows[0]["name"]))


def test_everything_killed_at_once(cluster: SeparateCluster) -> None:
    name = f"kill-{uuid4().hex[:10]}"
    start(cluster, name, wait=True)
    output(cluster, name, "x = 'kept'")
    for daemon in (MANAGER, AGENT):
        cluster.kill_daemon(daemon)
    cluster.start_all()
    assert output(cluster, name, "print(x)") == "kept"
    end_and_audit(cluster, name)
