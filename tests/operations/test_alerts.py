"""The shipped rules on Debian's Prometheus and Alertmanager, beside a cluster that is broken on purpose."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools.monitoring.dashboards import ROLES
from tools.monitoring.files import as_yaml, stale
from tools.monitoring.rules import ALERTS, cases_document, rules_document

from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.prometheus import Monitoring, running_monitoring

pytestmark = [pytest.mark.needs("prometheus", "alertmanager"), pytest.mark.timeout(200)]


def _token(cluster: Cluster) -> str:
    return (cluster.data_dir / "keys/monitoring.secret").read_text().strip()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Monitoring]]:
    folder = tmp_path_factory.mktemp("watched")
    with (
        running_cluster(folder / "data", "--separate", "--mock", "default") as cluster,
        running_monitoring(folder / "monitoring", cluster.port, _token(cluster)) as monitoring,
    ):
        wait_until(lambda: len(monitoring.query("up == 1")) >= 5, what=f"targets: {monitoring.query('up')}")
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
    roles = ("manager", "agent", "storage-proxy", "app-proxy-coordinator", "app-proxy-worker")
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
def _volume_away(cluster: Cluster) -> Iterator[None]:
    (marker,) = (cluster.data_dir / "volumes").rglob("version.txt")
    hidden = marker.with_suffix(".away")
    marker.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(marker)


FAULTS = {
    "BackendAIManagerDown": lambda cluster: _stopped(cluster, "manager"),
    "BackendAIAgentLost": lambda cluster: _stopped(cluster, "agent-i-local"),
    "BackendAIStorageProxyDown": lambda cluster: _stopped(cluster, "storage"),
    "BackendAICoordinatorDown": lambda cluster: _stopped(cluster, "app-proxy"),
    "BackendAIVolumeUnhealthy": _volume_away,
}


@pytest.mark.parametrize("alert", FAULTS)
def test_a_fault_fires_its_alert_and_no_other(watched: tuple[Cluster, Monitoring], alert: str) -> None:
    cluster, monitoring = watched
    wait_until(lambda: not monitoring.query('ALERTS{alertstate="firing"}'), timeout_s=60, what="quiet before the fault")
    seen: set[str] = set()
    with FAULTS[alert](cluster):
        wait_until(lambda: alert in _firing(monitoring, seen), timeout_s=60, what=f"{alert}, not {seen}")
        wait_until(lambda: alert in monitoring.alerts(), what="its arrival at the Alertmanager")
        time.sleep(3)
        _firing(monitoring, seen)
        assert seen == {alert}
    runbook, _, anchor = monitoring.alerts()[alert]["annotations"]["runbook_url"].partition("#")
    headings = (Path(__file__).parents[2] / runbook).read_text().lower().splitlines()
    assert f"## {anchor}" in headings


def _firing(monitoring: Monitoring, seen: set[str]) -> set[str]:
    names = {sample["metric"]["alertname"] for sample in monitoring.query('ALERTS{alertstate="firing"}')}
    seen |= names
    return names


def test_every_alert_has_its_runbook() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/runbooks.md").read_text()
    assert [alert.name for alert in ALERTS if f"\n## {alert.name}\n" not in page] == []
    assert json.dumps(rules_document())
