"""The documented set-up of three daemons, from the files in ``deploy/``, on real PostgreSQL, Redis and etcd."""

from __future__ import annotations

import http.client
import os
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.exceptions import BackendError
from ai.backend.client.session import Session
from tests.support import audit
from tests.support.cluster import wait_until
from tests.support.deployment import AGENT, Deployment

pytestmark = [pytest.mark.needs("postgres", "redis", "etcd"), pytest.mark.timeout(300)]
WANTED = int(os.environ.get("FAULT_SESSIONS", "20"))
FINAL = "('TERMINATED', 'ERROR', 'CANCELLED')"


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, dict[str, dict[str, str]]]]:
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as servers:
        Path(servers).chmod(0o755)
        deployment = Deployment(tmp_path_factory.mktemp("deployed"), Path(servers))
        try:
            deployment.start_servers()
            users = deployment.set_up()
            for name in ("storage-proxy", "manager", "agent"):
                deployment.start_one(name)
            deployment.wait_alive()
            yield deployment, users
        finally:
            deployment.stop()


def _session(user: dict[str, str], port: int) -> Session:
    config = APIConfig(
        endpoint=f"http://127.0.0.1:{port}",
        access_key=user["BACKEND_ACCESS_KEY"],
        secret_key=user["BACKEND_SECRET_KEY"],
    )
    return Session(config=config)


def test_the_three_daemons_run_a_session_and_any_manager_serves_it(
    deployed: tuple[Deployment, dict[str, dict[str, str]]],
) -> None:
    deployment, users = deployed
    deployment.start_one("manager2")
    with _session(users["user"], deployment.ports[8081]) as first:
        made = first.ComputeSession.get_or_create("python", name="both", resources={"cpu": 1, "mem": "128m"})
        assert _console(made.execute(code="print(6 * 7)", mode="query")) == "42\n"
        other_port = deployment.ports[18081]
        with _session(users["user"], other_port) as second:
            same = wait_until(lambda: _asked(second, "both"), what=f"the other manager\n{deployment.log()}")
            assert same["status"] == "RUNNING"
            again = second.ComputeSession("both")
            said = wait_until(lambda: _said(again, "print('from the other')"), what="the other's link to the agent")
            assert said == "from the other\n"
            again.destroy()
            assert second.VFolder.list_hosts()["default"] == "storage-1:local"
            second.VFolder.create("data", host="storage-1:local")
            assert [folder["name"] for folder in first.VFolder.list()] == ["data"]
    wait_until(lambda: not _live(deployment), what=f"the end of the session\n{deployment.log()}")
    deployment.kill("manager2")


def test_processes_of_one_manager_share_its_address(
    deployed: tuple[Deployment, dict[str, dict[str, str]]],
) -> None:
    """A worker is killed while requests come, and another one takes its place."""
    deployment, users = deployed
    port = deployment.ports[18081]
    deployment.start_one("manager2")

    def both_serve() -> list[int]:
        listening = [line for line in Path("/proc/net/tcp").read_text().splitlines() if f":{port:04X} 00000000" in line]
        return deployment.workers("manager2") if len(listening) == 2 else []

    (first,) = wait_until(both_serve, what=f"both processes\n{deployment.log()}")
    stop, answers = threading.Event(), {"kept": 0, "cut": 0}

    def ask() -> None:
        while not stop.is_set():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=30) as answer:
                    answers["kept"] += answer.status == 200
            except (OSError, http.client.HTTPException):  # of the one that was killed
                answers["cut"] += 1

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        wait_until(lambda: answers["kept"] >= 50, what="answers")
        os.kill(first, signal.SIGKILL)
        (second,) = wait_until(lambda: [one for one in both_serve() if one != first], what="another worker")
        seen = answers["kept"]
        wait_until(lambda: answers["kept"] >= seen + 50, what="answers")
    finally:
        stop.set()
        asking.join()
    assert answers["cut"] <= 5
    for _ in range(4):  # whoever is asked tells what all have counted, also who has died
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as told:
            lines = told.read().decode().splitlines()
        counted = next(line for line in lines if "http_requests_total{" in line and "/livez" in line)
        assert answers["kept"] <= float(counted.split()[-1]) <= answers["kept"] + answers["cut"]
    for number in range(4):
        with _session(users["user"], port) as session:
            made = session.ComputeSession.get_or_create(
                "python", name=f"work{number}", resources={"cpu": 1, "mem": "64m"}
            )
            assert made.status == "RUNNING"
            made.destroy()
    pid_file = deployment.root / "manager2.pid"
    daemon = deployment.daemons.pop("manager2")
    assert int(pid_file.read_text()) == daemon.pid
    daemon.terminate()
    assert daemon.wait(60) == 0
    assert not pid_file.exists()
    assert not Path(f"/proc/{second}").exists()


def _console(result: dict[str, object]) -> str:
    console = result["console"]
    assert isinstance(console, list)
    return "".join(text for stream, text in console if stream == "stdout")


def _said(session: Any, code: str) -> str | None:
    try:
        return _console(session.execute(code=code, mode="query"))
    except BackendError:
        return None


def _asked(session: Session, name: str) -> dict[str, object] | None:
    try:
        found: dict[str, object] = session.ComputeSession(name).get_info()
    except (BackendError, OSError):
        return None
    return found


def _live(deployment: Deployment) -> list[dict[str, object]]:
    return deployment.query(f"SELECT id, name, status FROM sessions WHERE status NOT IN {FINAL}")


class Traffic:
    """Sessions that come and go through both managers; ``made`` are the names whose creation was acknowledged."""

    def __init__(self, deployment: Deployment, user: dict[str, str], *, threads: int = 4) -> None:
        self.made: list[str] = []
        self._user = user
        self._ports = [deployment.ports[8081], deployment.ports[18081]]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._come_and_go, args=(i,)) for i in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def let_come(self, number: int = 6) -> None:
        before = len(self.made)
        wait_until(lambda: len(self.made) >= before + number, timeout_s=120, what="sessions that come")

    def _come_and_go(self, number: int) -> None:
        with _session(self._user, self._ports[number % 2]) as session:
            turn = 0
            while not self._stop.is_set():
                turn += 1
                name = f"s{number}-{turn}"
                try:
                    # At the end nobody makes room for the session that waits: it gives up waiting then.
                    session.ComputeSession.get_or_create(
                        "python",
                        name=name,
                        enqueue_only=number % 4 > 0,
                        max_wait=20,
                        resources={"cpu": 1, "mem": "64m"},
                    )
                    self.made.append(name)
                    time.sleep(0.3)
                except (BackendError, OSError):
                    time.sleep(0.2)  # somebody was dead: what became of the session is looked at in the end
                self._end(session, name)

    def _end(self, session: Session, name: str) -> None:
        while not self._stop.is_set():
            try:
                session.ComputeSession(name).destroy()
            except (BackendError, OSError) as e:
                if getattr(e, "status", 0) in (404, 409):  # it never was, or ends already
                    return
                time.sleep(0.2)
            else:
                return


@pytest.mark.timeout(300 if WANTED < 100 else 3600)
def test_kills_of_everything_lose_and_leak_nothing(deployed: tuple[Deployment, dict[str, dict[str, str]]]) -> None:
    """Sessions come and go while each server and daemon is killed and started again, in turn; one lives on.

    ``FAULT_SESSIONS=200`` goes on with that until so many have come.
    """
    deployment, users = deployed
    deployment.start_one("manager2")
    with _session(users["user"], deployment.ports[8081]) as session:
        lives_on = session.ComputeSession.get_or_create("python", name="lives-on", resources={"cpu": 1, "mem": "64m"})
        assert _console(lives_on.execute(code="kept = 42", mode="query")) == ""

    with Traffic(deployment, users["user"], threads=4 if WANTED < 100 else 8) as traffic:
        turns = 0
        while turns == 0 or len(traffic.made) < WANTED:
            turns += 1
            for server in (deployment.redis, deployment.postgres, deployment.etcd):
                traffic.let_come()
                server.kill()
                time.sleep(0.5)
                server.start()
            for name in ("manager", "agent", "manager2"):
                traffic.let_come()
                deployment.kill(name)
                time.sleep(0.5)
                deployment.start_one(name)
        traffic.let_come()
    print(f"{len(traffic.made)} sessions came while each server and daemon was killed {turns} times")
    known = {str(row["name"]) for row in deployment.query("SELECT name FROM sessions")}
    assert set(traffic.made) <= known, "what was acknowledged is there"
    with _session(users["user"], deployment.ports[8081]) as session:
        one = session.ComputeSession("lives-on")
        said = wait_until(lambda: _said(one, "print(kept)"), what=f"the session that lives on\n{deployment.log()}")
        assert said == "42\n"
    deployment.wait_alive()

    def all_gone() -> bool:
        left = _live(deployment)
        with _session(users["admin"], deployment.ports[8081]) as admin:
            for row in left:
                try:
                    admin.ComputeSession(str(row["id"])).destroy(forced=True)
                except (BackendError, OSError):
                    continue
        return not _live(deployment)

    wait_until(all_gone, timeout_s=120, what=f"the end of every session\n{deployment.log()}")
    held = deployment.query(f"SELECT id FROM kernels WHERE status NOT IN {FINAL}")
    occupied = deployment.query(f"SELECT occupied_slots FROM agents WHERE id = '{AGENT}'")[0]["occupied_slots"]
    assert (held, occupied) == ([], "{}")
    ids = [row["id"] for row in deployment.query("SELECT id FROM kernels")]
    wait_until(lambda: not audit.processes(*ids), what="the end of every process")
    workloads = deployment.root / "var/agent/process/workloads"
    wait_until(lambda: not list(workloads.iterdir()), what="the end of every directory")
