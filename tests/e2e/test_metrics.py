"""Statistics of a busy session on a mock accelerator, as an operator's monitoring and the user see them."""

from __future__ import annotations

import json
import urllib.request
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster import Cluster, wait_until

BUSY = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'while True: pass'])"
Samples = dict[tuple[tuple[str, str], ...], float]


def scrape(cluster: Cluster) -> dict[str, tuple[str, Samples]]:
    """Name of a sample -> its type, and values by labels. Fails where Prometheus would refuse the page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.port}/metrics", timeout=10) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = reply.read().decode()
    found: dict[str, tuple[str, Samples]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            samples = found.setdefault(sample.name, (family.type, {}))[1]
            assert labels not in samples
            samples[labels] = sample.value
    return found


def test_what_a_busy_session_uses_is_seen(cluster: Cluster) -> None:
    session = f"busy-{uuid4().hex[:8]}"
    resources = ("-r", "cpu=1", "-r", "mem=256m", "-r", "mock.device=1")
    assert cluster.run("start", "-t", session, *resources, "python").returncode == 0
    try:
        assert cluster.run("run", "-q", "-t", session, "-c", BUSY, "python").returncode == 0
        agent = ("agent", "i-local")

        def busy() -> dict[str, tuple[str, Samples]] | None:
            seen = scrape(cluster)
            used = seen.get("backendai_workloads_cpu_used_seconds_total", ("", {}))[1]
            return seen if used.get((agent,), 0.0) > 0.2 else None

        seen = wait_until(busy, timeout_s=60, what="processor time of the session at /metrics")
        assert seen["backendai_workloads_cpu_used_seconds_total"][0] == "counter"
        assert seen["backendai_workloads_mem_capacity_bytes"][1] == {(agent,): 256.0 * 2**20}
        kind, utils = seen["backendai_device_mock_util_ratio"]
        assert kind == "gauge"
        assert {dict(labels)["index"] for labels in utils} == {"0", "1"}
        assert all(0 <= value <= 1 for value in utils.values())
        assert 0 <= seen["backendai_node_cpu_util_ratio"][1][agent,] <= 4096
        assert seen["backendai_node_net_rx_bytes_total"][0] == "counter"
        names = {label for _, samples in seen.values() for labels in samples for label, _ in labels}
        requests = {"route", "method", "status", "code", "le"}
        assert names <= {"agent", "device_name", "device_id", "index", "loop"} | requests
        listed = json.loads(cluster.run("--output", "json", "top", session).stdout)
        assert "while True: pass" in listed[0]["command"]
        assert float(listed[0]["metrics"]["cpu_util"]["current"]) > 5
        assert "while True: pass" in cluster.run("top", "--wide", session).stdout
    finally:
        cluster.run("rm", session)
