"""A device fails under a running session, as a user and an administrator see it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import audit
from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.daemons import AGENT, MANAGER, SeparateCluster

DECLARATION = """
slot_name = "gpu"
[[devices]]
mother_uuid = "g"
count = 2
model_name = "Mock GPU"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "mock-accelerator.toml").write_text(DECLARATION)
    with running_cluster(tmp_path / "data", "--mock", str(tmp_path / "mock-accelerator.toml")) as cluster:
        yield cluster


def switch(cluster: Cluster, text: str) -> None:
    path = cluster.data_dir.parent / "mock-control.toml"
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Listener:
    """`backend.ai events` of one session, with the time at which each line came."""

    def __init__(self, cluster: Cluster, session: str) -> None:
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ai.backend.cli.main", "--output", "json", "events", session],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=cluster.environment(),
            text=True,
        )
        assert self._process.stderr is not None
        assert self._process.stderr.readline().startswith("Listening")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append((time.monotonic(), json.loads(line)))

    def named(self, name: str) -> list[tuple[float, dict[str, Any]]]:
        return [(at, line["data"]) for at, line in self.lines if line["event"] == name]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert self._process.stderr is not None
        self._process.stderr.close()


def device_of(cluster: Cluster, session: str) -> str:
    containers = cluster.json("info", session)["containers"]
    attached = containers[0]["attached_devices"]
    held = json.loads(attached) if isinstance(attached, str) else attached
    (device,) = held["mock"]
    return str(device["device_id"])


def available(cluster: Cluster) -> str | None:
    (agent,) = cluster.json("admin", "agent", "list", admin=True)["items"]
    found: str | None = agent["available_slots"].get("gpu.device")
    return found


@pytest.mark.timeout(120)
def test_a_device_fails_under_a_session_and_comes_back(cluster: Cluster) -> None:
    start = ("start", "-r", "cpu=1", "-r", "mem=256m", "-r", "gpu.device=1")
    cluster.run(*start, "-t", "first", "python", check=True)
    device = device_of(cluster, "first")
    other = {"g-0": "g-1", "g-1": "g-0"}[device]
    listener = Listener(cluster, "first")
    try:
        failed_at = time.monotonic()
        switch(cluster, f'[unhealthy]\n{device} = "Xid 79: it fell off the bus"')
        wait_until(lambda: listener.named("session_device_unhealthy"), what="the event")
        at, event = listener.named("session_device_unhealthy")[0]
        print(f"from the failure to the event on the client's screen: {at - failed_at:.3f} s")
        assert [(d["device_id"], d["reason"]) for d in event["devices"]] == [(device, "Xid 79: it fell off the bus")]
        wait_until(lambda: available(cluster) == "1", what="the device being taken out")
        assert f"{device}: Xid 79: it fell off the bus" in cluster.run("info", "first", check=True).stdout
        assert cluster.json("info", "first")["status"] == "RUNNING"
        assert cluster.run("run", "-q", "-t", "first", "-c", "print(6 * 7)", "python", check=True).stdout == "42\n"
        cluster.run(*start, "-t", "second", "python", check=True)
        assert device_of(cluster, "second") == other
        cluster.run(*start, "-t", "third", "--enqueue-only", "python", check=True)
        switch(cluster, "")
        wait_until(lambda: listener.named("session_device_recovered"), what="the recovery")
        assert available(cluster) == "2"
        assert "Xid 79" not in cluster.run("info", "first", check=True).stdout
        cluster.run("rm", "first", check=True)
        wait_until(lambda: cluster.json("info", "third")["status"] == "RUNNING", what="the third session")
        assert device_of(cluster, "third") == device
    finally:
        listener.close()
    assert len(listener.named("session_device_unhealthy")) == len(listener.named("session_device_recovered")) == 1


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[SeparateCluster]:
    cluster = SeparateCluster(tmp_path / "data")
    cluster.start_all()
    yield cluster
    cluster.stop_all()


def told(cluster: SeparateCluster) -> list[str]:
    """The device events that the manager has written, in order."""
    rows = audit.rows(cluster.layout.database, "SELECT name FROM session_events ORDER BY id")
    return [name for row in rows if "device" in (name := str(row["name"]))]


@pytest.mark.timeout(180)
def test_kills_of_agent_and_manager_neither_lose_nor_repeat_what_is_told(daemons: SeparateCluster) -> None:
    control = daemons.layout.agent(AGENT) / "mock-control.toml"
    session = ("start", "-r", "cpu=1", "-r", "mem=256m", "-r", "mock.device=1", "-t", "mine", "python")
    daemons.run(*session, check=True)

    def failed() -> str:
        return daemons.run("info", "mine", check=True).stdout

    control.write_text('[unhealthy]\n"*" = "Xid 79"')
    wait_until(lambda: told(daemons) == ["session_device_unhealthy"], what="the event")
    daemons.kill_daemon(AGENT)
    daemons.start_daemon(AGENT)
    wait_until(lambda: daemons.json("info", "mine")["status"] == "RUNNING", what="the session")
    assert "Xid 79" in failed()
    daemons.kill_daemon(MANAGER)
    control.unlink()  # it recovers while the manager is away, and the agent dies before it could tell
    time.sleep(2.5)
    daemons.kill_daemon(AGENT)
    daemons.start_daemon(MANAGER)
    daemons.start_daemon(AGENT)
    wait_until(lambda: len(told(daemons)) > 1, what="the recovery")
    wait_until(lambda: "Xid 79" not in failed(), what="the status data")
    control.write_text('[unhealthy]\n"*" = "Xid 48"')
    wait_until(lambda: len(told(daemons)) > 2, what="another failure")
    assert told(daemons) == ["session_device_unhealthy", "session_device_recovered", "session_device_unhealthy"]
    assert "Xid 48" in failed()
    daemons.run("rm", "mine", check=True)
