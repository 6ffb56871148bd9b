"""A cluster whose process runs on uvloop, which is used where it is installed."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest

from tests.support import wheels
from tests.support.cluster import free_port, running_cluster, wait_until

pytestmark = [pytest.mark.needs("uvloop"), pytest.mark.timeout(180)]
MODEL = Path(__file__).resolve().parents[2] / "docs" / "examples" / "embedding-model"


def test_sessions_folders_and_services_work_on_uvloop(tmp_path: Path) -> None:
    first = free_port(then=9)
    consent = tmp_path / "agent.toml"
    consent.write_text("[services]\nshared-network = true\n")
    path = os.pathsep.join(filter(None, (str(wheels.uvloop_folder()), os.environ.get("PYTHONPATH"))))
    options = ("--app-ports", f"{first}-{first + 9}", "--agent-config", str(consent))
    with running_cluster(tmp_path / "data", *options, env={"PYTHONPATH": path}) as cluster:
        assert cluster.process is not None
        maps = Path(f"/proc/{cluster.process.pid}/maps").read_text()
        assert "uvloop" in maps
        done = cluster.run("run", "--rm", "-q", "-c", "print(6 * 7)", "python", check=True)
        assert "42" in done.stdout
        cluster.run("vfolder", "create", "tiny-embedding", check=True)
        files = [str(file) for file in MODEL.iterdir()]
        cluster.run("vfolder", "upload", "tiny-embedding", *files, "-b", str(MODEL), check=True)
        command = ("service", "create", "-t", "tiny-service", "-r", "cpu=1", "-r", "mem=256m", "--public")
        cluster.run(*command, "python", "tiny-embedding", check=True)
        info = ("service", "info", "tiny-service")
        wait_until(lambda: cluster.json(*info)["status"] == "healthy", timeout_s=60, what="the service")
        url = cluster.json(*info)["service_endpoint"]
        with urllib.request.urlopen(f"{url}/v1/models", timeout=20) as response:
            assert b"tiny-embedding" in response.read()
