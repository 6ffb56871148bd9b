"""Debian's Prometheus and Alertmanager on the files of `deploy/prometheus`."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tools.monitoring.files import DEPLOY, as_yaml
from tools.monitoring.rules import rules_document

from tests.support.cluster import free_port, wait_until

_FILES = DEPLOY / "prometheus"


@dataclass(frozen=True)
class Monitoring:
    """A Prometheus and an Alertmanager that run."""

    prometheus: str
    alertmanager: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now. Fails if Prometheus refuses it."""
        text = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/query?{text}", timeout=10) as reply:
            return list(json.load(reply)["data"]["result"])

    def value(self, expression: str) -> float | None:
        samples = self.query(expression)
        return float(samples[0]["value"][1]) if samples else None

    def alerts(self) -> dict[str, dict[str, Any]]:
        """The alerts that have arrived at the Alertmanager and last, by name."""
        with urllib.request.urlopen(f"{self.alertmanager}/api/v2/alerts", timeout=10) as reply:
            return {one["labels"]["alertname"]: one for one in json.load(reply)}


def _quick_rules() -> dict[str, Any]:
    """The shipped rules, but over shorter times."""
    document = rules_document(lasts=3)
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    for shipped, own in (
        ("[5m]", "[15s]"),
        ("[15m]", "[20s]"),
        ("period_seconds[1h])) > 300", "period_seconds[1h])) > 20"),
        ("stale_seconds) > 60", "stale_seconds) > 3"),
    ):
        assert any(shipped in rule["expr"] for rule in rules)
        for rule in rules:
            rule["expr"] = rule["expr"].replace(shipped, own)
    return document


@contextmanager
def running_monitoring(
    folder: Path, manager_port: int, token: str, *, kata_monitors: Sequence[str] = ()
) -> Iterator[Monitoring]:
    """Both servers on the shipped files, but with other addresses and shorter times."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = {"prometheus": free_port(), "alertmanager": free_port()}
    (folder / "token").write_text(token)
    (folder / "kata-monitor.json").write_text(json.dumps([{"targets": list(kata_monitors)}]))
    (folder / "backendai.rules.yml").write_text(as_yaml(_quick_rules()))
    text = (_FILES / "prometheus.yml").read_text()
    for shipped, own in (
        ("127.0.0.1:8081", f"127.0.0.1:{manager_port}"),
        ("127.0.0.1:9093", f"127.0.0.1:{ports['alertmanager']}"),
        ("/etc/prometheus/backendai.token", str(folder / "token")),
        ("/etc/prometheus/kata-monitor.json", str(folder / "kata-monitor.json")),
        ("15s", "1s"),
        ("30s", "1s"),
    ):
        assert shipped in text
        text = text.replace(shipped, own)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(_FILES / "alertmanager.yml", folder)
    commands = {
        "alertmanager": [
            "prometheus-alertmanager",
            f"--config.file={folder}/alertmanager.yml",
            f"--storage.path={folder}/alerts",
            f"--web.listen-address=127.0.0.1:{ports['alertmanager']}",
            "--cluster.listen-address=",
        ],
        "prometheus": [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
        ],
    }
    processes = []
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("ab") as output:
                processes.append(subprocess.Popen(command, stdout=output, stderr=output, cwd=folder))
        for name, port in ports.items():
            wait_until(partial(_is_ready, port), what=f"{name} ({folder}/{name}.log)")
        yield Monitoring(f"http://127.0.0.1:{ports['prometheus']}", f"http://127.0.0.1:{ports['alertmanager']}")
    finally:
        for process in processes:
            process.terminate()
            process.wait(20)


def _is_ready(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2) as reply:
        return bool(reply.status == 200)
    return False
