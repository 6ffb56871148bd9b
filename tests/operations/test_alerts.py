"""The shipped rules on Debian's Prometheus and Alertmanager, beside a cluster that is broken on purpose."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tools.monitoring.dashboards import ROLES
from tools.monitoring.files import as_yaml, stale
from tools.monitoring.rules import ALERTS, RUNBOOK, cases_document, rules_document

from ai.backend.common.wire.appproxy import TOKEN_HEADER
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until
from tests.support.etcd_server import EtcdServer
from tests.support.forked import ForkedPopen
from tests.support.postgres import migrated_template, shared_server
from tests.support.prometheus import Monitoring, running_monitoring
from tests.support.runbooks import spans, stand_in_for_systemd

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.needs("prometheus", "alertmanager"), pytest.mark.timeout(200)]


def _token(cluster: Cluster) -> str:
    return (cluster.data_dir / "keys/monitoring.secret").read_text().strip()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Monitoring]]:
    folder = tmp_path_factory.mktemp("watched")
    with (
        _disk(folder / "data/agents/i-local"),
        running_cluster(folder / "data", "--separate", "--mock", "default") as cluster,
        running_monitoring(folder / "monitoring", cluster.port, _token(cluster)) as monitoring,
    ):
        wait_until(lambda: len(monitoring.query("up == 1")) >= 6, what=f"targets: {monitoring.query('up')}")
        yield cluster, monitoring


def test_every_case_of_every_rule(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(as_yaml(rules_document(annotated=False)))
    (tmp_path / "tests.yml").write_text(as_yaml(cases_document("rules.yml")))
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_daemons_are_found_and_scraped(watched: tuple[Cluster, Monitoring]) -> None:
    cluster, monitoring = watched
    jobs = {sample["metric"]["job"]: sample["value"][1] for sample in monitoring.query("up")}
    roles = ("manager", "agent", "storage-proxy", "app-proxy-coordinator", "app-proxy-worker", "kernels")
    assert jobs == {f"backendai-{role}": "1" for role in roles}
    assert [sample["metric"]["agent"] for sample in monitoring.query("backendai_node_mem_bytes")] == ["i-local"]
    request = urllib.request.Request(f"http://127.0.0.1:{cluster.port}/metrics/targets")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=10)


def test_every_panel_of_every_dashboard_has_data(watched: tuple[Cluster, Monitoring]) -> None:
    cluster, monitoring = watched
    cluster.run("vfolder", "create", "shown", check=True)
    for name in ("first", "second"):  # a rate needs a series before it grows
        cluster.run("run", "-t", name, "--rm", "-c", "print(1)", "-r", "cpu=1", "-r", "mem=256m", "python", check=True)
        time.sleep(2)
    cluster.run("start", "-t", "shown", "-r", "cpu=1", "-r", "mem=256m", "python", check=True)
    empty = {(role.name, panel.title): panel.expr for role in ROLES for panel in role.panels}
    deadline = time.monotonic() + 60
    while empty and time.monotonic() < deadline:
        time.sleep(1)
        empty = {key: expr for key, expr in empty.items() if not _has_data(monitoring, expr)}
    cluster.run("rm", "shown", check=True)
    assert empty == {}


def _has_data(monitoring: Monitoring, expression: str) -> bool:
    return any(not math.isnan(float(sample["value"][1])) for sample in monitoring.query(expression))


def test_the_generated_files_are_up_to_date() -> None:
    assert stale() == []


def _pid(cluster: Cluster, daemon: str) -> int:
    return int((cluster.data_dir / f"{daemon}.lock").read_text())


@contextmanager
def _stopped(cluster: Cluster, daemon: str) -> Iterator[None]:
    pid = _pid(cluster, daemon)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """A disk of its own for the data of the agent, which a test may fill."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m,mode=700", "alerts", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("machine: no disk can be mounted")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def _full_disk(cluster: Cluster) -> Iterator[None]:
    file = cluster.data_dir / "agents/i-local/filler"
    disk = os.statvfs(file.parent)
    size = disk.f_bavail * disk.f_frsize - disk.f_blocks * disk.f_frsize // 20
    file.write_bytes(b"x" * size)
    try:
        yield
    finally:
        file.unlink()


def _sql(cluster: Cluster, *statements: str) -> None:
    with closing(sqlite3.connect(cluster.data_dir / "manager/backendai.db", timeout=30)) as database, database:
        for statement in statements:
            database.execute(statement)


@contextmanager
def _changed(cluster: Cluster, change: str, back: str) -> Iterator[None]:
    """A change of the database, and the way back."""
    _sql(cluster, change)
    try:
        yield
    finally:
        _sql(cluster, back)


def _without(table: str) -> Callable[[Cluster], AbstractContextManager[None]]:
    return lambda cluster: _changed(
        cluster, f"ALTER TABLE {table} RENAME TO {table}_away", f"ALTER TABLE {table}_away RENAME TO {table}"
    )


@contextmanager
def _repeated(work: Callable[[], object]) -> Iterator[None]:
    """Does something again and again until the end of the block."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.1):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _server_errors(cluster: Cluster) -> Iterator[None]:
    """The table of reported errors is away, and somebody asks for them."""
    with _without("error_logs")(cluster), _repeated(lambda: cluster.run("server-logs", "list")):
        yield


@contextmanager
def _failing_sessions(cluster: Cluster) -> Iterator[None]:
    """A vendor's service denies each workload with a device."""
    control = cluster.data_dir / "agents/i-local/mock-control.toml"
    control.write_text('[[faults]]\ncall = "pre_create"\nbehaviour = "deny"\n')
    numbers = itertools.count()

    def start() -> None:
        cluster.run(
            "start",
            "-q",
            "-t",
            f"denied-{next(numbers)}",
            "-r",
            "cpu=1",
            "-r",
            "mem=64m",
            "-r",
            "mock.device=1",
            "python",
        )

    try:
        with _repeated(start):
            yield
    finally:
        control.unlink()


@contextmanager
def _waiting_session(cluster: Cluster) -> Iterator[None]:
    """A session has been waiting for two hours: nobody lets the agent have sessions."""
    cluster.run("admin", "agent", "update", "i-local", "--schedulable", "no", admin=True, check=True)
    cluster.run("start", "-q", "--enqueue-only", "-t", "waits", "-r", "cpu=1", "-r", "mem=64m", "python", check=True)
    _sql(cluster, "UPDATE sessions SET status_changed = datetime(status_changed, '-2 hours') WHERE status = 'PENDING'")
    try:
        yield
    finally:
        cluster.run("rm", "waits", check=True)
        cluster.run("admin", "agent", "update", "i-local", "--schedulable", "yes", admin=True, check=True)


@contextmanager
def _second_worker(
    cluster: Cluster, name: str, settings: str = "", *, is_removed: bool = True
) -> Iterator[ForkedPopen]:
    """A second worker of the app proxy that is linked with the coordinator, and by default removed from it."""
    first = free_port(then=1)
    place = cluster.data_dir.parent / name
    place.mkdir()
    address, secret = _coordinator(cluster)
    (place / "worker.toml").write_text(
        f"""[proxy-worker]
coordinator-endpoint = "http://{address}"
authority = "{name}"
api-bind-addr = {{host = "127.0.0.1", port = 0}}
data-dir = "{place}"
{settings}
[proxy-worker.port-proxy]
bind-port-range = [{first}, {first + 1}]
[secrets]
api-secret = "{secret}"
"""
    )
    command = [
        sys.executable,
        "-m",
        "ai.backend.cli.main",
        "app-proxy-worker",
        "start-server",
        "-f",
        f"{place}/worker.toml",
    ]
    with (place / "log").open("ab") as output:
        worker = ForkedPopen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        wait_until(lambda: "linked" in (place / "log").read_text(), what=f"the worker ({place}/log)")
        yield worker
    finally:
        worker.kill()
        worker.wait()
        for one in _workers(cluster):
            if is_removed and one["authority"] == name:
                _call_coordinator(cluster, "DELETE", f"/api/worker/{one['id']}")


def _coordinator(cluster: Cluster) -> tuple[str, str]:
    """The address of the coordinator, and the secret that it shares with managers and workers."""
    port = json.loads((cluster.data_dir / "cluster.json").read_text())["coordinator_port"]
    return f"localhost:{port}", (cluster.data_dir / "keys/app-proxy.secret").read_text().strip()


def _call_coordinator(cluster: Cluster, method: str, path: str) -> Any:
    address, secret = _coordinator(cluster)
    request = urllib.request.Request(f"http://{address}{path}", method=method, headers={TOKEN_HEADER: secret})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def _workers(cluster: Cluster) -> list[dict[str, Any]]:
    return list(_call_coordinator(cluster, "GET", "/api/worker")["workers"])


@contextmanager
def _stopped_worker(cluster: Cluster) -> Iterator[None]:
    with _second_worker(cluster, "stopped") as worker:
        time.sleep(2)  # it is scraped while it answers
        os.kill(worker.pid, signal.SIGSTOP)
        yield


@contextmanager
def _old_certificate(cluster: Cluster) -> Iterator[None]:
    """A worker speaks TLS by a certificate that nobody has renewed, until somebody does."""
    place = cluster.data_dir.parent / "certificates"
    pki = ("mgr", "pki")
    authority = ("--folder", str(place / "pki"))
    issue = (*pki, "issue", "worker", "--host", "localhost", "-o", str(place), *authority, "--days")
    cluster.run(*pki, "init", *authority, check=True)
    cluster.run(*issue, "10", check=True)
    settings = f"""tls-listen = true
tls-advertised = true
tls-cert = "{place}/worker.pem"
tls-privkey = "{place}/worker-key.pem"
"""
    with _second_worker(cluster, "with-certificate", settings):
        yield
        cluster.run(*issue, "90", check=True)
        time.sleep(2)  # the worker reads it within a second


@contextmanager
def _volume_away(cluster: Cluster) -> Iterator[None]:
    (marker,) = (cluster.data_dir / "volumes").rglob("version.txt")
    hidden = marker.with_suffix(".away")
    marker.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(marker)


LATE_LOOPS = (
    "time() - max by (loop) (backendai_manager_loop_succeeded_timestamp_seconds)"
    " - max by (loop) (backendai_manager_loop_period_seconds) > 5"
)
"""The loops whose last round failed, but for those whose period is longer than a test of an alert."""
FAULTS: dict[str, Callable[[Cluster], AbstractContextManager[None]]] = {
    "BackendAIManagerDown": lambda cluster: _stopped(cluster, "manager"),
    "BackendAIAgentLost": lambda cluster: _stopped(cluster, "agent-i-local"),
    "BackendAIStorageProxyDown": lambda cluster: _stopped(cluster, "storage"),
    "BackendAICoordinatorDown": lambda cluster: _stopped(cluster, "app-proxy"),
    "BackendAIVolumeUnhealthy": _volume_away,
    "BackendAILoopStuck": _without("endpoints"),
    "BackendAIServerErrors": _server_errors,
    "BackendAISessionsFail": _failing_sessions,
    "BackendAISessionsWait": _waiting_session,
    "BackendAINodeDiskFull": _full_disk,
    "BackendAIWorkerDown": _stopped_worker,
    "BackendAICertificateExpires": _old_certificate,
}


@pytest.mark.parametrize("alert", FAULTS)
def test_a_fault_fires_its_alert_and_no_other(watched: tuple[Cluster, Monitoring], alert: str) -> None:
    cluster, monitoring = watched
    _break(monitoring, alert, FAULTS[alert](cluster))


class SharedManager:
    """A manager on PostgreSQL and etcd, where it leads by a lease."""

    def __init__(self, folder: Path, etcd: EtcdServer) -> None:
        self.port, self.etcd, self.postgres = free_port(), etcd, shared_server()
        self.database = self.postgres.create(template=migrated_template())
        folder.mkdir()
        (folder / "manager.toml").write_text(
            f"""data-dir = "{folder}/data"
[database]
url = "{self.postgres.url(self.database)}"
[etcd]
namespace = "local"
addr = {{host = "127.0.0.1", port = {etcd.port}}}
[listen]
port = {self.port}
[agent-link]
bind = "tcp://127.0.0.1:0"
[manager]
lease-s = 2
[metrics]
targets-token = "token"
"""
        )
        command = [sys.executable, "-m", "ai.backend.cli.main", "mgr", "-f", f"{folder}/manager.toml", "start-server"]
        with (folder / "log").open("ab") as output:
            self.process = ForkedPopen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        wait_until(self._is_ready, what=f"the manager ({folder}/log)")

    def _is_ready(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
        return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SharedManager, Monitoring]]:
    folder = tmp_path_factory.mktemp("shared")
    with ExitStack() as stack:
        etcd = EtcdServer(folder / "etcd")
        etcd.start()
        stack.callback(etcd.stop)
        manager = SharedManager(folder / "manager", etcd)
        stack.callback(manager.stop)
        monitoring = stack.enter_context(running_monitoring(folder / "monitoring", manager.port, "token"))
        wait_until(lambda: monitoring.query("backendai_manager_leader_elected == 1"), what="a leader")
        yield manager, monitoring


@contextmanager
def _no_lease(manager: SharedManager) -> Iterator[None]:
    """The database takes no writes of leases."""
    function = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$"
    trigger = "CREATE TRIGGER refused BEFORE UPDATE ON leases FOR EACH ROW EXECUTE FUNCTION refuse()"
    manager.postgres.sql(manager.database, function, trigger)
    try:
        yield
    finally:
        manager.postgres.sql(manager.database, "DROP TRIGGER refused ON leases", "DROP FUNCTION refuse")


@contextmanager
def _etcd_away(manager: SharedManager) -> Iterator[None]:
    manager.etcd.kill()
    try:
        yield
    finally:
        manager.etcd.start()


SHARED_FAULTS = {"BackendAINoLeader": _no_lease, "BackendAIConfigurationStale": _etcd_away}


@pytest.mark.needs("postgres", "etcd")
@pytest.mark.parametrize("alert", SHARED_FAULTS)
def test_a_fault_of_what_managers_share_fires_its_alert_and_no_other(
    shared: tuple[SharedManager, Monitoring], alert: str
) -> None:
    manager, monitoring = shared
    _break(monitoring, alert, SHARED_FAULTS[alert](manager))


def test_each_command_of_the_runbooks_works(
    watched: tuple[Cluster, Monitoring], shared: tuple[SharedManager, Monitoring], tmp_path: Path
) -> None:
    cluster, monitoring = watched
    cluster.run("start", "-q", "-t", "explained", "-r", "cpu=1", "-r", "mem=64m", "python", check=True)
    (storage,) = monitoring.query('up{job="backendai-storage-proxy"}')
    with _second_worker(cluster, "removed", is_removed=False):
        pass
    (removed,) = [one["id"] for one in _workers(cluster) if one["authority"] == "removed"]
    coordinator, secret = _coordinator(cluster)
    places = {
        "localhost:10200": coordinator,
        "SECRET": secret,
        "WORKER": str(removed),
        "localhost:8081": f"localhost:{cluster.port}",
        "localhost:6022": storage["metric"]["instance"],
        "localhost:8120": f"localhost:{shared[0].etcd.port}",
        "/etc/backend.ai": str(tmp_path),
        "SESSION": cluster.json("info", "explained")["id"],
        "AGENT": "i-local",
        "NAME": "manager",
        "HOST": "localhost",
    }
    (tmp_path / "bin").mkdir()
    stand_in_for_systemd(tmp_path / "bin", ROOT / "deploy/systemd")
    environment = {
        **cluster.environment(admin=True),
        "PATH": f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BACKEND_MANAGER_DATA_DIR": str(cluster.data_dir / "manager"),
        "BACKEND_MANAGER_DATABASE__URL": f"sqlite:///{cluster.data_dir}/manager/backendai.db",
    }
    prepared = ["backend.ai mgr pki init", "backend.ai mgr pki issue manager --host localhost -o /etc/backend.ai"]
    found = list(spans(ROOT / RUNBOOK))
    for command in [*prepared, *(text for kind, text in found if kind == "command")]:
        for shown, own in places.items():
            command = re.sub(rf"(?<![\w-]){re.escape(shown)}(?![\w-])", own, command)
        done = subprocess.run(
            ["bash", "-c", f"set -eo pipefail\n{command}"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=60,
            cwd=tmp_path,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        if command.startswith("curl"):
            assert done.stdout, command
    cluster.run("admin", "agent", "update", "i-local", "--schedulable", "yes", admin=True, check=True)
    cluster.run("rm", "explained", check=True)
    assert "removed" not in {one["authority"] for one in _workers(cluster)}
    for query in (text for kind, text in found if kind == "query"):
        monitoring.query(query)
    assert sum(kind == "command" for kind, _ in found) >= 18


def test_every_alert_has_a_fault() -> None:
    assert {alert.name for alert in ALERTS} == FAULTS.keys() | SHARED_FAULTS.keys()


def _break(monitoring: Monitoring, alert: str, fault: AbstractContextManager[None]) -> None:
    """Asserts that a fault fires the alert, and none besides."""
    # A loop that failed at the end of an earlier fault tries again after its period: until then its alert may come.
    noise: list[object] = []

    def is_quiet() -> bool:
        noise[:] = [*monitoring.query("ALERTS"), *monitoring.query(LATE_LOOPS)]
        return not noise

    try:
        wait_until(is_quiet, timeout_s=90, what="quiet before the fault")
    except AssertionError as error:
        raise AssertionError(f"{error}: {noise}") from None
    seen: set[str] = set()
    with fault:
        wait_until(lambda: alert in _firing(monitoring, seen), timeout_s=60, what=f"{alert}, not {seen}")
        wait_until(lambda: alert in monitoring.alerts(), what="its arrival at the Alertmanager")
        time.sleep(3)
        _firing(monitoring, seen)
        assert seen == {alert}
        # Once the fault is over the Alertmanager forgets the alert.
        runbook, _, anchor = monitoring.alerts()[alert]["annotations"]["runbook_url"].partition("#")
    headings = (ROOT / runbook).read_text().lower().splitlines()
    assert f"## {anchor}" in headings


def _firing(monitoring: Monitoring, seen: set[str]) -> set[str]:
    firing = [sample["metric"] for sample in monitoring.query('ALERTS{alertstate="firing"}')]
    for labels in firing:
        if labels["alertname"] not in seen:
            print("fires:", labels)
    names = {labels["alertname"] for labels in firing}
    seen |= names
    return names


def test_every_alert_has_its_runbook() -> None:
    page = (ROOT / RUNBOOK).read_text()
    assert [alert.name for alert in ALERTS if f"\n## {alert.name}\n" not in page] == []
    assert json.dumps(rules_document())
