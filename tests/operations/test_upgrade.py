"""A cluster of an earlier version becomes one of a later version in the order of docs/howto/upgrade.md, under load.

The later version is this one with one more migration, so that there is always one to run beside what serves.

``ROLLING_SESSIONS`` and ``ROLLING_AGENTS`` make the cluster with several managers larger; more than two sessions for
each agent need a ``ROLLING_COMMIT`` whose nodes may declare processors.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support.client_runs import run_to_end
from tests.support.cluster import wait_until
from tests.support.earlier import COMMIT, install_earlier
from tests.support.later import COLUMN, INDEX, LATER_HEAD, copy_later
from tests.support.load import BalancedReads, Load, session_of
from tests.support.upgraded import UpgradedDeployment

SMALL = {"cpu": 1, "mem": "64m"}
WRITE = "print('ab', end='', file=open('/home/work/data/file', 'a'))"
READ = "print(open('/home/work/data/file').read())"
SESSIONS = int(os.environ.get("ROLLING_SESSIONS", "4"))
AGENTS = int(os.environ.get("ROLLING_AGENTS", "2"))
pytestmark = [pytest.mark.needs("postgres", "redis", "etcd"), pytest.mark.timeout(900 + 10 * SESSIONS)]
MANAGERS = ("manager", "manager2", "manager3")
EARLIER_HEAD = "0038"
NAMES = ["stays", *(f"stays-{number}" for number in range(1, SESSIONS))]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the earlier version."""
    return install_earlier(tmp_path_factory.mktemp("earlier"), os.environ.get("ROLLING_COMMIT", COMMIT))


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_later(tmp_path_factory.mktemp("later"))


@pytest.fixture
def deployment(earlier: Path, later: Path, tmp_path: Path) -> Iterator[UpgradedDeployment]:
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as servers:
        Path(servers).chmod(0o755)
        deployment = UpgradedDeployment(tmp_path / "site", Path(servers), earlier, later)
        try:
            deployment.start_servers()
            yield deployment
        finally:
            deployment.stop()


def _revision(deployment: UpgradedDeployment) -> str:
    (row,) = deployment.query("SELECT version_num FROM alembic_version")
    return str(row["version_num"])


def _registered(deployment: UpgradedDeployment, epoch: int) -> bool:
    rows = deployment.query("SELECT status, epoch FROM agents")
    return any(row["status"] == "ALIVE" and row["epoch"] > epoch for row in rows)


def test_daemon_by_daemon_with_sessions_that_run(deployment: UpgradedDeployment) -> None:
    users = deployment.set_up()
    for name in ("storage-proxy", "manager", "agent"):
        deployment.start_one(name)
    deployment.wait_alive()
    assert _revision(deployment) == EARLIER_HEAD
    with session_of(users["user"]) as session:
        session.VFolder.create("data", host="storage-1:local")
        session.ComputeSession.get_or_create("python", name="stays", resources=SMALL, mounts=["data"])
        assert run_to_end(session, "stays", f"kept, count = 42, 0; {WRITE}") == ""
        session.ComputeSession.get_or_create("python", name="ended", resources=SMALL)
        session.ComputeSession("ended").destroy()

    with Load(users["user"]) as load:
        load.go_on()
        deployment.upgrade("manager")
        load.go_on()
        assert _revision(deployment) == LATER_HEAD
        deployment.upgrade("storage-proxy")
        load.go_on()
        (agent,) = deployment.query("SELECT epoch FROM agents")
        deployment.upgrade("agent")
        wait_until(lambda: _registered(deployment, agent["epoch"]), timeout_s=60, what=f"agent\n{deployment.log()}")
        load.go_on()
    print(f"{load.answers} requests, the longest interruption took {load.longest_s:.1f} s")
    assert load.refusals == []

    with session_of(users["user"]) as session:
        assert run_to_end(session, "stays", f"print(kept, count > 5); {WRITE}; {READ}") == "42 True\nabab\n"
        session.ComputeSession.get_or_create("python", name="newer", resources=SMALL)
        assert run_to_end(session, "newer", "print(6 * 7)") == "42\n"
        session.VFolder.create("after", host="storage-1:local")
        assert sorted(folder["name"] for folder in session.VFolder.list()) == ["after", "data"]
        for name in ("stays", "newer"):
            session.ComputeSession(name).destroy()
    rows = deployment.query(f"SELECT name, status, {COLUMN} FROM sessions")
    assert {row["name"]: row["status"] for row in rows}["ended"] == "TERMINATED"
    assert {row[COLUMN] for row in rows} == {"none"}, "of sessions before and after the migration"
    assert deployment.query(f"SELECT 1 FROM pg_indexes WHERE indexname = '{INDEX}'")
    wait_until(
        lambda: deployment.query("SELECT occupied_slots FROM agents")[0]["occupied_slots"] == "{}", what="free slots"
    )


def test_the_way_back(deployment: UpgradedDeployment) -> None:
    """The earlier program refuses the newer database, and leaves it as it is."""
    deployment.set_up()
    assert f"at {EARLIER_HEAD}" in deployment.mgr("schema", "show")
    deployment._is_upgraded.add("manager")
    assert f"at {LATER_HEAD}, it was at {EARLIER_HEAD}" in deployment.mgr("schema", "upgrade")
    deployment._is_upgraded.clear()
    with pytest.raises(AssertionError, match="newer"):
        deployment.mgr("schema", "upgrade")
    deployment.start_one("manager")
    assert deployment.daemons.pop("manager").wait(60) != 0
    assert "newer version than this program" in (deployment.root / "manager.log").read_text()


def _agents() -> list[str]:
    return ["agent", *(f"agent{number}" for number in range(2, AGENTS + 1))]


def _declare_processors(deployment: UpgradedDeployment) -> None:
    """Lets small machines run many sessions."""
    for agent in _agents():
        path = deployment.root / f"etc/{agent}.toml"
        path.write_text(f"{path.read_text()}\n[plugins.cpu]\ndeclared-cpu = {SESSIONS}\n")


def _epochs(deployment: UpgradedDeployment) -> dict[str, int]:
    rows = deployment.query("SELECT id, epoch FROM agents WHERE status = 'ALIVE'")
    return {row["id"]: row["epoch"] for row in rows}


def _running(deployment: UpgradedDeployment) -> int:
    return len(deployment.query("SELECT 1 FROM sessions WHERE name LIKE 'stays%' AND status = 'RUNNING'"))


def test_managers_side_by_side(deployment: UpgradedDeployment) -> None:
    users = deployment.set_up()
    deployment.add_manager(3)
    for number in range(2, AGENTS + 1):
        deployment.add_agent(number)
    if SESSIONS > 2 * AGENTS:
        _declare_processors(deployment)
    for name in ("storage-proxy", *MANAGERS, *_agents()):
        deployment.start_one(name)
        if name == "manager":
            wait_until(deployment.is_ready, timeout_s=60, what=f"a manager\n{deployment.log()}")
    wait_until(lambda: len(_epochs(deployment)) == AGENTS, timeout_s=90, what=f"agents\n{deployment.log()}")
    endpoints = [f"http://127.0.0.1:{deployment.ports[8081 + number * 10_000]}" for number in range(len(MANAGERS))]

    def start(name: str) -> None:
        with session_of(users["user"]) as session:
            session.ComputeSession.get_or_create("python", name=name, resources={"cpu": 1, "mem": "64m"}, max_wait=300)
            assert run_to_end(session, name, "kept, count = 42, 0") == ""

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, NAMES))
    kernels = {row["id"] for row in deployment.query("SELECT id FROM kernels WHERE status = 'RUNNING'")}
    assert len(kernels) == SESSIONS

    started = time.monotonic()
    last = {**users["user"], "BACKEND_ENDPOINT": endpoints[-1]}
    with BalancedReads(users["user"], endpoints, NAMES) as reads, Load(last) as load:
        load.go_on()
        for number, manager in enumerate(MANAGERS, 1):
            deployment.upgrade(manager)
            wait_until(partial(deployment.is_ready, number), timeout_s=180, what=f"{manager}\n{deployment.log()}")
            load.go_on()
            _create_through_each(users["user"], endpoints)
            assert _revision(deployment) == LATER_HEAD
        deployment.upgrade("storage-proxy")
        load.go_on()
        for agent in _agents():
            before = _epochs(deployment)
            deployment.upgrade(agent)
            wait_until(
                lambda: (
                    sum(_epochs(deployment).values()) > sum(before.values())  # noqa: B023
                    and _running(deployment) == SESSIONS
                ),
                timeout_s=180,
                what=f"{agent}\n{deployment.log()}",
            )
            load.go_on()
    print(
        f"{SESSIONS} sessions in {time.monotonic() - started:.0f} s: {reads.requests} reads, {reads.retries} of them"
        f" retried; {load.answers} runs, the longest interruption took {load.longest_s:.1f} s"
    )
    assert reads.failures == []
    assert load.refusals == []
    assert {row["id"] for row in deployment.query("SELECT id FROM kernels WHERE status = 'RUNNING'")} >= kernels
    with session_of(users["user"]) as session:
        for name in NAMES:
            assert run_to_end(session, name, "print(kept)") == "42\n", name


def _create_through_each(user: dict[str, str], endpoints: list[str]) -> None:
    """Managers of both versions write: a folder is made by one and purged by the next."""
    for number, endpoint in enumerate(endpoints):
        with session_of({**user, "BACKEND_ENDPOINT": endpoint}) as session:
            session.VFolder.create(f"by-{number}", host="storage-1:local")
        with session_of({**user, "BACKEND_ENDPOINT": endpoints[number - 1]}) as session:
            session.VFolder(f"by-{number}").delete()
