"""The storage proxy of `backend.ai up`, in the one process and as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, wait_until


def _proxy(cluster: Cluster) -> tuple[str, str, str]:
    """Where managers and clients reach it, and the manager's secret, as the shared configuration says."""
    with sqlite3.connect(f"file:{cluster.data_dir}/manager/backendai.db?mode=ro", uri=True) as database:
        rows = dict(database.execute("select key, value from config_entries where key like 'volumes/%'").fetchall())
    assert rows["volumes/default_host"] == "local:volume1"
    place = "volumes/proxies/local/"
    return rows[place + "manager_api"], rows[place + "client_api"], rows[place + "secret"]


def _ask(url: str, secret: str, method: str = "GET", **body: object) -> Any:
    request = urllib.request.Request(
        url,
        method=method,
        data=json.dumps(body).encode(),
        headers={"X-BackendAI-Storage-Auth-Token": secret, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.loads(reply.read() or b"{}")


@pytest.mark.parametrize("options", [(), ("--separate",)], ids=["embedded", "separate"])
def test_folders_are_there_after_up_and_after_a_kill(tmp_path: Path, options: tuple[str, ...]) -> None:
    cluster = Cluster(tmp_path / "data", *options)
    cluster.start()
    try:
        manager, client, secret = _proxy(cluster)
        (volume,) = _ask(manager + "/volumes", secret)["volumes"]
        assert Path(volume["path"]) == tmp_path / "data" / "volumes" / "volume1"
        assert oct(os.stat(tmp_path / "data" / "keys" / "storage-manager.secret").st_mode & 0o777) == "0o600"
        with urllib.request.urlopen(client, timeout=10) as reply:
            assert json.loads(reply.read())["type"] == "client-facing"
        if options:
            found = subprocess.run(
                ["pgrep", "-f", f"standalone.daemon {tmp_path}/data storage"],
                capture_output=True,
                text=True,
                check=True,
            )
            os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
            wait_until(lambda: _serves(manager), what="the storage proxy being started again")
        else:
            cluster.stop()
            cluster.start()
        assert _proxy(cluster) == (manager, client, secret)
        assert _ask(manager + "/volumes", secret)["volumes"] == [volume]
    finally:
        cluster.stop()


def _serves(manager: str) -> bool:
    try:
        with urllib.request.urlopen(manager + "/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
