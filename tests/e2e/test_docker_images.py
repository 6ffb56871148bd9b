"""Images of a registry from end to end: configured, scanned, fetched for a session, and made of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine
from tests.support.docker_registry import PASSWORD, USER, DockerRegistry, running_registry

pytestmark = [pytest.mark.needs("docker", "registry"), pytest.mark.timeout(180)]
RESOURCES = ("-r", "cpu=1", "-r", "mem=256m")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with running_registry(tmp_path_factory.mktemp("registry") / "r", is_closed=True) as started:
        yield started


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, docker_engine: DockerEngine) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("images") / "data"
    cluster = Cluster(data, "--runtime", "docker", env={"DOCKER_HOST": docker_engine.host})
    cluster.start()
    yield cluster
    cluster.stop()


def test_a_session_on_an_image_that_only_a_registry_has(
    cluster: Cluster, registry: DockerRegistry, docker_engine: DockerEngine
) -> None:
    image = registry.push(docker_engine, PYTHON_IMAGE, "lab/python", "1")
    config = {"": registry.url, "type": "docker", "username": USER, "password": PASSWORD}
    key = f"config/docker/registry/{quote(registry.name, safe='')}"
    assert cluster.run("admin", "etcd", "set", key, json.dumps(config), admin=True).returncode == 0
    scanned = cluster.run("admin", "image", "rescan", admin=True)
    assert "1 images; 1 are new" in scanned.stdout, scanned.stderr
    assert cluster.run("admin", "image", "alias", "py", image, admin=True).returncode == 0
    shown = "import os; print(sorted(os.environ), open('/proc/self/mountinfo').read())"
    done = cluster.run("run", "-t", "fetched", *RESOURCES, "-c", shown, "py")
    assert done.returncode == 0, done.stderr + cluster.log()
    assert PASSWORD not in done.stdout
    history = json.loads(cluster.run("--output", "json", "status-history", "fetched").stdout)
    assert history["pulling"], history

    def is_installed() -> bool:
        listed = json.loads(cluster.run("--output", "json", "admin", "image", "list", "--installed", admin=True).stdout)
        return image in {f"{one['registry']}/{one['name']}:{one['tag']}" for one in listed}

    wait_until(is_installed, what="the agent's next report of its images")
    secret = PASSWORD.encode()
    kept = [p for p in (cluster.data_dir / "agents").rglob("*") if p.is_file() and secret in p.read_bytes()]
    assert kept == []
    commit = cluster.run("session", "commit", "fetched")
    assert commit.returncode == 0, commit.stderr
    archive = Path(commit.stdout.split("committed to ")[1].split(" on ")[0])
    assert archive.stat().st_size > 0
    assert archive.is_relative_to(cluster.data_dir)
    assert cluster.run("rm", "fetched").returncode == 0
    taken = cluster.run("admin", "image", "unload", image, "*", admin=True)
    assert "done on 1 of 1" in taken.stdout, taken.stderr
    registry.stop()
    gone = cluster.run("start", "-t", "gone", "--enqueue-only", *RESOURCES, "py")
    assert gone.returncode == 0, gone.stderr
    registry.start()
    assert cluster.run("start", "-t", "gone", *RESOURCES, "py").returncode == 0
    assert cluster.run("rm", "gone").returncode == 0
